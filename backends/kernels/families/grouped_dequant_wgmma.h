// Grouped products of quantised weights with more columns a group, on Hopper's tensor cores (wgmma, sm_90a): the rings
// of grouped_ring.h, whose weights, dequantised in registers, are wgmma's register operand, as in dequant_wgmma.h.
#pragma once

#include "families/dequant_wgmma.h"
#include "families/grouped_ring.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, int GROUPS, int COLUMNS, int ROWS, int BK, int SLOTS, int WARPS_M,
          int WARPS_K, int BLOCKS>
struct GroupedDequantWgmma
    : GroupedRings<GroupedWeights<TYPES, QUANT, COLUMNS, ROWS, BK, WARPS_M, ByWarpgroups<COLUMNS>>, GROUPS, COLUMNS,
                   SLOTS, WARPS_M, WARPS_K, BLOCKS> {};

}  // namespace gemmtune
