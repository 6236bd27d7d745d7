// Products of two MXFP4 operands on the matrix cores of CDNA GPUs (mfma.h, int8): a block computes BM x BN of D, or a
// slice of k's part of it, and a wavefront WM x WN of that.
//
// Tiles of both operands, as they are stored, pass through registers to shared memory (staged_operand.h,
// staged_pipeline.h). BK counts bytes, of two elements each; 16 of a line are a group of 32 elements. Wavefronts look up
// twice each number, a whole one of -12 to 12, and multiply a group by instructions of 32 or 16 elements of k: a lane
// has its eight elements from one word of memory. The sums of a group are whole numbers, which are multiplied by both
// scales in fp32 before they are added.
#pragma once

#include "device/matrix_epilogue.h"
#include "device/mfma.h"
#include "device/mx_scales.h"
#include "device/staged_operand.h"
#include "device/staged_pipeline.h"
#include "device/sum_patch.h"
#include "device/tile_order.h"

namespace gemmtune {

// Twice the eight numbers of e2m1 in a word: those at even places, and those at odd ones. Neighbours along k are apart
// then, in both operands alike.
GEMMTUNE_DEVICE void twice_e2m1(unsigned word, unsigned (&out)[2]) {
    GEMMTUNE_UNROLL
    for (int odd = 0; odd < 2; ++odd) {
        const unsigned codes = word >> 4 * odd, magnitudes = codes & 0x07070707u;
        const unsigned negative = (codes >> 3 & 0x01010101u) * 0xffu;
        const unsigned above = permute_bytes(0x0c080604u, 0x03020100u, magnitudes);
        const unsigned below = permute_bytes(0xf4f8fafcu, 0xfdfeff00u, magnitudes);
        out[odd] = (above & ~negative) | (below & negative);
    }
}

// The types of C, D and the bias for matrix_epilogue.h; sums are fp32.
template <typename TYPE_C, typename TYPE_D, typename BIAS>
struct MxTypes {
    using A = Int8;
    using B = Int8;
    using C = TYPE_C;
    using D = TYPE_D;
    using Bias = BIAS;
    using Sum = float;
};

// An instruction whose sums are on their way to D in fp32.
template <typename INSTRUCTION>
struct InFloats : INSTRUCTION {
    using Sum = float;
    using Sums = typename VectorOf<float, INSTRUCTION::kSums>::Type;
};

// M and K: rows of an instruction, and its elements of k. WORDS: mx_scales.h.
template <typename TYPES, bool WORDS, bool FAR, int BM, int BN, int BK, int WM, int WN, int M, int K, int STAGES,
          int GROUP>
struct Mxfp4Mfma {
    using I = Mfma<Int8, Int8, M, K>;
    using Args = MxArgs;
    using Patch = SumPatch<InFloats<I>, WM, WN, false>;
    using Sums = typename InFloats<I>::Sums;
    static constexpr int kWavesM = BM / WM, kWaves = kWavesM * (BN / WN);
    static constexpr int kThreads = I::kWave * kWaves, kMinBlocks = 0;
    static constexpr int kTilesM = WM / M, kTilesN = WN / M;
    using TileA = StagedOperand<Int8, true, true, FAR, BM, BK, kThreads>;
    using TileB = StagedOperand<Int8, true, true, FAR, BN, BK, kThreads>;
    static constexpr int kTile = TileA::kBytes + TileB::kBytes;
    static constexpr int kPipeline = STAGES * kTile, kPatches = kWaves * Patch::kBytes;
    static constexpr int kSharedBytes = kPipeline > kPatches ? kPipeline : kPatches;
    static constexpr int kParts = 32 / K;  // instructions of a group
    static_assert(kWarp == I::kWave && I::kElements == 8 && kParts * K == 32, "a lane multiplies eight elements");
    static_assert(BM % WM == 0 && BN % WN == 0 && WM % M == 0 && WN % M == 0, "whole wavefronts and instructions");
    static_assert(BK % 64 == 0, "whole fours of groups");

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.gemm;
        const Task task(args);
        if (task.beyond(args)) return;
        i64 i, j;
        TileOrder<BM, BN, GROUP>(args).place(block_x(), i, j);
        const int wave = uniform(warp_index()), row = wave % kWavesM * WM, column = wave / kWavesM * WN;
        const bool idle = i + row >= args.m || j + column >= args.n;
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        Sums sum[kTilesM][kTilesN] = {};
        if (idle) multiply<true>(all, i, j, mine, row, column, shared, sum);
        else multiply<false>(all, i, j, mine, row, column, shared, sum);
        release_reduce(args);
        if (idle) return;
        float* const patch = reinterpret_cast<float*>(shared + wave * Patch::kBytes);
        if (args.splits > 1) {
            Patch::store(sum, patch, [&](int c) { return SlicePlace<float>(args, task, i + row, j + column + c); });
        } else {
            ScaledArgs finished = {};  // without scales of rows, columns and D
            static_cast<GemmArgs&>(finished) = args;
            Patch::store(sum, patch, [&](int c) {
                return MatrixFinish<TYPES>(finished, task.batch, i + row, j + column + c);
            });
        }
    }

private:
    // IDLE: see register_staged_tile.h.
    template <bool IDLE>
    static GEMMTUNE_DEVICE void multiply(const Args& all, i64 i, i64 j, const Slice<BK>& mine, int row, int column,
                                         char* shared, Sums (&sum)[kTilesM][kTilesN]) {
        const GemmArgs& args = all.gemm;
        const i64 first = static_cast<i64>(mine.begin) * BK;
        TileA a(args.a, 0, args.lda, i, args.m, first, args.k);
        TileB b(args.b, 0, args.ldb, j, args.n, first, args.k);
        const bool full = a.full() && b.full();
        int left = static_cast<int>(args.k - first), group = mine.begin * (BK / 16);
        const auto load = [&] {
            if (full && left >= BK) {
                a.load(), b.load();
            } else {
                a.load_edge(left), b.load_edge(left);
            }
            left -= BK;
        };
        const auto store = [&](char* to) { store_turned(a, to), store_turned(b, to + TileA::kBytes); };
        const auto multiply = [&](const char* tile) {
            if constexpr (!IDLE) {
                GEMMTUNE_ROLL
                for (int four = 0; four < BK / 64; ++four)
                    multiply_four(all, tile, i + row, j + column, row, column, four, group + four * 4, sum);
            }
            group += BK / 16;
        };
        staged_pipeline<STAGES, kTile>(mine.end - mine.begin, shared, load, store, multiply);
    }

