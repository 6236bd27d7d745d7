// Neighbouring threads have neighbouring rows of D, which are contiguous: a warp's accesses are coalesced.
#pragma once

#include "device/element_per_thread.h"

namespace gemmtune {

template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int TILE_M, int TILE_N>
using Coalesced = ElementPerThread<TYPES, A_ALONG_K, B_ALONG_K, TILE_M, TILE_N, true>;

}  // namespace gemmtune
