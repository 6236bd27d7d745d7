// Products of any size on the matrix cores of CDNA GPUs (mfma.h): a block computes a tile of D, or a slice of
// k's part of it (register_staged_tile.h). M and K are the instruction's.
#pragma once

#include "device/mfma.h"
#include "device/register_staged_tile.h"

namespace gemmtune {

template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN,
          int BK, int WM, int WN, int M, int K, int STAGES, int GROUP>
struct TileMfma : RegisterStagedTile<Mfma<typename TYPES::A, typename TYPES::B, M, K>, TYPES, A_ALONG_K,
                                     B_ALONG_K, WHOLE_A, WHOLE_B, FAR, BM, BN, BK, WM, WN, STAGES, GROUP> {};

}  // namespace gemmtune
