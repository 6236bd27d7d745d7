// Products of any size on the matrix cores of RDNA GPUs (wmma.h): a block computes a tile of D, or a slice of
// k's part of it (register_staged_tile.h). GENERATION is the instruction's: 11 or 12.
#pragma once

#include "device/register_staged_tile.h"
#include "device/wmma.h"

namespace gemmtune {

template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN,
          int BK, int WM, int WN, int GENERATION, int STAGES, int GROUP>
struct TileWmma : RegisterStagedTile<Wmma<typename TYPES::A, typename TYPES::B, GENERATION>, TYPES, A_ALONG_K,
                                     B_ALONG_K, WHOLE_A, WHOLE_B, FAR, BM, BN, BK, WM, WN, STAGES, GROUP> {};

}  // namespace gemmtune
