// Products of any size by tensor cores (mma.sync, sm_80 on): a block computes a BM x BN tile of D, a warp
// WM x WN of it. Tiles of A and B, BK deep, come through STAGES buffers in shared memory, filled by copies
// that no thread waits for until their turn (operand_tile.h: how they lie there, and how operands that start
// anywhere are read). A warp's fragments are held twice: the next step's are on their way from shared memory
// while this one's are multiplied, across tiles too.
//
// Buffers: while tile t is multiplied, tiles t + 1 ... t + STAGES - 1 are on their way; the last of them
// replaces tile t - 1, which every warp is done with since the barrier in the last step of that tile. Before
// that barrier each thread waits for its own copies of the next tile; after it, all of the tile is there.
//
// Blocks go GROUP rows of tiles at a time through all columns, so that those which run at once share their
// operands in L2. Warps without an element of D only copy: a last tile of one row costs little more than
// its loads.
#pragma once

#include "epilogue.h"
#include "operand_tile.h"

namespace gemmtune {

template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int START_A, int START_B, int BM, int BN, int BK,
          int WM, int WN, int STAGES, int GROUP>
struct TileMma {
    using T = typename TYPES::Input;
    static constexpr int kWarpsM = BM / WM, kWarps = kWarpsM * (BN / WN);
    static constexpr int kThreads = 32 * kWarps, kMinBlocks = 0;
    static constexpr bool kDeep = START_A == kAnywhere || START_B == kAnywhere;
    using TileA = OperandTile<T, false, A_ALONG_K, START_A, kDeep, BM, BK, kThreads>;
    using TileB = OperandTile<T, true, B_ALONG_K, START_B, kDeep, BN, BK, kThreads>;
    static constexpr int kStage = TileA::kBytes + TileB::kBytes;
    static constexpr int kColumns = 16, kPitch = WM + 4;   // of a warp's sums on their way to D
    static constexpr int kPatch = kColumns * kPitch * 4;
    static constexpr int kPipeline = STAGES * kStage, kPatches = kWarps * kPatch;
    static constexpr int kSharedBytes = kPipeline > kPatches ? kPipeline : kPatches;
    static constexpr int kSteps = BK / TileA::kStep;  // an instruction's depth each
    static constexpr int kTilesM = WM / 16, kTilesN = WN / 16;
    static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0, "whole warps");
    static_assert(kWarp == 32 && STAGES >= 2 && kSteps % 2 == 0, "two sets of fragments take turns");

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Task task(args);
        if (task.beyond(args)) return;
        const unsigned tiles_m = (static_cast<unsigned>(args.m) - 1) / BM + 1;
        const unsigned tiles_n = (static_cast<unsigned>(args.n) - 1) / BN + 1;
        const unsigned band = block_x() / (GROUP * tiles_n), within = block_x() % (GROUP * tiles_n);
        const unsigned left = tiles_m - band * GROUP, high = left < GROUP ? left : GROUP;
        const i64 i = static_cast<i64>(band * GROUP + within % high) * BM;
        const i64 j = static_cast<i64>(within / high) * BN;
        product(args, task, i, j, shared);
    }

