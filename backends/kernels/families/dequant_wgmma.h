// Quantised weights times up to 128 columns of 16-bit activations on Hopper's tensor cores (wgmma, sm_90a): the rings
// of dequant_ring.h, whose weights, dequantised in registers, are wgmma's register operand. The tensor cores read the
// activations from shared memory themselves, so that a column more costs a warp no instruction: with mma.sync, reading
// them is most of what it issues from 16 columns on.
//
// wgmma wants activations in lines of 64 elements of k, swizzled (hopper.h). Which k they are is free, as long as both
// operands agree: a lane converts kWide contiguous weights of a row, and copies of four bytes put the activations of
// the same k where the instruction looks for them.
#pragma once

#include "device/hopper.h"
#include "families/dequant_ring.h"

namespace gemmtune {

// Copies of columns of activations, BYTES bytes of each, into COLUMNS lines for wgmma, by LANES threads. Every 64
// elements are a matrix of their own.
template <int BYTES, int COLUMNS, int LANES, int EIGHTS>
struct WgmmaInputs {
    static constexpr int kPairs = BYTES / 4, kSide = kPairs < LANES ? LANES / kPairs : 1;  // columns side by side
    static constexpr int kPasses = kPairs < LANES ? 1 : kPairs / LANES;                    // of the same columns
    static constexpr int kOfLane = EIGHTS * 4, kStep = 4 * kOfLane;  // neighbouring pairs of a lane; pairs of a step
    static_assert(LANES % kStep == 0 && (kPairs < LANES || kPairs % LANES == 0), "whole steps of every thread");

    const char* from;  // this thread's first pair in the operand
    i64 step;          // bytes from a thread's column to its next one
    int to, chunk;     // where its line begins in a slot; its 16 bytes there before they are swizzled
    int left, pair, column;

    GEMMTUNE_DEVICE WgmmaInputs(const void* first, i64 ld, int lines, int lane) : pair(lane % kPairs) {
        column = kPairs < LANES ? lane / kPairs : 0;
        const int in = pair % kStep, member = in / kOfLane, of = in % kOfLane;
        const int product = pair / kStep * (kOfLane / 2) + of / 2;  // of the chunk's, each of 16 elements of k
        from = opaque(static_cast<const char*>(first) + column * ld + pair * 4);
        step = opaque(ld * kSide);
        to = opaque((product / 4 * COLUMNS + column) * kMapLine + member * 4);
        chunk = opaque(product % 4 * 2 + of % 2);
        left = opaque(column < kSide ? (lines < COLUMNS ? lines : COLUMNS) - column : 0);
    }

    // See LineCopies::run().
    template <bool FULL>
    GEMMTUNE_DEVICE void run(char* slot, i64 at, int there) const {
        GEMMTUNE_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
            const bool inside = FULL || (pair + pass * LANES) * 4 < there;
            const char* source = inside ? from + at + pass * LANES * 4 : from - pair * 4;
            char* const lines = slot + to + pass * (LANES / 32) * COLUMNS * kMapLine;
            GEMMTUNE_UNROLL
            for (int on = 0; on < COLUMNS; on += kSide) {
                char* const target = lines + on * kMapLine + (chunk ^ (column + on) % 8) * 16;
                if (on < left) copy_async4(target, source, inside ? 4 : 0);
                source += step;
            }
        }
    }
};

// See dequant_ring.h: PRODUCTS. COLUMNS: of the activations.
template <int COLUMNS>
struct ByWarpgroups {
    static constexpr bool kOfWarpgroups = true;
    static constexpr int kPlace = 1024;
    template <int BYTES, int LINES, int LANES, int EIGHTS>
    using Inputs = WgmmaInputs<BYTES, LINES, LANES, EIGHTS>;

    static GEMMTUNE_DEVICE void show() { show_to_products(); }
    static GEMMTUNE_DEVICE u64 matrix(const char* lines) { return shared_matrix(lines); }
    // Adds a tile's weights `a` times the activations of the chunk's product number `at`.
    template <typename T>
    static GEMMTUNE_DEVICE void multiply(float (&to)[COLUMNS / 8][4], const unsigned (&a)[4], u64 inputs, int at) {
        begin_products();
        multiply_held<T, COLUMNS>(reinterpret_cast<float(&)[COLUMNS / 2]>(to), a,
                                  inputs + at / 4 * (COLUMNS * kMapLine / 16) + at % 4 * kMatrixStep);
    }
    static GEMMTUNE_DEVICE void finish() { end_products(), wait_products<0>(); }
};

}  // namespace gemmtune
