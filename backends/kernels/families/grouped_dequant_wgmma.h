// Grouped products of quantised weights with more columns a group, on Hopper's tensor cores (wgmma, sm_90a): the rings of
// grouped_ring.h, whose weights, dequantised in registers, are wgmma's register operand, as in dequant_wgmma.h.
#pragma once

#include "families/dequant_wgmma.h"
#include "families/grouped_ring.h"

namespace gemmtune {

// See dequant_tiles.h: ByWarpsClipped.
template <int COLUMNS>
struct ByWarpgroupsClipped : ByWarpgroups<COLUMNS> {
    static constexpr bool kClips = true;
};

template <typename TYPES, typename QUANT, int GROUPS, int COLUMNS, int ROWS, int BK, int SLOTS, int WARPS_M, int WARPS_K,
          int BLOCKS>
struct GroupedDequantWgmma
    : GroupedRings<GroupedWeights<TYPES, QUANT, COLUMNS, ROWS, BK, WARPS_M, ByWarpgroupsClipped<COLUMNS>>, GROUPS, COLUMNS,
                   SLOTS, WARPS_M, WARPS_K, BLOCKS> {};

}  // namespace gemmtune
