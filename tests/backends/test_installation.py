"""A stranger's package of the same name is found before it does harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backends.installation import ShadowedPackage, check_installation

ROOT = Path(__file__).parent.parent.parent


def test_this_installation_is_whole() -> None:
    check_installation()


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(ShadowedPackage, match=r"'nobody_here' .* found nothing"):
        check_installation(("nobody_here",))


def test_a_stranger_is_named_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "tuners").mkdir()
    (tmp_path / "tuners" / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import backends.installation as i\n"
        f"sys.path.insert(0, {str(tmp_path)!r}); i.check_installation()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert done.returncode == 1
    command = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from service.entry import main\n"
    command += f"sys.path.insert(0, {str(tmp_path)!r}); main()"
    entry = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert entry.returncode == 2
    assert f"is hidden by {tmp_path / 'tuners'}" in entry.stderr
    assert f"is hidden by {tmp_path / 'tuners'}" in done.stderr
    assert "environment of its own" in done.stderr


def test_a_folder_without_code_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stranger_folder").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ShadowedPackage, match="a folder without code"):
        check_installation(("stranger_folder",))
