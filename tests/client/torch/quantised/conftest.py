"""A table of emulated kernels, compiled once a test run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backends.cache import BinaryCache
from backends.problem import GemmProblem, from_linear

if TYPE_CHECKING:
    from gemmtune import Table

#: Sizes of the table's weights, and M of its rows.
N, K, ROWS = 32, 256, (1, 4)
#: Rows of weights with scales of blocks: two blocks, of which the last has fewer.
FP8_ROWS = 200


def weights(m: int, kind: str = "uint4", zero: str = "none", **options: Any) -> GemmProblem:
    """x[m, K] by w[N, K]; groups of 128 with scales of the activations' type unless `options` say
    otherwise."""
    dtype = options.pop("dtype", "bf16")
    how = {"dtype_b": kind, "scale_b": "block_1x128", "scale_dtype": dtype, "zero_b": zero, **options}
    return from_linear(m, how.pop("n", N), how.pop("k", K), dtype, **how)


def problems() -> Iterator[tuple[GemmProblem, str]]:
    """What the table has rows for, and the family of each."""
    for m in ROWS:
        yield weights(m, zero="eight"), "dequant-ring"
    yield weights(4, zero="eight", bias="bf16"), "dequant-ring"
    yield weights(2, zero="uint4"), "dequant-ring"
    yield weights(2, zero="float"), "dequant-gemv"
    yield weights(2, zero="shift"), "dequant-gemv"
    yield weights(2, "int4"), "dequant-gemv"
    yield weights(2, zero="none", scale_b="block_1x32"), "dequant-gemv"
    yield weights(2, zero="eight", scale_b="outer", dtype="fp16", scale_dtype="fp32"), "dequant-gemv"
    yield weights(2, "int8", scale_b="outer"), "dequant-ring"
    yield weights(2, "int8", scale_b="tensor", scale_dtype="fp32"), "dequant-gemv"
    yield weights(2, "fp4_e2m1", scale_b="block_1x32", scale_dtype=None), "dequant-ring"
    yield weights(4, "fp4_e2m1", scale_b="block_1x32", scale_dtype=None, dtype="fp16"), "dequant-gemv"
    yield weights(2, "fp8_e4m3", scale_b="outer"), "dequant-ring"
    yield weights(2, "fp8_e4m3", scale_b="tensor", scale_dtype="fp32", dtype="fp16"), "dequant-gemv"
    yield weights(2, "fp8_e4m3", n=FP8_ROWS, scale_b="block_128x128", scale_dtype="fp32"), "dequant-ring"


@pytest.fixture(scope="session")
def weight_bundle(cache: BinaryCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of problems()."""
    from tests.client.torch.quantised.emulated import write

    return write(tmp_path_factory.mktemp("weights") / "rows.gtb", problems(), cache)


@pytest.fixture
def weight_table(weight_bundle: Path) -> Table:
    """The table of problems()."""
    import gemmtune

    return gemmtune.load(weight_bundle)
