"""Folders and files that another user could have written are not trusted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.errors import StorageError
from backends.owned import check_file, check_folder, open_appended, open_locked


def kept(root: Path, name: str = "a" * 24) -> tuple[BinaryCache, Path]:
    def build(path: Path) -> None:
        path.write_bytes(b"x" * 10)

    cache = BinaryCache(root)
    return cache, cache.put(name, ".so", build)


def spoil_mode(path: Path) -> None:
    path.chmod(0o666)


def spoil_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def spoil_root(path: Path) -> None:
    path.parent.parent.chmod(0o775)


def spoil_link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


@pytest.mark.parametrize("spoil", [spoil_mode, spoil_folder, spoil_root, spoil_link])
def test_a_binary_that_others_could_have_written_is_not_loaded(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    cache, path = kept(tmp_path / "kernels")
    assert cache.get("a" * 24, ".so") == path
    spoil(path)
    with pytest.raises(StorageError, match="cannot be trusted"):
        cache.get("a" * 24, ".so")


def test_what_another_user_owns_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch(0o600)
    check_file(tmp_path / "file")
    check_folder(tmp_path)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    for check, path in (
        (check_file, tmp_path / "file"),
        (check_folder, tmp_path),
        (open_locked, tmp_path / "file"),
    ):
        with pytest.raises(StorageError, match=f"belongs to user {mine}"):
            check(path)


def test_a_lock_is_a_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name, why in (("fifo", "no plain file"), ("link", "it is a link")):
        with pytest.raises(StorageError, match=why):
            open_locked(tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()
    os.close(open_locked(tmp_path / "lock"))
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_binaries_that_were_not_used_for_longest_are_pruned(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    paths = [kept(tmp_path, f"{n:024}")[1] for n in range(4)]
    for age, path in zip((9, 8, 7, 0), paths, strict=True):
        then = path.stat().st_mtime - age * 3600
        os.utime(path, (then, then))
    cache.get(f"{0:024}", ".so")  # used: the youngest now
    assert cache.prune(25) == 20
    assert [path.exists() for path in paths] == [True, False, False, True]
    assert cache.prune(0) == 0, "binaries used within the hour stay"


def test_what_is_appended_to_is_this_users_or_roots_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    descriptor = open_appended(path, "advice")
    os.close(descriptor)
    assert path.stat().st_mode & 0o777 == 0o600
    mine = path.stat().st_uid
    for user, taken in ((mine, True), (0, True), (mine + 1, False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        if taken:
            os.close(open_appended(path, "advice"))
            continue
        with pytest.raises(StorageError, match=r"belongs to user .*; advice$"):
            open_appended(path, "advice")


def test_another_users_link_to_a_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "logs")
    os.close(open_appended(tmp_path / "link" / "log", "advice"))
    lstat = Path.lstat
    other = os.geteuid() + 1

    def owned(path: Path) -> os.stat_result:
        found = list(lstat(path))
        found[4] = other
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", owned)
    with pytest.raises(StorageError, match=r"another user's link; advice$"):
        open_appended(tmp_path / "link" / "log", "advice")


def test_another_user_could_replace_what_is_in_a_folder_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = Path.stat
    other = os.geteuid() + 2

    def owned(path: Path, **options: bool) -> os.stat_result:
        found = list(stat(path, **options))
        found[4] = other
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", owned)
    monkeypatch.setattr(os, "geteuid", lambda: other - 1)
    with pytest.raises(StorageError, match=f"^{tmp_path} cannot be trusted: it belongs to user {other}, not"):
        open_appended(tmp_path / "log", "advice")
    assert not os.path.exists(tmp_path / "log")


def test_a_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match="log cannot be trusted: it is a link"):
        open_appended(tmp_path / "log", "advice")
