// The main loop of products whose tiles pass from global memory through registers to shared memory: while one tile is
// multiplied, the loads of the next are in flight in registers.
//   STAGES 1   shared memory holds one tile; a barrier before and one after it is replaced
//   STAGES 2   it holds two: the next tile is stored beside the one that is multiplied, and one barrier
//              follows
#pragma once

#include "device/matrix_core.h"

namespace gemmtune {

// `tiles` tiles of TILE bytes. load() requests the next one, store(to) stores it, multiply(from) multiplies it. All of
// the block takes part; afterwards no wavefront reads the tiles in shared memory any more.
template <int STAGES, int TILE, typename LOAD, typename STORE, typename MULTIPLY>
GEMMTUNE_DEVICE void staged_pipeline(int tiles, char* shared, const LOAD& load, const STORE& store,
                                     const MULTIPLY& multiply) {
    static_assert(STAGES == 1 || STAGES == 2, "one tile in shared memory, or two");
    if (tiles <= 0) return;
    load();
    if constexpr (STAGES == 2) {
        store(shared);
        shared_barrier();
    }
    int at = 0;
    for (int tile = 1; tile <= tiles; ++tile) {
        if constexpr (STAGES == 1) {
            store(shared);
            shared_barrier();
        }
        if (tile < tiles) load();
        multiply(shared + at);
        if constexpr (STAGES == 2) {
            at ^= TILE;
            store(shared + at);  // after the last tile of old values: a branch would split the loop
        }
        shared_barrier();
    }
}

}  // namespace gemmtune
