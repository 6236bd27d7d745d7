// Quantised weights times up to 128 columns of 16-bit activations on Hopper's tensor cores (wgmma, sm_90a): the rings
// of dequant_ring.h, whose weights, dequantised in registers, are wgmma's register operand. The tensor cores read the
// activations from shared memory themselves, so that a column more costs a warp no instruction: with mma.sync, reading
// them is most of what it issues from 16 columns on.
//
// wgmma wants activations in lines of 64 elements of k, swizzled (hopper.h), and weights as fragments: a lane has
// elements 2 member, 2 member + 1, and those 8 further on, of every 16. The four lanes of a row read the same 16 bytes
// of weights and take their own bytes, with the permutation that converts them anyway.
#pragma once

#include "device/hopper.h"
#include "families/dequant_ring.h"

namespace gemmtune {

// Copies of columns of activations, BYTES bytes of each, into COLUMNS lines for wgmma, by LANES threads. Every 64
// elements are a matrix of their own.
template <int BYTES, int COLUMNS, int LANES>
struct WgmmaInputs {
    static constexpr int kWords = BYTES / 16, kSide = LANES / kWords;  // of a column; columns side by side
    static_assert(kWords <= LANES, "a thread copies one word of a column");

    const char* from;  // this thread's first word in the operand
    i64 step;          // bytes from a thread's column to its next one
    int to;            // where its line begins in a slot
    int left, word, column;

    GEMMTUNE_DEVICE WgmmaInputs(const void* first, i64 ld, int lines, int lane)
        : word(lane % kWords), column(lane / kWords) {
        from = opaque(static_cast<const char*>(first) + column * ld + word * 16);
        step = opaque(ld * kSide);
        to = opaque((word / 8 * COLUMNS + column) * kMapLine);
        left = opaque(column < kSide ? (lines < COLUMNS ? lines : COLUMNS) - column : 0);
    }

    // See LineCopies::run().
    template <bool FULL>
    GEMMTUNE_DEVICE void run(char* slot, i64 at, int there) const {
        const bool inside = FULL || word * 16 < there;
        const char* source = inside ? from + at : from - word * 16;
        GEMMTUNE_UNROLL
        for (int on = 0; on < COLUMNS; on += kSide) {
            char* const target = slot + to + on * kMapLine + (word % 8 ^ (column + on) % 8) * 16;
            if constexpr (FULL) copy_async16_if(on < left, target, source);
            else copy_async16_if(on < left, target, source, inside ? 16 : 0);
            source += step;
        }
    }
};

// See dequant_ring.h: PRODUCTS. COLUMNS: of the activations.
template <int COLUMNS>
struct ByWarpgroups {
    static constexpr bool kOfWarpgroups = true, kBoxes = false;
    static constexpr int kPlace = 1024;
    template <int BYTES, int LINES, int LANES, int EIGHTS>
    using Inputs = WgmmaInputs<BYTES, LINES, LANES>;

    static GEMMTUNE_DEVICE void show() { show_to_products(); }
    static GEMMTUNE_DEVICE u64 matrix(const char* lines) { return shared_matrix(lines); }
    // Adds a tile's weights `a` times the activations of the chunk's product number `at`.
    template <typename T>
    static GEMMTUNE_DEVICE void multiply(float (&to)[COLUMNS / 8][4], const unsigned (&a)[4], u64 inputs, int at) {
        begin_products();
        multiply_held<T, COLUMNS>(reinterpret_cast<float(&)[COLUMNS / 2]>(to), a,
                                  inputs + at / 4 * (COLUMNS * kMapLine / 16) + at % 4 * kMatrixStep);
    }
    static GEMMTUNE_DEVICE void end() { end_products(); }
    static GEMMTUNE_DEVICE void wait() { wait_products<0>(); }
};

}  // namespace gemmtune
