"""The registry of our kernel families, which every vendor's backend uses."""

from __future__ import annotations

from collections.abc import Mapping

from backends.kernels.families.async_copy import AsyncCopy
from backends.kernels.families.block_tile_1d import BlockTile1d
from backends.kernels.families.block_tile_2d import BlockTile2d
from backends.kernels.families.bytes_ring import BytesRing
from backends.kernels.families.bytes_tile_mma import BytesTileMma
from backends.kernels.families.coalesced import Coalesced
from backends.kernels.families.dequant_gemv import DequantGemv
from backends.kernels.families.dequant_mfma import DequantMfma
from backends.kernels.families.dequant_mma import DequantMma
from backends.kernels.families.dequant_ring import DequantRing
from backends.kernels.families.dequant_tile_mma import DequantTileMma
from backends.kernels.families.dequant_tile_wgmma import DequantTileWgmma
from backends.kernels.families.dequant_tma_wgmma import DequantTmaWgmma
from backends.kernels.families.dequant_wgmma import DequantWgmma
from backends.kernels.families.dequant_wmma import DequantWmma
from backends.kernels.families.double_buffered import DoubleBuffered
from backends.kernels.families.gemv import Gemv
from backends.kernels.families.gemv_persistent import GemvPersistent
from backends.kernels.families.grouped_dequant_mfma import GroupedDequantMfma
from backends.kernels.families.grouped_dequant_wgmma import GroupedDequantWgmma
from backends.kernels.families.grouped_dequant_wmma import GroupedDequantWmma
from backends.kernels.families.grouped_mfma import GroupedMfma
from backends.kernels.families.grouped_ring import GroupedRing
from backends.kernels.families.grouped_tile import GroupedTile
from backends.kernels.families.grouped_wgmma import GroupedWgmma
from backends.kernels.families.grouped_wmma import GroupedWmma
from backends.kernels.families.mxfp4_mfma import Mxfp4Mfma
from backends.kernels.families.mxfp4_tile_mma import Mxfp4TileMma
from backends.kernels.families.naive import Naive
from backends.kernels.families.packed_imma import PackedImma
from backends.kernels.families.packed_mma import PackedMma
from backends.kernels.families.shared_tile import SharedTile
from backends.kernels.families.short_k import ShortK
from backends.kernels.families.skinny import Skinny
from backends.kernels.families.skinny_mma import SkinnyMma
from backends.kernels.families.skinny_persistent import SkinnyPersistent
from backends.kernels.families.skinny_ring import SkinnyRing
from backends.kernels.families.skinny_shifted import SkinnyShifted
from backends.kernels.families.skinny_short import SkinnyShort
from backends.kernels.families.small_batch import SmallBatch
from backends.kernels.families.stream_k import StreamK
from backends.kernels.families.tile_mfma import TileMfma
from backends.kernels.families.tile_mma import TileMma
from backends.kernels.families.tile_wgmma import TileWgmma
from backends.kernels.families.tile_wmma import TileWmma
from backends.kernels.families.vectorized import Vectorized
from backends.kernels.families.warp_tile import WarpTile
from backends.kernels.family import KernelFamily

#: In the order in which a search visits them: families for few columns, for 8-bit operands, for quantised
#: weights, for groups, for small GEMMs, tensor cores, then the SGEMM steps, the last step first.
FAMILIES: Mapping[str, KernelFamily] = {
    family.name: family
    for family in (
        GemvPersistent(), Gemv(), SkinnyPersistent(), Skinny(), SkinnyShort(), SkinnyRing(), SkinnyShifted(),
        SkinnyMma(), BytesRing(), BytesTileMma(), Mxfp4TileMma(), DequantMma(), DequantRing(), PackedMma(),
        PackedImma(), DequantWgmma(), DequantTmaWgmma(), DequantTileWgmma(), DequantTileMma(), DequantGemv(),
        DequantMfma(), DequantWmma(), Mxfp4Mfma(), GroupedWgmma(), GroupedRing(), GroupedDequantWgmma(),
        GroupedTile(), GroupedMfma(), GroupedWmma(), GroupedDequantMfma(), GroupedDequantWmma(),
        SmallBatch(), ShortK(), TileWgmma(), TileMma(), StreamK(), TileMfma(), TileWmma(), AsyncCopy(),
        DoubleBuffered(), WarpTile(), Vectorized(), BlockTile2d(), BlockTile1d(), SharedTile(),
        Coalesced(), Naive(),
    )
}  # fmt: skip
