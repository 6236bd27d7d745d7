// The products of a chunk of quantised weights in shared memory (dequant_ring.h, grouped_ring.h): a warp's TILES tiles
// of sixteen rows by the chunk's columns on mma.sync. CHUNK: DequantChunk.
#pragma once

#include "device/dequant_chunk.h"

namespace gemmtune {

// The largest divisor of `whole` that is at most `most`.
GEMMTUNE_DEVICE constexpr int divisor(int whole, int most) {
    return most >= whole ? whole : whole % most ? divisor(whole, most - 1) : most;
}

// mma.sync reads activations from shared memory into registers.
struct ByWarps {
    static constexpr bool kOfWarpgroups = false, kBoxes = false;
    static constexpr int kPlace = 16;  // where a slot begins, in bytes
    template <int BYTES, int COLUMNS, int LANES, int EIGHTS>
    using Inputs = LineCopies<BYTES, COLUMNS, LANES, EIGHTS>;
    static GEMMTUNE_DEVICE void show() {}
};

template <typename CHUNK, int TILES>
struct DequantTiles {
    using T = typename CHUNK::T;
    using Reads = typename CHUNK::Reads;
    using Row = typename CHUNK::Row;
    static constexpr bool kAfter = CHUNK::kAfter, kFolded = CHUNK::kFolded;
    static constexpr int kTiles = TILES, kHalves = CHUNK::kHalves, kSteps = CHUNK::kSteps, kEights = CHUNK::kEights;
    // Steps that are summed before they are scaled.
    static constexpr int kRun = kAfter ? CHUNK::kGroup / CHUNK::kStep : 1;
    // Tiles whose weights are dequantised before activations are read again.
    static constexpr int kAtOnce = divisor(kTiles, kHalves >= 8 ? 1 : 8 / kHalves);
    using Sums = float[kTiles][kHalves][4];

    // A chunk's products of kAtOnce tiles, from `first` on. Where there are many sums, a loop keeps the compiler from
    // reading a whole chunk before it uses the first of it.
    static GEMMTUNE_DEVICE void multiply(const char* slot, const Reads& reads, int first, Sums& sum) {
        if constexpr (kTiles * kHalves >= 8) {
            GEMMTUNE_ROLL
            for (int from = 0; from < kSteps; from += kRun) multiply_run(slot, reads, first, from, sum);
        } else {
            GEMMTUNE_UNROLL
            for (int from = 0; from < kSteps; from += kRun) multiply_run(slot, reads, first, from, sum);
        }
    }

private:
    // kRun steps, from `from` on.
    static GEMMTUNE_DEVICE void multiply_run(const char* slot, const Reads& reads, int first, int from, Sums& sum) {
        constexpr unsigned kOne = PairBits<T>::kOne;
        constexpr unsigned kOnes[2][4] = {{kOne, kOne, kOne, kOne}, {kOne, kOne, kOne, kOne}};
        float part[kAtOnce][kHalves][4] = {};
        float factor[kAtOnce][2] = {}, offset[kAtOnce][2] = {}, inputs[kHalves][4] = {};
        GEMMTUNE_UNROLL
        for (int on = 0; on < kRun; ++on) {
            const int step = from + on;
            Row row[kAtOnce][2];
            GEMMTUNE_UNROLL
            for (int t = 0; t < kAtOnce; ++t) {
                GEMMTUNE_UNROLL
                for (int upper = 0; upper < 2; ++upper) {
                    row[t][upper].read(slot, reads, (first + t) * 16 + upper * 8, step);
                    if constexpr (kAfter) factor[t][upper] = row[t][upper].factor;
                    if constexpr (kFolded) offset[t][upper] = row[t][upper].offset;
                }
            }
            GEMMTUNE_UNROLL
            for (int j = 0; j < kEights; ++j) {
                unsigned w[kAtOnce][2][4];
                GEMMTUNE_UNROLL
                for (int t = 0; t < kAtOnce; ++t) {
                    row[t][0].convert(reads.mask, j, w[t][0]);
                    row[t][1].convert(reads.mask, j, w[t][1]);
                }
                GEMMTUNE_UNROLL
                for (int half = 0; half < kHalves; ++half) {
                    unsigned x[4];
                    reads.inputs(slot, half, step, j, x);
                    if constexpr (kFolded) eight(inputs[half], kOnes, x);
                    GEMMTUNE_UNROLL
                    for (int t = 0; t < kAtOnce; ++t) {
                        if constexpr (kAfter) eight(part[t][half], w[t], x);
                        else eight(sum[first + t][half], w[t], x);
                    }
                }
            }
        }
        if constexpr (kAfter) {
            GEMMTUNE_UNROLL
            for (int t = 0; t < kAtOnce; ++t) {
                GEMMTUNE_UNROLL
                for (int half = 0; half < kHalves; ++half) {
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i) {
                        float own = part[t][half][i];
                        if constexpr (kFolded) own -= offset[t][i / 2] * inputs[half][i];
                        sum[first + t][half][i] += factor[t][i / 2] * own;
                    }
                }
            }
        }
    }

    // Adds the products of eight elements of k a lane.
    static GEMMTUNE_DEVICE void eight(float (&sum)[4], const unsigned (&w)[2][4], const unsigned (&x)[4]) {
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; i += 2) {
            const unsigned of_a[4] = {w[0][i], w[1][i], w[0][i + 1], w[1][i + 1]};
            const unsigned of_b[2] = {x[i], x[i + 1]};
            mma_16x8x16<T>(sum, of_a, of_b);
        }
    }
};

}  // namespace gemmtune
