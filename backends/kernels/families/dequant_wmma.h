// Products of quantised weights on the matrix cores of RDNA GPUs (wmma.h): see dequant_matrix_tile.h. GENERATION: 11 or
// 12.
#pragma once

#include "device/dequant_matrix_tile.h"
#include "device/wmma.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN, int BK, int WM, int WN,
          int GENERATION, int STAGES, int GROUP>
struct DequantWmma : DequantMatrixTile<Wmma<typename TYPES::A, typename TYPES::A, GENERATION>, TYPES, QUANT, WHOLE_A,
                                       WHOLE_B, FAR, BM, BN, BK, WM, WN, STAGES, GROUP> {};

}  // namespace gemmtune
