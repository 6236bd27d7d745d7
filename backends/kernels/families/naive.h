// Neighbouring threads have neighbouring columns of D, which are not contiguous: every access touches its own
// cache line.
#pragma once

#include "device/element_per_thread.h"

namespace gemmtune {

template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int TILE_M, int TILE_N>
using Naive = ElementPerThread<TYPES, A_ALONG_K, B_ALONG_K, TILE_M, TILE_N, false>;

}  // namespace gemmtune
