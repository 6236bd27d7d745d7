// The main loop of one tile of D over a range of k, on tensor cores (mma.sync, sm_80 and later). A block
// computes a BM x BN tile, each warp WM x WN of it. Tiles of A and B, BK deep, pass through a pipeline of
// STAGES buffers in shared memory, filled by asynchronous copies (operand_tile.h describes the layout and how
// unaligned rows are read). A warp's fragments are double-buffered: the next step's are loaded from shared
// memory while the current step is multiplied, also across tiles.
//
// Synchronisation: while tile t is multiplied, the tiles t + 1 ... t + STAGES - 1 are in flight. The last of
// them replaces tile t - 1, which every warp has finished with at the barrier in the last step of that tile.
// Before that barrier each thread waits for its own copies of the next tile; after it the whole tile is in
// shared memory.
//
// Warps without an element of D only copy: a last tile of a single row costs little more than its loads.
//
// The family decides which tiles a block computes, over which part of k, and what happens to the sums:
// tile_mma.h (one tile for each block, k split into slices), stream_k.h (as many blocks as run at once),
// bytes_tile_mma.h (8-bit elements), mxfp4_tile_mma.h (two elements of 4 bits to a byte).
#pragma once

#include "device/epilogue.h"
#include "device/operand_tile.h"
#include "device/tile_order.h"

namespace gemmtune {

// The products of 16-bit floats, and of fp32 as TF32: what one instruction adds to a lane's four sums.
template <typename INPUT>
struct MmaProducts {
    using T = INPUT;
    using Sum = float;
    static GEMMTUNE_DEVICE void add(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        if constexpr (sizeof(T) == 4) mma_16x8x8_tf32(sum, a, b);
        else mma_16x8x16<T>(sum, a, b);
    }
};

// Nothing happens before or after a tile along k is multiplied. kMultiplies: whether multiply(step, a, b, sum) adds the
// products of a step's fragments instead of PRODUCTS.
struct NothingAround {
    static constexpr bool kMultiplies = false;
    GEMMTUNE_DEVICE void before(int) {}
    GEMMTUNE_DEVICE void after() {}
};

// PRODUCTS: the elements' type, the type of sums and the instruction (MmaProducts; mma_bytes.h: MmaBytes). GATED: of
// A (gated_rows.h).
template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int START_A, int START_B, int BM, int BN, int BK,
          int WM, int WN, int STAGES, typename PRODUCTS = MmaProducts<typename TYPES::Input>, bool GATED = false>
struct TileProduct {
    using T = typename PRODUCTS::T;
    using Sum = typename PRODUCTS::Sum;
    static constexpr int kWarpsM = BM / WM, kWarps = kWarpsM * (BN / WN);
    static constexpr int kThreads = 32 * kWarps;
    static constexpr bool kDeep = START_A == kAnywhere || START_B == kAnywhere;
    using TileA = OperandTile<T, false, A_ALONG_K, START_A, kDeep, BM, BK, kThreads, GATED>;
    using TileB = OperandTile<T, true, B_ALONG_K, START_B, kDeep, BN, BK, kThreads>;
    static constexpr int kStage = TileA::kBytes + TileB::kBytes;
    static constexpr int kColumns = 16, kPitch = WM + 4;   // of a warp's patch of sums on its way to D
    static constexpr int kPatch = kColumns * kPitch * 4;
    static constexpr int kPipeline = STAGES * kStage, kPatches = kWarps * kPatch;
    static constexpr int kSharedBytes = kPipeline > kPatches ? kPipeline : kPatches;
    static constexpr int kAhead = STAGES - 1;  // tiles in flight while one is multiplied
    static constexpr int kSteps = BK / TileA::kStep;  // each as deep as an instruction
    static constexpr int kTilesM = WM / 16, kTilesN = WN / 16;
    static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0, "whole warps");
    static_assert(kWarp == 32 && STAGES >= 2 && kSteps % 2 == 0, "two sets of fragments take turns");

    // A warp's sums in the layout of its instructions (mma.h: d), 16 rows by 8 columns each; two of them are
    // kColumns wide.
    using SumsOfColumns = Sum[kTilesM][2][4];
    using Sums = SumsOfColumns[kTilesN];

    // A warp's part of the tile of D at (tile_i, tile_j).
    struct Part {
        i64 i, j;
        int row, column;  // within the tile
        bool idle;        // it has no element of D

        GEMMTUNE_DEVICE Part(const GemmArgs& args, i64 tile_i, i64 tile_j) {
            const int warp = warp_index();
            row = warp % kWarpsM * WM, column = warp / kWarpsM * WN;
            i = tile_i + row, j = tile_j + column;
            idle = i >= args.m || j >= args.n;
        }
    };

