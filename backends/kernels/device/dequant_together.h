// The products of a chunk of quantised weights by warpgroups (dequant_wgmma.h, grouped_dequant_wgmma.h): a warp's TILES
// tiles of sixteen rows are the register operand of PRODUCTS, the chunk's columns its operand in shared memory. CHUNK:
// DequantChunk of QUANT.
#pragma once

#include "device/dequant_chunk.h"

namespace gemmtune {

template <typename CHUNK, typename QUANT, typename PRODUCTS, int TILES>
struct DequantTogether {
    using T = typename CHUNK::T;
    using Reads = typename CHUNK::Reads;
    using Row = typename CHUNK::Row;
    static constexpr bool kAfter = CHUNK::kAfter;
    static constexpr int kTiles = TILES, kHalves = CHUNK::kHalves, kSteps = CHUNK::kSteps, kEights = CHUNK::kEights;
    static constexpr int kGroup = CHUNK::kGroup;
    static constexpr int kRun = kAfter ? kGroup / CHUNK::kStep : 1;  // steps that are summed before they are scaled
    using Sums = float[kTiles][kHalves][4];

    static GEMMTUNE_DEVICE void multiply(const char* slot, const Reads& reads, Sums& sum) {
        if constexpr (QUANT::kFloat) multiply_floats(slot, reads, sum);
        else multiply_integers(slot, reads, sum);
    }

private:
    // A chunk's products by warpgroups. The tensor cores multiply while the next weights are converted: registers that
    // an instruction reads or writes are left alone until the wait for all of a run.
    static GEMMTUNE_DEVICE void multiply_integers(const char* slot, const Reads& reads, Sums& sum) {
        const u64 inputs = PRODUCTS::matrix(slot + CHUNK::kX);
        GEMMTUNE_ROLL
        for (int from = 0; from < kSteps; from += kRun) {
            unsigned held[kTiles][kRun * kEights * 2][4];
            float part[kAfter ? kTiles : 1][kHalves][4] = {}, factor[kTiles][2];
            GEMMTUNE_UNROLL
            for (int tile = 0; tile < kTiles; ++tile) {
                GEMMTUNE_UNROLL
                for (int at = 0; at < kRun * kEights; ++at) {
                    const int number = from * kEights + at;  // of 32 elements of k
                    unsigned w[2][4];
                    GEMMTUNE_UNROLL
                    for (int upper = 0; upper < 2; ++upper) {
                        Row row;
                        const int down = tile * 16 + upper * 8;
                        row.read_scales(slot, reads, down, kGroup % 32 == 0 ? number * 32 / kGroup : 0);
                        if constexpr (kAfter) factor[tile][upper] = row.factor;
                        reads.together(slot, down, number, row.whole, w[upper]);
                        row.scale_pairs(w[upper]);
                    }
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; i += 2) {
                        unsigned(&a)[4] = held[tile][at * 2 + i / 2];
                        a[0] = w[0][i], a[1] = w[1][i], a[2] = w[0][i + 1], a[3] = w[1][i + 1];
                        const int product = number * 2 + i / 2;
                        if constexpr (kAfter) PRODUCTS::template multiply<T>(part[tile], a, inputs, product);
                        else PRODUCTS::template multiply<T>(sum[tile], a, inputs, product);
                    }
                }
            }
            PRODUCTS::end();
            PRODUCTS::wait();
            if constexpr (!kAfter) continue;
            GEMMTUNE_UNROLL
            for (int tile = 0; tile < kTiles; ++tile) {
                GEMMTUNE_UNROLL
                for (int half = 0; half < kHalves; ++half) {
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i)
                        sum[tile][half][i] += factor[tile][i / 2] * part[kAfter ? tile : 0][half][i];
                }
            }
        }
    }

    // The same of MXFP4, whose groups are two products each: the next group's weights are converted meanwhile.
    static GEMMTUNE_DEVICE void multiply_floats(const char* slot, const Reads& reads, Sums& sum) {
        static_assert(!QUANT::kFloat || kTiles == 1, "a fragment");
        const u64 inputs = PRODUCTS::matrix(slot + CHUNK::kX);
        unsigned held[2][2][4];
        float factor[2][2];
        const auto convert = [&](int group, int place) {
            unsigned w[2][4];
            GEMMTUNE_UNROLL
            for (int upper = 0; upper < 2; ++upper) {
                factor[place][upper] = widen(reads.scale(slot, upper * 8, group));
                reads.together(slot, upper * 8, group, 0, w[upper]);
            }
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; i += 2) {
                unsigned(&a)[4] = held[place][i / 2];
                a[0] = w[0][i], a[1] = w[1][i], a[2] = w[0][i + 1], a[3] = w[1][i + 1];
            }
        };
        convert(0, 0);
        GEMMTUNE_ROLL
        for (int from = 0; from < kSteps; from += 2) {
            GEMMTUNE_UNROLL
            for (int on = 0; on < 2; ++on) {
                const int group = from + on;
                float part[kHalves][4] = {};
                PRODUCTS::template multiply<T>(part, held[on][0], inputs, group * 2);
                PRODUCTS::template multiply<T>(part, held[on][1], inputs, group * 2 + 1);
                PRODUCTS::end();
                convert(group + 1 < kSteps ? group + 1 : 0, 1 - on);  // the last one's are not used
                PRODUCTS::wait();
                GEMMTUNE_UNROLL
                for (int half = 0; half < kHalves; ++half) {
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i) sum[0][half][i] += factor[on][i / 2] * part[half][i];
                }
            }
        }
    }
};

}  // namespace gemmtune
