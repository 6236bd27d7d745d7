// The position of a thread in a patch of ACROSS x DOWN threads: in Z order (Morton order), where the bits of
// the thread's index go to the two sides alternately.
//
// Shared memory serves a warp's 16-byte reads by half-warps. A half-warp needs one pass (128 bytes) if
// neighbours (lanes 2i and 2i + 1, or lanes that differ in the next bit) read the same address and the other
// addresses lie in different banks. In Z order both operands satisfy this: lane bit 0 steps along one side, bit
// 1 along the other, so 16 lanes form a 4 x 4 patch that reads four 16-byte words of each operand. With lanes
// in rows of eight, a half-warp reads eight words of one operand and two of the other, and the eight words take
// two passes.
#pragma once

#include "device/portable.h"

namespace gemmtune {

template <int ACROSS, int DOWN>
struct ZOrder {
    static_assert((ACROSS & (ACROSS - 1)) == 0 && (DOWN & (DOWN - 1)) == 0, "powers of two");
    int across = 0, down = 0;

    GEMMTUNE_DEVICE explicit ZOrder(int thread) {
        GEMMTUNE_UNROLL
        for (int bit = 1; bit < ACROSS || bit < DOWN; bit *= 2) {
            if (bit < ACROSS) across |= thread & 1 ? bit : 0, thread >>= 1;
            if (bit < DOWN) down |= thread & 1 ? bit : 0, thread >>= 1;
        }
    }
};

}  // namespace gemmtune