    // Adds A B over the tiles [begin, end) along k to a warp's sums. All threads of the block must take part;
    // when it returns no thread reads the tiles in shared memory any more. A warp that has an element of D calls
    // around.before(tile) and around.after() before and after it multiplies a tile along k.
    static GEMMTUNE_DEVICE void multiply(const GemmArgs& args, i64 batch, const Part& part, int begin,
                                         int end, char* shared, Sums& sum) {
        NothingAround nothing;
        multiply(args, batch, part, begin, end, shared, sum, nothing);
    }
    template <typename AROUND>
    static GEMMTUNE_DEVICE void multiply(const GemmArgs& args, i64 batch, const Part& part, int begin,
                                         int end, char* shared, Sums& sum, AROUND& around) {
        const i64 p = static_cast<i64>(begin) * BK;
        TileA a(args.a, batch * args.stride_a, args.lda, part.i - part.row, args.m, p, args.k);
        TileB b(args.b, batch * args.stride_b, args.ldb, part.j - part.column, args.n, p, args.k);
        // (Two copies of the loop: branches around every step would keep the copies from being interleaved with
        // the multiplications.)
        if (part.idle) multiply_tiles(args, a, b, shared, begin, end, part, true, sum, around);
        else multiply_tiles(args, a, b, shared, begin, end, part, false, sum, around);
        block_barrier();
    }

    // Passes kColumns of a warp's columns of sums, from column c * kColumns on, through the warp's own patch of
    // shared memory: neighbouring lanes hold neighbours of a row, but D is written along its columns.
    // write(first column, patch) finds them at patch[column * kPitch + row].
    template <typename WRITE>
    static GEMMTUNE_DEVICE void transpose(const SumsOfColumns& sum, const Part& part, int c, char* shared,
                                          const WRITE& write) {
        Sum* const patch = lay_out(sum, shared);
        write(part.j + c * kColumns, patch);
    }

    // transpose() of all of a warp's columns. The loop is not unrolled, so that the code of write() exists
    // once: most blocks execute it once, and would wait for instructions that are not in the cache.
    template <typename WRITE>
    static GEMMTUNE_DEVICE void transpose_all(const Sums& sum, const Part& part, char* shared,
                                              const WRITE& write) {
        GEMMTUNE_ROLL
        for (int c = 0; c < kTilesN; ++c) {
            Sum* patch = nullptr;
            if (c > 0) warp_barrier();  // the previous columns have been read
            GEMMTUNE_UNROLL
            for (int here = 0; here < kTilesN; ++here)
                if (here == c) patch = lay_out(sum[here], shared);
            write(part.j + c * kColumns, patch);
        }
    }

    // Applies the epilogue to a warp's columns of D from column j on, as transpose() left them, and stores
    // them.
    static GEMMTUNE_DEVICE void finish(const GemmArgs& args, i64 batch, const Part& part, i64 j,
                                       const float* patch) {
        if (args.beta == 0.0f && !args.bias && args.activation == kNone) {
            using D = typename TYPES::D;
            D* const to = static_cast<D*>(args.d) + batch * args.stride_d + j * args.d_column + part.i;
            const float alpha = args.alpha;
            store(args, part, j, patch, to, args.d_column, [=](float x) { return narrow<D>(alpha * x); });
        } else {
            const Finish<TYPES, 1> here(args, batch, part.i, j);
            const int rows = rows_of(args, part), columns = columns_of(args, j);
            for (int column = 0; column < columns; ++column)
                for (int row = lane_index(); row < rows; row += 32)
                    here.store(row, column, patch[column * kPitch + row]);
        }
    }

    // Stores make(sum) of the sums of kColumns columns from j on, as far as they are in D: the first to `to`,
    // columns `apart` from each other. Neighbouring lanes have neighbouring rows.
    template <typename TO, typename MAKE>
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, const Part& part, i64 j, const float* patch,
                                      TO* to, i64 apart, const MAKE& make) {
        const int lane = lane_index(), rows = rows_of(args, part) - lane, columns = columns_of(args, j);
        to += lane, patch += lane;
        for (int column = 0; column < columns; ++column) {
            GEMMTUNE_UNROLL
            for (int row = 0; row < WM; row += 32) {
                // (Only the store is predicated: reads beyond D's rows stay within the patch.)
                if (row + 32 > WM && row >= rows) continue;
                const TO made = make(patch[row]);
                if (row < rows) to[row] = made;
            }
            to += apart, patch += kPitch;
        }
    }

