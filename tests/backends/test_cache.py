"""The binary cache: a whole file or none, whatever else happens."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.cache import BinaryCache, default_cache_dir
from backends.errors import GemmtuneError, StorageError

ROOT = Path(__file__).parents[2]
KEY = BinaryCache.key({"a.cpp": "int main;"}, "x86-64-v3", "g++ 14", ["-O3"])


def writer(content: bytes) -> Callable[[Path], None]:
    def build(path: Path) -> None:
        path.write_bytes(content)

    return build


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if not path.is_dir()]


@pytest.fixture
def cache(tmp_path: Path) -> BinaryCache:
    return BinaryCache(tmp_path / "deep" / "cache")


# ---- keys --------------------------------------------------------------------------------------

INPUTS: dict[str, Any] = {
    "sources": {"a.cpp": "one", "b.h": "two"}, "arch": "sm_90", "compiler": "nvrtc 13.1",
    "flags": ("-O3", "-g"),
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"sources": {"a.cpp": "one", "b.h": "two "}}, {"sources": {"a.cpp": "one"}},
        {"sources": {"a.cpp": "two", "b.h": "one"}}, {"sources": {"a.cpp": "one", "c.h": "two"}},
        {"arch": "sm_90a"}, {"compiler": "nvrtc 13.2"}, {"flags": ("-O3",)}, {"flags": ()},
        {"flags": ("-g", "-O3")}, {"flags": ("-O3 -g",)},
        {"arch": "nvrtc 13.1", "compiler": "sm_90"},
    ],
)  # fmt: skip
def test_everything_that_shapes_a_binary_is_in_its_key(change: dict[str, Any]) -> None:
    assert BinaryCache.key(**{**INPUTS, **change}) != BinaryCache.key(**INPUTS)


TEXT = st.text("ab ,", max_size=2)
KEYED = st.tuples(st.dictionaries(TEXT, TEXT, max_size=2), TEXT, TEXT, st.lists(TEXT, max_size=2))


@given(KEYED, KEYED)
def test_equal_keys_mean_equal_inputs(one: Any, other: Any) -> None:
    assert (BinaryCache.key(*one) == BinaryCache.key(*other)) is (one == other)


def test_a_key_is_stable_and_free_of_order() -> None:
    sources = dict(reversed(INPUTS["sources"].items()))
    turned = {**INPUTS, "sources": sources, "flags": ["-O3", "-g"]}
    assert BinaryCache.key(**turned) == BinaryCache.key(**INPUTS) == "3ef3f14f78f004c86edecf03"


# ---- put and get -------------------------------------------------------------------------------


def test_what_is_put_is_found(cache: BinaryCache) -> None:
    assert cache.get(KEY, ".so") is None
    assert not cache.root.exists()
    path = cache.put(KEY, ".so", writer(b"binary"))
    assert path == cache.path(KEY, ".so") == cache.get(KEY, ".so")
    assert path.read_bytes() == b"binary"
    assert files(cache.root) == [path]
    assert cache.get(KEY, ".cubin") is None
    assert cache.get(KEY[::-1], ".so") is None
    assert BinaryCache(cache.root).get(KEY, ".so") == path


def test_a_second_put_replaces_the_first(cache: BinaryCache) -> None:
    cache.put(KEY, ".so", writer(b"old"))
    assert cache.put(KEY, ".so", writer(b"new")).read_bytes() == b"new"
    assert len(files(cache.root)) == 1


def test_a_binary_appears_only_when_it_is_whole(cache: BinaryCache) -> None:
    def build(path: Path) -> None:
        assert path.parent == cache.path(KEY, ".so").parent
        assert path.suffix == ".so"
        path.write_bytes(b"half")
        assert cache.get(KEY, ".so") is None
        path.write_bytes(b"half and half")

    assert cache.put(KEY, ".so", build).read_bytes() == b"half and half"


def test_an_empty_file_is_a_miss(cache: BinaryCache) -> None:
    path = cache.put(KEY, ".so", writer(b""))
    assert cache.get(KEY, ".so") is None
    path.write_bytes(b"")
    assert cache.get(KEY, ".so") is None
    assert cache.put(KEY, ".so", writer(b"binary")) == cache.get(KEY, ".so")


def test_two_puts_at_once_both_end_with_a_whole_file(cache: BinaryCache) -> None:
    barrier = threading.Barrier(2, timeout=30)
    contents = [b"1" * 100_000, b"2" * 50_000]

    def put(content: bytes) -> bytes:
        def build(path: Path) -> None:
            barrier.wait()
            path.write_bytes(content)
            barrier.wait()

        return cache.put(KEY, ".so", build).read_bytes()

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(put, contents))
    assert set(results) <= set(contents)
    path = cache.get(KEY, ".so")
    assert path is not None
    assert path.read_bytes() in contents
    assert files(cache.root) == [path]


def test_a_reader_never_sees_a_part(cache: BinaryCache) -> None:
    contents = [bytes([i]) * 20_000 for i in range(1, 30)]
    done = threading.Event()

    def read() -> set[bytes]:
        seen = set()
        while not done.is_set():
            path = cache.get(KEY, ".so")
            if path is not None:
                seen.add(path.read_bytes())
        return seen

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            for content in contents:
                cache.put(KEY, ".so", writer(content))
        finally:
            done.set()
        assert reader.result() <= set(contents)


class Refusal(Exception):
    """A compiler that says no."""


@pytest.mark.parametrize("error", [Refusal("no"), KeyboardInterrupt(), ValueError("bad")])
def test_a_builder_that_raises_leaves_nothing(cache: BinaryCache, error: BaseException) -> None:
    def build(path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    with pytest.raises(type(error)) as raised:
        cache.put(KEY, ".so", build)
    assert raised.value is error
    assert cache.get(KEY, ".so") is None
    assert files(cache.root) == []


def test_a_builder_that_raises_keeps_the_binary_of_before(cache: BinaryCache) -> None:
    def build(path: Path) -> None:
        path.write_bytes(b"half")
        raise Refusal

    path = cache.put(KEY, ".so", writer(b"good"))
    with pytest.raises(Refusal):
        cache.put(KEY, ".so", build)
    assert cache.get(KEY, ".so") == path
    assert path.read_bytes() == b"good"
    assert files(cache.root) == [path]


def test_a_builder_whose_disk_is_full_leaves_nothing(cache: BinaryCache) -> None:
    def build(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        cache.put(KEY, ".so", build)
    assert files(cache.root) == []


# ---- disks that refuse -------------------------------------------------------------------------


def assert_storage_error(error: StorageError, path: Path, reason: int) -> None:
    assert isinstance(error, GemmtuneError)
    assert isinstance(error, OSError)
    assert str(path) in str(error)
    assert os.strerror(reason) in str(error)
    assert "GEMMTUNE_CACHE_DIR" in str(error)
    assert isinstance(error.__cause__, OSError)


def refuse(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["os.fsync", "tempfile.mkstemp", "pathlib.Path.replace"])
def test_a_full_disk_is_a_storage_error(
    cache: BinaryCache, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(step, refuse)
    with pytest.raises(StorageError) as refused:
        cache.put(KEY, ".so", writer(b"binary"))
    assert_storage_error(refused.value, cache.path(KEY, ".so"), errno.ENOSPC)
    assert files(cache.root) == []
    monkeypatch.undo()
    assert cache.get(KEY, ".so") is None
    assert cache.put(KEY, ".so", writer(b"binary")) == cache.get(KEY, ".so")


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    cache = BinaryCache(tmp_path / "cache")
    assert cache.get(KEY, ".so") is None
    with pytest.raises(StorageError) as refused:
        cache.put(KEY, ".so", writer(b"binary"))
    assert_storage_error(refused.value, cache.path(KEY, ".so"), errno.ENOTDIR)


def test_a_folder_where_the_binary_should_be(cache: BinaryCache) -> None:
    (cache.path(KEY, ".so") / "inside").mkdir(parents=True)
    with pytest.raises(StorageError) as refused:
        cache.put(KEY, ".so", writer(b"binary"))
    assert_storage_error(refused.value, cache.path(KEY, ".so"), errno.EISDIR)
    assert files(cache.root) == []


IN_A_MOUNT = """
import sys
from pathlib import Path
from backends.cache import BinaryCache
from backends.errors import StorageError

root, key = Path(sys.argv[1]), sys.argv[2]
try:
    BinaryCache(root / "cache").put(key, ".so", lambda path: path.write_bytes(b"binary") and None)
except StorageError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("options", "prepare", "reason"),
    [
        ("size=64k,nr_inodes=3", "true", errno.ENOSPC),  # the mount, two folders, no file
        ("size=64k", 'mount -o remount,ro none "$0"', errno.EROFS),
    ],
)
@pytest.mark.mounts
def test_a_disk_that_really_refuses(tmp_path: Path, options: str, prepare: str, reason: int) -> None:
    mounted = f'mount -t tmpfs -o {options} none "$0" && {prepare}'
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    run = subprocess.run(
        [*namespace, f'{mounted} && exec "$1" -c "$2" "$0" "$3"',
         str(tmp_path), sys.executable, IN_A_MOUNT, KEY],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert str(BinaryCache(tmp_path / "cache").path(KEY, ".so")) in run.stdout
    assert os.strerror(reason) in run.stdout


# ---- where it lies -----------------------------------------------------------------------------


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "gemmtune"
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("XDG_CACHE_HOME")
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", unset)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert default_cache_dir() == tmp_path / "home" / ".cache" / "gemmtune"
