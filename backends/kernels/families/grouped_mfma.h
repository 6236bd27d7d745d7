// Grouped products on the matrix cores of CDNA GPUs (mfma.h): blocks take tiles of all groups round-robin
// (grouped_staged_tile.h). M and K are the instruction's.
#pragma once

#include "device/grouped_staged_tile.h"
#include "device/mfma.h"

namespace gemmtune {

template <typename TYPES, int GROUPS, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN, int BK, int WM, int WN,
          int M, int K, int STAGES, int SCALES, bool GATED = false>
struct GroupedMfma
    : GroupedStagedTile<Mfma<typename TYPES::A, typename TYPES::B, M, K>, TYPES, GROUPS, WHOLE_A, WHOLE_B, FAR,
                        BM, BN, BK, WM, WN, STAGES, SCALES, GATED> {};

}  // namespace gemmtune
