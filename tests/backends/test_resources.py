"""What lies beside a binary."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.resources import SUFFIX, Resources, read, write


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    kernels = {"gemm": Resources(128, 1024, 8), "reduce": Resources(None, 0, None)}
    write(tmp_path / f"0123{SUFFIX}", kernels)
    assert read(tmp_path / "0123.cubin") == kernels


@pytest.mark.parametrize(
    "text", ["", "[]", '{"gemm": 5}', '{"gemm": {"registers": 5}}', '{"gemm": {"other": 5}}']
)
def test_what_is_no_such_file(text: str, tmp_path: Path) -> None:
    (tmp_path / f"0123{SUFFIX}").write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011  (json's words, or ours)
        read(tmp_path / "0123.cubin")
    with pytest.raises(OSError, match="none"):
        read(tmp_path / "none.cubin")
