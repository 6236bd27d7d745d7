// The products of a chunk of a ring in shared memory (bytes_ring.h, grouped_ring.h): a warp's TILES tiles of sixteen
// weights' rows by HALVES groups of eight columns, 8-bit elements, STEPS steps of 64 along k. PRODUCTS: ByteProducts.
// BLOCKS: the sums of 128 elements of k are multiplied by the scales of a tile's rows and of a column before they are
// added.
//
// READS says where a lane reads in a slot: weights(slot, row, step) and inputs(slot, half, step), its 16 bytes of a
// step, of its row of the eight from `row` on and of its column of a group of eight; and with BLOCKS of_rows(slot,
// tile, of) and of_column(slot, column, of), scales of the chunk's block `of`.
#pragma once

#include "device/mma_bytes.h"

namespace gemmtune {

template <typename PRODUCTS, int TILES, int HALVES, int STEPS, bool BLOCKS>
struct ByteTiles {
    using Sum = typename PRODUCTS::Sum;
    using Sums = Sum[TILES][HALVES][4];
    static constexpr int kRun = BLOCKS ? 2 : 1;  // steps between scalings
    // Tiles whose weights are in registers while activations are read once.
    static constexpr int kMost = HALVES >= 8 ? 2 : 4;
    static constexpr int kAtOnce = TILES % kMost == 0 ? kMost : TILES > kMost ? 1 : TILES;
    static_assert(STEPS % kRun == 0, "whole blocks");

    template <typename READS>
    static GEMMTUNE_DEVICE void multiply(const char* slot, const READS& reads, Sums& sum) {
        GEMMTUNE_UNROLL
        for (int tile = 0; tile < TILES; tile += kAtOnce) multiply_tiles(slot, reads, tile, sum);
    }

private:
    // A chunk's products of kAtOnce tiles, from `first` on. Where there are many sums, a loop keeps the compiler from
    // reading a whole chunk before it uses the first of it.
    template <typename READS>
    static GEMMTUNE_DEVICE void multiply_tiles(const char* slot, const READS& reads, int first, Sums& sum) {
        if constexpr (kAtOnce * HALVES >= 8) {
            GEMMTUNE_ROLL
            for (int from = 0; from < STEPS; from += kRun) multiply_run(slot, reads, first, from, sum);
        } else {
            GEMMTUNE_UNROLL
            for (int from = 0; from < STEPS; from += kRun) multiply_run(slot, reads, first, from, sum);
        }
    }

    // kRun steps, from `from` on.
    template <typename READS>
    static GEMMTUNE_DEVICE void multiply_run(const char* slot, const READS& reads, int first, int from, Sums& sum) {
        Sum part[kAtOnce][HALVES][4] = {};
        GEMMTUNE_UNROLL
        for (int step = from; step < from + kRun; ++step) {
            typename PRODUCTS::Fragment rows[kAtOnce][2];
            GEMMTUNE_UNROLL
            for (int t = 0; t < kAtOnce; ++t) {
                GEMMTUNE_UNROLL
                for (int lower = 0; lower < 2; ++lower)
                    rows[t][lower] = PRODUCTS::of_a(reads.weights(slot, (first + t) * 16 + lower * 8, step));
            }
            GEMMTUNE_UNROLL
            for (int half = 0; half < HALVES; ++half) {
                const auto columns = PRODUCTS::of_b(reads.inputs(slot, half, step));
                GEMMTUNE_UNROLL
                for (int t = 0; t < kAtOnce; ++t)
                    PRODUCTS::add(BLOCKS ? part[t][half] : sum[first + t][half], rows[t][0], rows[t][1], columns);
            }
        }
        if constexpr (BLOCKS) {
            const int of = from / kRun, pair = lane_index() % 4 * 2;
            GEMMTUNE_UNROLL
            for (int half = 0; half < HALVES; ++half) {
                const float scale[2] = {reads.of_column(slot, half * 8 + pair, of),
                                        reads.of_column(slot, half * 8 + pair + 1, of)};
                GEMMTUNE_UNROLL
                for (int t = 0; t < kAtOnce; ++t) {
                    const float whole = reads.of_rows(slot, first + t, of);
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i) sum[first + t][half][i] += part[t][half][i] * (whole * scale[i % 2]);
                }
            }
        }
    }
};

}  // namespace gemmtune
