"""Fetches the genuine ROCm libraries of Debian sid into a folder outside of the tree, and unpacks them there.

apt works with a configuration, state and cache of its own, so that nothing of this machine changes. The
packages are downloaded, never installed. What was fetched stays: a second call answers at once, and
`--update` asks sid again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SUITE = "sid"
#: apt adds what these depend on, sid's C and C++ libraries among them.
PACKAGES = (
    "libhipblaslt1",
    "librocblas4",
    "libamdhip64-6",
    "libhiprtc6",
    "libhiprtc-builtins6",
    "rocm-device-libs-21",
)
#: Headers, without what these packages depend on.
HEADERS = ("libhipblaslt-dev", "librocblas-dev", "libamdhip64-dev", "libhipblas-common-dev")
#: Left packed: code objects, which no fake device loads (3 of 6 GB), and documentation.
LEFT_OUT = ("*.co", "*.hsaco", "*.a", "./usr/share/doc/*", "./usr/share/lintian/*")
#: The names that the backend opens.
LIBRARIES = ("amdhip64", "hiprtc", "hipblaslt", "rocblas")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_TRIPLE = "x86_64-linux-gnu"
#: GiB that packages and what they unpack to need.
_ROOM = 4


class Unobtainable(Exception):
    """The libraries cannot be had here; the message says why."""


@dataclass(frozen=True)
class Genuine:
    """What was fetched: the folder, and package -> version."""

    folder: Path
    packages: Mapping[str, str]

    @property
    def libraries(self) -> Path:
        """The folder of sid's shared libraries."""
        return self.folder / "root" / "usr" / "lib" / _TRIPLE

    @property
    def headers(self) -> Path:
        """The folder of ROCm's headers."""
        return self.folder / "root" / "usr" / "include"

    @property
    def rocm(self) -> Path:
        """A ROCM_PATH whose lib holds all four libraries under the names that the backend opens."""
        return self.folder / "rocm"

    def file(self, name: str) -> Path:
        """The file of a library."""
        return (self.rocm / "lib" / f"lib{name}.so").resolve()


def folder() -> Path:
    """GEMMTUNE_GENUINE_DIR, else gemmtune-genuine in the user's cache."""
    told = os.environ.get("GEMMTUNE_GENUINE_DIR")
    return Path(told or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemmtune-genuine")


def fetch(*, update: bool = False) -> Genuine:
    """The libraries, fetched where they are not there yet or where `update` asks for it. Raises
    Unobtainable."""
    place = folder()
    stamp = place / "packages.json"
    if update or not stamp.exists():
        found = _download(place)
        known = json.loads(stamp.read_text()) if stamp.exists() else None
        if known != _versions(found):
            stamp.unlink(missing_ok=True)
            _unpack(found, place)
            stamp.write_text(json.dumps(_versions(found), indent=1))
    return Genuine(place, json.loads(stamp.read_text()))


def _download(place: Path) -> list[Path]:
    """The packages' files."""
    if os.uname().machine != "x86_64":
        raise Unobtainable(f"Debian builds these libraries for x86_64, and this is {os.uname().machine}")
    for program in ("apt-get", "dpkg-deb", "tar"):
        if shutil.which(program) is None:
            raise Unobtainable(f"{program} is missing: this needs Debian or one of its derivatives")
    if not KEYRING.exists():
        raise Unobtainable(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "packages.json").exists() and shutil.disk_usage(place).free < _ROOM * 2**30:
        raise Unobtainable(f"{place} has not {_ROOM} GiB free: GEMMTUNE_GENUINE_DIR names another place")
    configuration = _configure(place)
    _apt(configuration, "update")
    install = ("install", "--yes", "--no-install-recommends", *PACKAGES)
    planned = _apt(configuration, "--simulate", *install)
    _apt(configuration, "--download-only", *install)
    _apt(configuration, "autoclean")  # versions that sid has no more
    # Inst libc6 (2.43-7 Debian:unstable [amd64]): libc6_2.43-7_amd64.deb
    names = dict(re.findall(r"^Inst (\S+) \((\S+) ", planned, re.MULTILINE))
    archives = place / "apt" / "cache" / "archives"
    found = [_archive(archives, name, version) for name, version in names.items()]
    headers = place / "apt" / "headers"
    shutil.rmtree(headers, ignore_errors=True)
    headers.mkdir()
    _apt(configuration, "download", *HEADERS, folder=headers)
    return found + sorted(headers.glob("*.deb"))


def _archive(archives: Path, name: str, version: str) -> Path:
    found = list(archives.glob(f"{name}_{version.replace(':', '%3a')}_*.deb"))
    if not found:
        raise Unobtainable(f"apt-get downloaded no {name} {version} into {archives}")
    return found[0]


def _configure(place: Path) -> Path:
    """Writes apt's configuration: nothing of the machine's own but its mirror and Debian's keys."""
    apt = place / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "state" / "status").touch()  # as if nothing were installed
    (apt / "sources.list").write_text(f"deb [arch=amd64 signed-by={KEYRING}] {_mirror()} {SUITE} main\n")
    configuration = apt / "apt.conf"
    configuration.write_text(
        f'Dir::State "{apt}/state";\nDir::State::status "{apt}/state/status";\nDir::Cache "{apt}/cache";\n'
        f'Dir::Etc::sourcelist "{apt}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n'
        'Dir::Etc::preferences "/dev/null";\nDir::Etc::preferencesparts "/dev/null";\n'
        'APT::Architecture "amd64";\nAPT::Architectures { "amd64"; };\nAPT::Sandbox::User "root";\n'
        'Acquire::Languages "none";\nAcquire::Retries "3";\n'
    )
    return configuration


