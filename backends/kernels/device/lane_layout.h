// Which of a patch's ACROSS x DOWN places a thread has: in Z order, its bits going to the two sides by turns.
//
// Shared memory answers a warp's 16-byte reads by half-warps, and a half-warp in one pass (128 bytes) where
// neighbours (lanes 2i and 2i + 1, or those that differ in the next bit) read the same address and the rest
// lies in different banks. In Z order both operands have that: lane bit 0 steps along one, bit 1 along the
// other, and 16 lanes are 4 x 4, four words of 16 bytes on each side. In rows of eight lanes one operand's
// words are eight and the other's two, and the first takes two passes.
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