    // Stores a loaded tile. Of 64 bytes of a line, four groups of four words, the first chunk gets the first word of each
    // group, and so on: a lane reads its words of four groups at once.
    template <typename TILE>
    static GEMMTUNE_DEVICE void store_turned(const TILE& tile, char* to) {
        const int mine = static_cast<int>(thread_index()) % 4;  // a thread has the same chunk of every line
        tile.each_chunk([&](int place, const unsigned (&words)[4]) {
            GEMMTUNE_UNROLL
            for (int w = 0; w < 4; ++w)
                *reinterpret_cast<unsigned*>(to + (place ^ (mine ^ w) * 16) + mine * 4) = words[w];
        });
    }

    // Adds the products of four groups, of which `group` is the first of the operands and `four` * 4 of the tile.
    static GEMMTUNE_DEVICE void multiply_four(const Args& all, const char* tile, i64 i, i64 j, int row, int column,
                                              int four, int group, Sums (&sum)[kTilesM][kTilesN]) {
        const int lane = lane_index(), groups = static_cast<int>(all.groups);
        unsigned of_rows[kTilesM][I::kSums], of_columns[kTilesN];
        GEMMTUNE_UNROLL
        for (int at = 0; at < kTilesM * I::kSums; ++at) {
            const i64 line = i + at / I::kSums * M + I::row(lane, at % I::kSums);
            of_rows[at / I::kSums][at % I::kSums] =
                four_scales<WORDS>(all.scales_a + line * groups, group, groups, line < all.gemm.m);
        }
        GEMMTUNE_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
            const i64 line = j + n * M + I::column(lane);
            of_columns[n] = four_scales<WORDS>(all.scales_b + line * groups, group, groups, line < all.gemm.n);
        }
        Words of_a[kTilesM][kParts], of_b[kTilesN][kParts];
        read<TileA>(tile, row, four, of_a), read<TileB>(tile + TileA::kBytes, column, four, of_b);
        GEMMTUNE_UNROLL
        for (int of = 0; of < 4; ++of) {
            Packed<2> rows[kTilesM][kParts], columns[kTilesN][kParts];
            convert(of_a, of, rows), convert(of_b, of, columns);
            GEMMTUNE_UNROLL
            for (int n = 0; n < kTilesN; ++n) {
                const float scale = 0.25f * scale_of(of_columns[n], of);  // of products of twice the numbers
                GEMMTUNE_UNROLL
                for (int m = 0; m < kTilesM; ++m) {
                    typename I::Sums part = {};
                    GEMMTUNE_UNROLL
                    for (int p = 0; p < kParts; ++p) I::multiply(part, rows[m][p], columns[n][p]);
                    GEMMTUNE_UNROLL
                    for (int e = 0; e < I::kSums; ++e)
                        sum[m][n][e] += static_cast<float>(part[e]) * (scale_of(of_rows[m][e], of) * scale);
                }
            }
        }
    }

    // A lane's words of four groups of a tile's lines from `line` on.
    template <typename TILE, int TILES>
    static GEMMTUNE_DEVICE void read(const char* tile, int line, int four, Words (&out)[TILES][kParts]) {
        const int lane = lane_index();
        GEMMTUNE_UNROLL
        for (int at = 0; at < TILES * kParts; ++at) {
            const int t = at / kParts, chunk = four * 4 + at % kParts * I::kGroups + lane / M;
            out[t][at % kParts] = read_shared<Words>(tile + TILE::place(line + t * M + lane % M, chunk));
        }
    }
    // The numbers of group `of` of four.
    template <int TILES>
    static GEMMTUNE_DEVICE void convert(const Words (&from)[TILES][kParts], int of, Packed<2> (&out)[TILES][kParts]) {
        GEMMTUNE_UNROLL
        for (int at = 0; at < TILES * kParts; ++at)
            twice_e2m1(from[at / kParts][at % kParts].at[of], out[at / kParts][at % kParts].at);
    }
};

}  // namespace gemmtune
