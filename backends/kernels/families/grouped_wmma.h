// Grouped products on the matrix cores of RDNA GPUs (wmma.h): blocks take tiles of all groups round-robin
// (grouped_staged_tile.h). GENERATION is the instruction's: 11 or 12.
#pragma once

#include "device/grouped_staged_tile.h"
#include "device/wmma.h"

namespace gemmtune {

template <typename TYPES, int GROUPS, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN, int BK, int WM, int WN,
          int GENERATION, int STAGES, int SCALES, bool GATED = false>
struct GroupedWmma
    : GroupedStagedTile<Wmma<typename TYPES::A, typename TYPES::B, GENERATION>, TYPES, GROUPS, WHOLE_A, WHOLE_B, FAR,
                        BM, BN, BK, WM, WN, STAGES, SCALES, GATED> {};

}  // namespace gemmtune
