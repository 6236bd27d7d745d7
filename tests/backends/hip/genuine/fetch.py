"""Downloads the genuine ROCm libraries of Debian sid and unpacks them into a folder outside of the tree.

apt runs with its own configuration, state and cache, so this machine's package state does not change. The
packages are downloaded, never installed. A second call uses the folder as it is; with `--update` it asks sid
for newer versions.
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
#: apt adds their dependencies, including sid's C and C++ libraries.
PACKAGES = (
    "libhipblaslt1",
    "librocblas4",
    "libamdhip64-6",
    "libhiprtc6",
    "libhiprtc-builtins6",
    "rocm-device-libs-21",
)
#: Packages of headers, downloaded without their dependencies.
HEADERS = ("libhipblaslt-dev", "librocblas-dev", "libamdhip64-dev", "libhipblas-common-dev")
#: Not unpacked: code objects, which the fake runtime never loads (3 of 6 GB), and documentation.
EXCLUDED = ("*.co", "*.hsaco", "*.a", "./usr/share/doc/*", "./usr/share/lintian/*")
#: The libraries that the backend opens.
LIBRARIES = ("amdhip64", "hiprtc", "hipblaslt", "rocblas")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_TRIPLE = "x86_64-linux-gnu"
#: GiB needed for the packages and the unpacked files.
_REQUIRED_GIB = 4


class Unavailable(Exception):
    """The libraries cannot be fetched or run on this machine; the message says why."""


@dataclass(frozen=True)
class Genuine:
    """The fetched libraries: their folder, and the version of each package."""

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
    chosen = os.environ.get("GEMMTUNE_GENUINE_DIR")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else caches / "gemmtune-genuine"


def fetch(*, update: bool = False) -> Genuine:
    """The libraries, downloaded if the folder has none or if `update` is set. Raises Unavailable."""
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
    """Downloads the packages; returns their files."""
    if os.uname().machine != "x86_64":
        raise Unavailable(f"Debian builds these libraries for x86_64, and this is {os.uname().machine}")
    for program in ("apt-get", "dpkg-deb", "tar"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is missing: this needs Debian or one of its derivatives")
    if not KEYRING.exists():
        raise Unavailable(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "packages.json").exists() and shutil.disk_usage(place).free < _REQUIRED_GIB * 2**30:
        raise Unavailable(
            f"{place} has less than {_REQUIRED_GIB} GiB free; set GEMMTUNE_GENUINE_DIR to another folder"
        )
    configuration = _configure(place)
    _apt(configuration, "update")
    install = ("install", "--yes", "--no-install-recommends", *PACKAGES)
    planned = _apt(configuration, *install, "--simulate")
    _apt(configuration, *install, "--download-only")
    _apt(configuration, "autoclean")  # removes versions that sid no longer has
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
        raise Unavailable(f"apt-get downloaded no {name} {version} into {archives}")
    return found[0]


def _configure(place: Path) -> Path:
    """Writes apt's configuration. Of this machine's own it uses the mirror and Debian's keys."""
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
        # Without this, apt-get update succeeds if the mirror cannot be reached.
        'APT::Update::Error-Mode "any";\n'
    )
    return configuration


def _mirror() -> str:
    """GEMMTUNE_DEBIAN_MIRROR, else the Debian mirror of this machine's own apt configuration."""
    chosen = os.environ.get("GEMMTUNE_DEBIAN_MIRROR")
    if chosen:
        return chosen
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for address in done.stdout.split():
        if address.rstrip("/").endswith("/debian"):
            return address
    raise Unavailable("this machine's apt has no Debian mirror; set GEMMTUNE_DEBIAN_MIRROR to one")


def _apt(configuration: Path, *arguments: str, folder: Path | None = None) -> str:
    command = ["apt-get", "--quiet", "--quiet", *arguments]
    environment = {**os.environ, "APT_CONFIG": str(configuration), "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"status {done.returncode}"]
        raise Unavailable(f"apt-get {arguments[0]} of {SUITE} fails: {'; '.join(lines[-3:])}")
    return done.stdout


def _versions(archives: list[Path]) -> dict[str, str]:
    command = ["dpkg-deb", "--show", "--showformat", "${Package} ${Version}"]
    shown = (
        subprocess.run([*command, str(path)], capture_output=True, text=True, check=True).stdout
        for path in archives
    )
    return dict(sorted((name, version) for name, version in map(str.split, shown)))


def _unpack(archives: list[Path], place: Path) -> None:
    """Extracts the packages' files without running their scripts, and links the libraries' unversioned
    names."""
    root = place / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    excluded = [f"--exclude={pattern}" for pattern in EXCLUDED]
    for archive in archives:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as packed:
            done = subprocess.run(
                ["tar", "-x", "--no-same-owner", "-C", root, *excluded], stdin=packed.stdout, check=False
            )
        if done.returncode or packed.returncode:
            raise Unavailable(f"{archive.name} cannot be unpacked into {root}")
    links = place / "rocm" / "lib"
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir(parents=True)
    for name in LIBRARIES:
        candidates = (root / "usr" / "lib" / _TRIPLE).glob(f"lib{name}.so.*")
        found = sorted(candidates, key=lambda path: len(path.name))
        if not found:
            raise Unavailable(
                f"none of {', '.join(PACKAGES)} contains lib{name}.so.*; did sid rename a package?"
            )
        (links / f"lib{name}.so").symlink_to(os.path.relpath(found[0], links))


def main() -> None:
    """Fetches the libraries and prints the packages' versions."""
    try:
        found = fetch(update="--update" in sys.argv[1:])
    except Unavailable as error:
        raise SystemExit(f"the genuine libraries cannot be fetched: {error}") from None
    print(f"{found.folder}:")
    for name, version in found.packages.items():
        print(f"  {name} {version}")


if __name__ == "__main__":
    main()
