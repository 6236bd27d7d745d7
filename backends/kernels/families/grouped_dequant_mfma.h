// Grouped products of 4-bit weights on the matrix cores of CDNA GPUs (mfma.h): see
// grouped_weight_tile.h. M and K are the instruction's.
#pragma once

#include "device/grouped_weight_tile.h"
#include "device/mfma.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, int GROUPS, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN,
          int BK, int WM, int WN, int M, int K, int STAGES>
struct GroupedDequantMfma
    : GroupedWeightTile<Mfma<typename TYPES::A, typename TYPES::A, M, K>, TYPES, QUANT, GROUPS, WHOLE_A, WHOLE_B, FAR,
                        BM, BN, BK, WM, WN, STAGES> {};

}  // namespace gemmtune
