"""The families of our own kernels: the one list that every vendor's backend takes them from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from backends.kernels.async_copy import AsyncCopy
from backends.kernels.family import KernelFamily
from backends.kernels.gemv_persistent import GemvPersistent, SkinnyPersistent
from backends.kernels.hopper import TileWgmma
from backends.kernels.ladder import (
    BlockTile1d,
    BlockTile2d,
    Coalesced,
    DoubleBuffered,
    Naive,
    SharedTile,
    Vectorized,
    WarpTile,
)
from backends.kernels.short_k import ShortK
from backends.kernels.skinny_ring import SkinnyRing
from backends.kernels.skinny_shifted import SkinnyShifted
from backends.kernels.skinny_short import SkinnyShort
from backends.kernels.small_batch import SmallBatch
from backends.kernels.stream_k import StreamK
from backends.kernels.streaming import Gemv, Skinny, SkinnyMma
from backends.kernels.tensor_cores import TileMma

#: Where the headers are.
HEADERS = Path(__file__).parent

#: In the order that a search takes turns: those for few columns, small products, tensor cores, then the
#: ladder from its top.
FAMILIES: Mapping[str, KernelFamily] = {
    family.name: family
    for family in (
        GemvPersistent(), Gemv(), SkinnyPersistent(), Skinny(), SkinnyShort(), SkinnyRing(), SkinnyShifted(),
        SkinnyMma(), SmallBatch(), ShortK(), TileWgmma(), TileMma(), StreamK(), AsyncCopy(), DoubleBuffered(),
        WarpTile(), Vectorized(), BlockTile2d(), BlockTile1d(), SharedTile(), Coalesced(), Naive(),
    )
}  # fmt: skip