private:
    using Sums = float[kTilesM][2 * kTilesN][4];
    struct Fragments {
        unsigned a[kTilesM][4], b[kTilesN][4];
    };

    static GEMMTUNE_DEVICE void product(const GemmArgs& args, Task task, i64 i, i64 j, char* shared) {
        const int warp = warp_index(), row = warp % kWarpsM * WM, column = warp / kWarpsM * WN;
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        const i64 p = static_cast<i64>(mine.begin) * BK;
        TileA a(args.a, task.batch * args.stride_a, args.lda, i, args.m, p, args.k);
        TileB b(args.b, task.batch * args.stride_b, args.ldb, j, args.n, p, args.k);
        const bool idle = i + row >= args.m || j + column >= args.n;
        Sums sum = {};
        if (idle) multiply_tiles<true>(a, b, shared, mine.end - mine.begin, row, column, sum);
        else multiply_tiles<false>(a, b, shared, mine.end - mine.begin, row, column, sum);
        block_barrier();  // nobody reads the tiles any more
        if (!idle) store(args, task, i + row, j + column, sum, shared + warp * kPatch);
    }

    template <bool IDLE>
    static GEMMTUNE_DEVICE void multiply_tiles(TileA& a, TileB& b, char* shared, int tiles, int row,
                                               int column, Sums& sum) {
        int copied = 0;
        char *to = shared, *from = shared;
        const auto next = [&](char*& stage) {
            stage += kStage;
            if (stage == shared + kPipeline) stage = shared;
        };
        const auto copy = [&] {
            const bool more = copied < tiles, whole = a.whole() && b.whole();
            if (more && !whole) a.copy_some(to), b.copy_some(to + TileA::kBytes);
            if (more && whole) a.copy_whole(to), b.copy_whole(to + TileA::kBytes);
            commit_copies();  // an empty group too: they are counted
            a.advance(), b.advance(), ++copied, next(to);
        };
        const auto arrived = [&] {
            wait_copies<STAGES - 2>();
            block_barrier();
        };
        GEMMTUNE_UNROLL
        for (int stage = 0; stage < STAGES - 1; ++stage) copy();
        arrived();
        Fragments fragments[2];
        const auto read = [&](int step) {
            if (IDLE) return;
            a.read(from, row, step, fragments[step % 2].a);
            b.read(from + TileA::kBytes, column, step, fragments[step % 2].b);
        };
        read(0);
        for (int tile = 0; tile < tiles; ++tile) {
            GEMMTUNE_UNROLL
            for (int step = 0; step < kSteps; ++step) {
                if (step == kSteps - 1) arrived(), next(from);
                if (step == 0) copy();
                read((step + 1) % kSteps);  // after the last tile of one that is not there, and not used
                if (!IDLE) multiply(fragments[step % 2], sum);
            }
        }
        wait_copies<0>();
    }

    static GEMMTUNE_DEVICE void multiply(Fragments& fragments, Sums& sum) {
        if constexpr (sizeof(T) == 4) {  // here, where they have arrived
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
                const int j = i % 2 ? 2 * kTilesN - 1 - n : n;  // there and back: an operand is used again
                const unsigned of_b[2] = {fragments.b[j / 2][j % 2 * 2], fragments.b[j / 2][j % 2 * 2 + 1]};
                if constexpr (sizeof(T) == 4) mma_16x8x8_tf32(sum[i][j], fragments.a[i], of_b);
                else mma_16x8x16<T>(sum[i][j], fragments.a[i], of_b);
            }
        }
    }

    // Through shared memory, a warp's own part of it: neighbouring lanes hold neighbours of a row, and D is
    // written along its columns. (Pitch: a lane's column is 2 member, 2 pitches = 8 banks on.)
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, Task task, i64 i, i64 j, const Sums& sum,
                                      char* shared) {
        static_assert(2 * kPitch % 32 == 8 || 2 * kPitch % 32 == 24, "members' columns lie in other banks");
        float* const patch = reinterpret_cast<float*>(shared);
        const int lane = lane_index(), group = lane / 4, member = lane % 4;
        GEMMTUNE_UNROLL
        for (int c = 0; c < kTilesN; ++c) {
            if (c > 0) warp_barrier();  // the columns before these are read
            GEMMTUNE_UNROLL
            for (int at = 0; at < kTilesM * 8; ++at) {
                const int tile = at / 8, n = at / 4 % 2, e = at % 4;
                patch[(n * 8 + member * 2 + e % 2) * kPitch + tile * 16 + e / 2 * 8 + group] =
                    sum[tile][2 * c + n][e];
            }
            warp_barrier();
            write(args, task, i, j + c * kColumns, patch);
        }
    }

    // kColumns of a warp's columns, from column j of D on.
    static GEMMTUNE_DEVICE void write(const GemmArgs& args, Task task, i64 i, i64 j, const float* patch) {
        constexpr int kMine = kColumns * WM / 32;
        const int lane = lane_index();
        const int rows = static_cast<int>(args.m - i < WM ? args.m - i : WM);
        const int columns = static_cast<int>(args.n - j < kColumns ? args.n - j : kColumns);
        if (columns <= 0) return;
        if (args.splits > 1) {
            const i64 product = static_cast<i64>(task.slice) * args.batch + task.batch;
            float* const to = args.partial + (product * args.n + j) * args.m + i;
            each(lane, rows, columns, [&](int row, int column) {
                to[static_cast<i64>(column) * args.m + row] = patch[column * kPitch + row];
            });
        } else if (args.beta == 0.0f && !args.bias && args.activation == kNone) {
            using D = typename TYPES::D;
            D* const to = static_cast<D*>(args.d) + task.batch * args.stride_d + j * args.d_column + i;
            each(lane, rows, columns, [&](int row, int column) {
                to[column * args.d_column + row] = narrow<D>(args.alpha * patch[column * kPitch + row]);
            });
        } else {
            const Finish<TYPES, 1> here(args, task.batch, i, j);
            each(lane, rows, columns,
                 [&](int row, int column) { here.store(row, column, patch[column * kPitch + row]); });
        }
        static_assert(kMine * 32 == kColumns * WM, "whole warps");
    }

    // Calls for every (row, column) of a lane's, neighbouring lanes in neighbouring rows.
    template <typename DO>
    static GEMMTUNE_DEVICE void each(int lane, int rows, int columns, const DO& what) {
        for (int column = 0; column < columns; ++column)
            for (int row = lane; row < rows; row += 32) what(row, column);
    }
};

}  // namespace gemmtune
