"""Exchanges between the lanes of wavefronts of 64: mistakes that only they show, or that they show too."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.archs import GPU_ARCHS
from backends.kernels.families import FAMILIES
from backends.problem import from_linear
from backends.solution import Parameter
from tests.backends.kernels.emulator.host import build, copied_headers
from tests.backends.kernels.matrix_cores import wrong_of

ROW_OF_WARP = {32: GPU_ARCHS["gfx1100"], 64: GPU_ARCHS["gfx942"]}
PROBLEM = from_linear(1, 70, 1160, "bf16", bias="bf16")
VALUES: dict[str, Parameter] = {
    "stream": "a", "rows": 2, "unroll": 2, "warps_m": 2, "warps_k": 2, "splits": 1, "ahead": 0,
}  # fmt: skip
#: Header, its text, what stands there instead, and the warps with which the product is wrong. A lane number
#: or a shuffle's mask of five bits is right with warps of 32.
MISTAKES = {
    "mask of five bits": (
        "device/unaligned_loads.h", "halve<N, kWarp / 2>(value, lane)", "halve<N, 16>(value, lane)", {64},
    ),
    "lane of five bits": (
        "emulator/host.h", "(static_cast<int>(thread_index() % kWarp) ^ mask)",
        "(static_cast<int>(thread_index() % 32) ^ mask)", {64},
    ),
    "lanes swapped": (
        "device/unaligned_loads.h", "const bool upper = lane & OFFSET;",
        "const bool upper = !(lane & OFFSET);", {32, 64},
    ),
    "barrier dropped": (
        "families/skinny.h", "            block_barrier();\n            for (int i", "            for (int i",
        {32, 64},
    ),
}  # fmt: skip


def wrong(headers: Path, folder: Path, warp: int) -> str:
    """What is wrong with a matrix times a vector by the headers of a folder."""
    config = FAMILIES["gemv"].config(PROBLEM, VALUES, ROW_OF_WARP[warp])
    (one,) = build([config], folder, warp, headers)
    return wrong_of(one, PROBLEM)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_an_exchange_shows(name: str, tmp_path: Path) -> None:
    header, text, mistake, warps = MISTAKES[name]
    path = copied_headers(tmp_path / "headers") / header
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, mistake))
    found = {warp for warp in (32, 64) if wrong(tmp_path / "headers", tmp_path, warp)}
    assert found == warps


def test_without_a_mistake_both_are_right(tmp_path: Path) -> None:
    headers = copied_headers(tmp_path / "headers")
    assert {warp: wrong(headers, tmp_path, warp) for warp in (32, 64)} == {32: "", 64: ""}
