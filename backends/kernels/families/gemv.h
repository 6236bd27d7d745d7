// Matrix times vector: skinny.h's kernels with one column, so that a lane's registers hold mostly loads in
// flight and hardly any sums.
#pragma once

#include "families/skinny.h"

namespace gemmtune {

template <typename TYPES, bool B_ALONG_K, bool ALIGNED, int ROWS, int UNROLL, int WARPS_M, int WARPS_K,
          bool AHEAD>
using GemvAlongK = SkinnyAlongK<TYPES, B_ALONG_K, ALIGNED, 1, ROWS, UNROLL, WARPS_M, WARPS_K, AHEAD>;

template <typename TYPES, bool B_ALONG_K, bool WHOLE, int UNROLL, int WARPS_M, int WARPS_K>
using GemvAcrossK = SkinnyAcrossK<TYPES, B_ALONG_K, WHOLE, 1, UNROLL, WARPS_M, WARPS_K>;

}  // namespace gemmtune