def _mirror() -> str:
    """GEMMTUNE_DEBIAN_MIRROR, else the mirror of Debian that this machine's apt is set up with."""
    told = os.environ.get("GEMMTUNE_DEBIAN_MIRROR")
    if told:
        return told
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for address in done.stdout.split():
        if address.rstrip("/").endswith("/debian"):
            return address
    raise Unobtainable("apt is set up with no mirror of Debian: GEMMTUNE_DEBIAN_MIRROR names one")


def _apt(configuration: Path, *arguments: str, folder: Path | None = None) -> str:
    command = ["apt-get", "--quiet", "--quiet", *arguments]
    environment = {**os.environ, "APT_CONFIG": str(configuration), "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"status {done.returncode}"]
        raise Unobtainable(f"apt-get {arguments[0]} of {SUITE}: {'; '.join(said[-3:])}")
    return done.stdout


def _versions(archives: list[Path]) -> dict[str, str]:
    command = ["dpkg-deb", "--show", "--showformat", "${Package} ${Version}"]
    shown = (
        subprocess.run([*command, str(path)], capture_output=True, text=True, check=True).stdout
        for path in archives
    )
    return dict(sorted((name, version) for name, version in map(str.split, shown)))


def _unpack(archives: list[Path], place: Path) -> None:
    """Extracts the packages' files, but none of their scripts, and links the libraries' plain names."""
    root = place / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    out = [f"--exclude={pattern}" for pattern in LEFT_OUT]
    for archive in archives:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as packed:
            done = subprocess.run(
                ["tar", "-x", "--no-same-owner", "-C", root, *out], stdin=packed.stdout, check=False
            )
        if done.returncode or packed.returncode:
            raise Unobtainable(f"{archive.name} does not unpack into {root}")
    links = place / "rocm" / "lib"
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir(parents=True)
    for name in LIBRARIES:
        candidates = (root / "usr" / "lib" / _TRIPLE).glob(f"lib{name}.so.*")
        found = sorted(candidates, key=lambda path: len(path.name))
        if not found:
            raise Unobtainable(f"lib{name}.so is in none of {', '.join(PACKAGES)}: has sid renamed it?")
        (links / f"lib{name}.so").symlink_to(os.path.relpath(found[0], links))


def main() -> None:
    """Fetches, and prints the versions."""
    try:
        found = fetch(update="--update" in sys.argv[1:])
    except Unobtainable as error:
        raise SystemExit(f"the genuine libraries cannot be had: {error}") from None
    print(f"{found.folder}:")
    for name, version in found.packages.items():
        print(f"  {name} {version}")


if __name__ == "__main__":
    main()
