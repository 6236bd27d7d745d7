// Products of quantised weights on the matrix cores of CDNA GPUs (mfma.h): see dequant_matrix_tile.h. M and K are the
// instruction's.
#pragma once

#include "device/dequant_matrix_tile.h"
#include "device/mfma.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN, int BK, int WM, int WN,
          int M, int K, int STAGES, int GROUP>
struct DequantMfma : DequantMatrixTile<Mfma<typename TYPES::A, typename TYPES::A, M, K>, TYPES, QUANT, WHOLE_A, WHOLE_B,
                                       FAR, BM, BN, BK, WM, WN, STAGES, GROUP> {};

}  // namespace gemmtune
