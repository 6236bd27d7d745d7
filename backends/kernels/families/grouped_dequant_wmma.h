// Grouped products of 4-bit weights on the matrix cores of RDNA GPUs (wmma.h): see
// grouped_weight_tile.h. GENERATION: 11 or 12.
#pragma once

#include "device/grouped_weight_tile.h"
#include "device/wmma.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, int GROUPS, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN,
          int BK, int WM, int WN, int GENERATION, int STAGES>
struct GroupedDequantWmma
    : GroupedWeightTile<Wmma<typename TYPES::A, typename TYPES::A, GENERATION>, TYPES, QUANT, GROUPS, WHOLE_A, WHOLE_B,
                        FAR, BM, BN, BK, WM, WN, STAGES> {};

}  // namespace gemmtune
