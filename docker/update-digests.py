#!/usr/bin/env python3
"""Adds the digest to every image that the files here name by version, or renews it: name:1.2@sha256:...

Asks the images' registries, over HTTPS and without an account. Run it, look at the difference, and build.

    docker/update-digests.py                 writes docker/Dockerfile and docker/compose.yaml
    docker/update-digests.py --check         writes nothing; exit code 1 if a digest is missing or old
    docker/update-digests.py --mirror URL    asks this registry instead, for all images
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).parent
FILES = ("Dockerfile", "compose.yaml")
#: registry/name:version, perhaps with a digest. The registry has a dot; images of our own have none.
IMAGE = re.compile(
    r"(?P<image>(?P<registry>[a-z0-9-]+(?:\.[a-z0-9-]+)+)/(?P<name>[a-z0-9._/-]+):(?P<tag>v?\d[\w.-]*))"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
HOSTS = {"docker.io": "registry-1.docker.io"}
MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
SECONDS = 30


class Refused(Exception):
    """A registry that does not tell an image's digest, and why."""


def digest_of(image: re.Match[str], mirror: str | None) -> str:
    """The digest of the list of an image's platforms. Raises Refused."""
    host = HOSTS.get(image["registry"], image["registry"])
    url = f"{mirror or 'https://' + host}/v2/{image['name']}/manifests/{image['tag']}"
    try:
        try:
            found = _head(url, None)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            found = _head(url, _token(error.headers.get("WWW-Authenticate", "")))
    except (OSError, ValueError) as error:  # HTTPError is an OSError
        raise Refused(f"{image['image']}: {url} does not answer with a digest: {error}") from error
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        raise Refused(f"{image['image']}: {url} answers with no Docker-Content-Digest")
    return found


def _head(url: str, token: str | None) -> str:
    headers = {"Accept": MANIFESTS} | ({"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers, method="HEAD"), timeout=SECONDS
    ) as answer:
        return str(answer.headers.get("Docker-Content-Digest", ""))


def _token(challenge: str) -> str:
    """An anonymous token from the server that a challenge (Bearer realm="...",service="...") names."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.lower().startswith("bearer ") or "realm" not in fields:
        raise ValueError(f"it asks for an account ({challenge.partition(' ')[0] or 'no challenge'})")
    query = urllib.parse.urlencode({key: fields[key] for key in ("service", "scope") if key in fields})
    with urllib.request.urlopen(f"{fields['realm']}?{query}", timeout=SECONDS) as answer:
        found = json.load(answer)
    return str(found.get("token") or found["access_token"])


def main() -> int:
    """Exit code 0; 1 if --check finds something; 2, and nothing is written, if a registry does not answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--mirror", metavar="URL", help="the registry to ask, for all images")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files are")
    options = parser.parse_args()

    texts = {options.folder / name: (options.folder / name).read_text() for name in FILES}
    images = {match["image"]: match for text in texts.values() for match in IMAGE.finditer(text)}
    try:
        digests = {name: digest_of(match, options.mirror) for name, match in sorted(images.items())}
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    changed = 0
    for path, text in texts.items():
        new = IMAGE.sub(lambda match: f"{match['image']}@{digests[match['image']]}", text)
        changed += new != text
        if new != text and not options.check:
            path.write_text(new)
    for name, digest in digests.items():
        print(f"{name}@{digest}")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