private:
    // The number of D's rows that a warp has, and of D's columns among kColumns from j on.
    static GEMMTUNE_DEVICE int rows_of(const GemmArgs& args, const Part& part) {
        return static_cast<int>(args.m - part.i < WM ? args.m - part.i : WM);
    }
    static GEMMTUNE_DEVICE int columns_of(const GemmArgs& args, i64 j) {
        return static_cast<int>(args.n - j < kColumns ? args.n - j : kColumns);
    }

    static GEMMTUNE_DEVICE Sum* lay_out(const SumsOfColumns& sum, char* shared) {
        // (No bank conflicts: a lane's column is 2 member, and two pitches are 8 or 24 banks.)
        static_assert(2 * kPitch % 32 == 8 || 2 * kPitch % 32 == 24, "members' columns lie in other banks");
        Sum* const patch = reinterpret_cast<Sum*>(shared + warp_index() * kPatch);
        const int lane = lane_index(), group = lane / 4, member = lane % 4;
        GEMMTUNE_UNROLL
        for (int at = 0; at < kTilesM * 8; ++at) {
            const int tile = at / 8, n = at / 4 % 2, e = at % 4;
            patch[(n * 8 + member * 2 + e % 2) * kPitch + tile * 16 + e / 2 * 8 + group] = sum[tile][n][e];
        }
        warp_barrier();
        return patch;
    }

    struct Fragments {
        unsigned a[kTilesM][4], b[kTilesN][4];
    };

    template <typename AROUND>
    static GEMMTUNE_DEVICE void multiply_tiles(const GemmArgs& args, TileA& a, TileB& b, char* shared,
                                               int begin, int end, const Part& part, bool idle, Sums& sum,
                                               AROUND& around) {
        const int tiles = end - begin;
        int copied = 0;
        char *to = shared, *from = shared;
        const auto next = [&](char*& stage) {
            stage += kStage;
            if (stage == shared + kPipeline) stage = shared;
        };
        const auto copy = [&] {
            const bool more = copied < tiles, whole = a.whole() && b.whole();
            if (more && !whole) {
                if (a.deep() && b.deep()) {
                    a.copy_lines(to), b.copy_lines(to + TileA::kBytes);
                } else {
                    a.copy_some(to, static_cast<const char*>(args.a) + args.a_bytes);
                    b.copy_some(to + TileA::kBytes, static_cast<const char*>(args.b) + args.b_bytes);
                }
            }
            if (more && whole) a.copy_whole(to), b.copy_whole(to + TileA::kBytes);
            commit_copies();  // also an empty group: groups are counted
            a.advance(), b.advance(), ++copied, next(to);
        };
        const auto arrived = [&] {
            wait_copies<kAhead - 1>();
            named_barrier_sync<kThreads>();  // idle warps come from another place in the program
        };
        if constexpr (kDeep) {  // rolled: the code of a copy is long, and each instance must be fetched
            GEMMTUNE_ROLL
            for (int stage = 0; stage < kAhead; ++stage) copy();
        } else {
            GEMMTUNE_UNROLL
            for (int stage = 0; stage < kAhead; ++stage) copy();
        }
        arrived();
        Fragments fragments[2];
        const auto read = [&](int step) {
            a.read(from, part.row, step, fragments[step % 2].a);
            b.read(from + TileA::kBytes, part.column, step, fragments[step % 2].b);
        };
        if (!idle) read(0);
        for (int tile = 0; tile < tiles; ++tile) {
            if (idle) {
                copy(), arrived(), next(from);
                continue;
            }
            around.before(begin + tile);
            GEMMTUNE_UNROLL
            for (int step = 0; step < kSteps; ++step) {
                if (step == 0) copy();
                if (step == kSteps - 1) arrived(), next(from);
                read((step + 1) % kSteps);  // after the last tile: reads a stale stage, unused
                if constexpr (AROUND::kMultiplies)
                    around.multiply(step, fragments[step % 2].a, fragments[step % 2].b, sum);
                else multiply(fragments[step % 2], sum);
            }
            around.after();
        }
        wait_copies<0>();
    }

    static GEMMTUNE_DEVICE void multiply(Fragments& fragments, Sums& sum) {
        if constexpr (sizeof(T) == 4) {  // converted here, when the loads have completed
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4 * kTilesM; ++i)
                fragments.a[i / 4][i % 4] = to_tf32(fragments.a[i / 4][i % 4]);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4 * kTilesN; ++i)
                fragments.b[i / 4][i % 4] = to_tf32(fragments.b[i / 4][i % 4]);
        }
        GEMMTUNE_UNROLL
        for (int i = 0; i < kTilesM; ++i) {
            GEMMTUNE_UNROLL
            for (int n = 0; n < 2 * kTilesN; ++n) {
                const int j = i % 2 ? 2 * kTilesN - 1 - n : n;  // serpentine order: reuses an operand
                Sum(&to)[4] = sum[j / 2][i][j % 2];
                const unsigned of_b[2] = {fragments.b[j / 2][j % 2 * 2], fragments.b[j / 2][j % 2 * 2 + 1]};
                PRODUCTS::add(to, fragments.a[i], of_b);
            }
        }
    }
};

}  // namespace gemmtune
