"""Fetches the JavaScript of others that the pages and their tests use, from npm.

    python -m service.dashboard.vendor            compare the files here with the recorded checksums
    python -m service.dashboard.vendor --fetch    download the packages, check them, and write their files

vendor.json names each package with its version, its licence, the digest that npm publishes for it, the files
that are taken and their SHA-256. To update a package, change its version and integrity, empty its files'
checksums, and fetch: empty ones are filled in. Every package's licence is beside its files.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
import tarfile
from hashlib import sha256, sha512
from pathlib import Path
from typing import Any

import httpx

RECORD = Path(__file__).with_name("vendor.json")
ROOT = RECORD.parent.parent.parent
_REGISTRY = "https://registry.npmjs.org"


class VendorError(Exception):
    """A package or a file is not what is recorded."""


def target(package: dict[str, Any], name: str) -> Path:
    """Where a file of a package is kept. A licence is named so that it is served as text."""
    base = name.rpartition("/")[2]
    folder: str = package["folder"]
    return ROOT / folder / (base if "." in base else f"{base}.txt")


def check(record: dict[str, Any]) -> list[str]:
    """What is wrong with the files here; nothing if all are as recorded."""
    faults = []
    for name, package in record.items():
        for file, digest in package["files"].items():
            path = target(package, file)
            if not path.is_file():
                faults.append(f"{path.relative_to(ROOT)} of {name} is missing")
            elif sha256(path.read_bytes()).hexdigest() != digest:
                faults.append(f"{path.relative_to(ROOT)} is not {name} {package['version']}'s")
    return faults


def fetch(record: dict[str, Any]) -> None:
    """Downloads every package and writes its files; fills empty checksums in. Raises VendorError."""
    for name, package in record.items():
        url = f"{_REGISTRY}/{name}/-/{name}-{package['version']}.tgz"
        data = httpx.get(url, follow_redirects=True, timeout=60).raise_for_status().content
        found = "sha512-" + base64.b64encode(sha512(data).digest()).decode()
        if found != package["integrity"]:
            raise VendorError(f"{url} has the digest {found}, not {package['integrity']}")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for file in package["files"]:
                _take(archive, name, package, file)


def _take(archive: tarfile.TarFile, name: str, package: dict[str, Any], file: str) -> None:
    member = archive.extractfile(f"package/{file}")
    if member is None:
        raise VendorError(f"{name} {package['version']} has no file {file}")
    content = member.read()
    digest = sha256(content).hexdigest()
    if package["files"][file] not in ("", digest):
        raise VendorError(f"{file} of {name} has the digest {digest}, not {package['files'][file]}")
    package["files"][file] = digest
    path = target(package, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main() -> None:
    """Compares, or with --fetch downloads."""
    parser = argparse.ArgumentParser(description="Fetches or checks the JavaScript of others.")
    parser.add_argument("--fetch", action="store_true", help="download the packages from npm")
    record = json.loads(RECORD.read_text())
    if parser.parse_args().fetch:
        fetch(record)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    faults = check(record)
    print("\n".join(faults) or "all files are as recorded")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
