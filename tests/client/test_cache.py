"""Bundles on disk: those that were used longest ago make room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gemmtune import BundleError, cache
from gemmtune.bundle import Bundle
from gemmtune.cache import Cache

from tests.client import bundles


def kept(found: Cache, file: Path) -> Bundle:
    """Files a bundle as a download that has just ended."""
    with found.part() as part:
        part.append(file.read_bytes())
        return found.keep(part, None)


def test_bundles_over_the_limit_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Cache(tmp_path / "cache", "http://service")
    files = [bundles.simple(tmp_path / f"{count}.gtb", count=count) for count in (1, 2, 3)]
    monkeypatch.setattr(cache, "most_bytes", lambda: files[0].stat().st_size + files[2].stat().st_size)
    digests = []
    for age, file in enumerate(files[:2]):
        digests.append(kept(found, file).digest)
        path = found.bundle(digests[-1])
        assert path is not None
        os.utime(path, (1000 + age, 1000 + age))
    opened = found.open(digests[0])  # used last, though it came first
    assert opened is not None
    third = kept(found, files[2])
    assert [found.bundle(one) is not None for one in digests] == [True, False]

    monkeypatch.setattr(cache, "most_bytes", lambda: 0)
    kept(found, files[2])
    assert found.bundle(digests[0]) is None
    assert found.bundle(third.digest) is not None, "the newest stays, whatever its size"
    opened.check()  # what is open is read to its end


def test_the_limit_is_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache.most_bytes() == 8192 * 2**20
    monkeypatch.setenv(cache.SIZE_SETTING, "3")
    assert cache.most_bytes() == 3 * 2**20
    monkeypatch.setenv(cache.SIZE_SETTING, "much")
    with pytest.raises(BundleError, match="GEMMTUNE_CLIENT_CACHE_MIB is 'much'"):
        Cache(tmp_path, "http://service")
