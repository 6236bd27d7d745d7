// Products of any size by matrix instructions whose operands come from registers (mfma.h, wmma.h): a block
// computes BM x BN of D, or a slice of k's part of it, and a wavefront WM x WN of that.
//
// Tiles of A and B, BK deep, pass from global memory through registers to shared memory (staged_operand.h,
// staged_pipeline.h). Wavefronts without an element of D load and store tiles and multiply nothing. Sums pass
// through shared memory on their way to D (sum_patch.h).
#pragma once

#include "device/matrix_epilogue.h"
#include "device/staged_operand.h"
#include "device/staged_pipeline.h"
#include "device/sum_patch.h"
#include "device/tile_order.h"

namespace gemmtune {

// INSTRUCTION: matrix_core.h. WHOLE_A, WHOLE_B: staged_operand.h. GROUP: tile_order.h. GATED: of A (gated_rows.h).
template <typename INSTRUCTION, typename TYPES, bool A_ALONG_K, bool B_ALONG_K, bool WHOLE_A, bool WHOLE_B,
          bool FAR, int BM, int BN, int BK, int WM, int WN, int STAGES, int GROUP, bool GATED = false>
struct RegisterStagedTile {
    using I = INSTRUCTION;
    using Args = ScaledArgs;
    using SecondLaunch = AddSlices<TYPES>;
    using Sum = typename I::Sum;
    static constexpr int kWavesM = BM / WM, kWaves = kWavesM * (BN / WN);
    static constexpr int kThreads = I::kWave * kWaves, kMinBlocks = 0;
    using TileA = StagedOperand<typename TYPES::A, A_ALONG_K, WHOLE_A, FAR, BM, BK, kThreads, GATED>;
    using TileB = StagedOperand<typename TYPES::B, B_ALONG_K, WHOLE_B, FAR, BN, BK, kThreads>;
    using ReadA = typename TileA::template Read<I>;
    using ReadB = typename TileB::template Read<I>;
    static constexpr int kTile = TileA::kBytes + TileB::kBytes;
    static constexpr int kTilesM = WM / I::kLines, kTilesN = WN / I::kLines, kPerStep = ReadA::kPerStep;
    using Patch = SumPatch<I, WM, WN, false>;
    static constexpr int kPatch = Patch::kBytes, kPipeline = STAGES * kTile, kPatches = kWaves * kPatch;
    static constexpr int kSharedBytes = kPipeline > kPatches ? kPipeline : kPatches;
    static_assert(kWarp == I::kWave, "MFMA is for wavefronts of 64, WMMA for those of 32");
    static_assert(TileA::kLineBytes <= 256 && TileB::kLineBytes <= 256, "lines of 4, 8 or 16 chunks");
    static_assert(BM % WM == 0 && BN % WN == 0, "a tile is whole wavefronts' parts");
    static_assert(WM % I::kLines == 0 && WN % I::kLines == 0, "a wavefront's part is whole instructions");

    static GEMMTUNE_DEVICE void run(const ScaledArgs& args, char* shared) {
        const Task task(args);
        if (task.beyond(args)) return;
        i64 i, j;
        TileOrder<BM, BN, GROUP>(args).place(block_x(), i, j);
        const int wave = uniform(warp_index()), row = wave % kWavesM * WM, column = wave / kWavesM * WN;
        const bool idle = i + row >= args.m || j + column >= args.n;
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        typename I::Sums sum[kTilesM][kTilesN] = {};
        Nothing nothing;
        if (idle) multiply<true>(args, task.batch, i, j, mine, row, column, shared, sum, nothing);
        else multiply<false>(args, task.batch, i, j, mine, row, column, shared, sum, nothing);
        release_reduce(args);
        if (idle) return;
        char* const patch = shared + wave * kPatch;
        if (args.splits > 1) {
            store(sum, reinterpret_cast<Sum*>(patch), [&](int c) {
                return SlicePlace<Sum>(args, task, i + row, j + column + c);
            });
        } else {
            store(sum, reinterpret_cast<Sum*>(patch), [&](int c) {
                return MatrixFinish<TYPES>(args, task.batch, i + row, j + column + c);
            });
        }
    }

    using Sums = typename I::Sums;

    // What becomes of the sums behind a tile along k: nothing, the next tile's are added.
    struct Nothing {
        GEMMTUNE_DEVICE void operator()(Sums (&)[kTilesM][kTilesN]) const {}
    };

    // Adds the products of the block's tiles [mine.begin, mine.end) along k to the wavefront's sums. All of
    // the block takes part; afterwards no wavefront reads the tiles in shared memory any more. IDLE wavefronts
    // have a loop of their own: with a condition around the multiplications, compilers would move the sums
    // between accumulation and other registers at every tile. after(sum) is called behind every tile.
    template <bool IDLE, typename AFTER>
    static GEMMTUNE_DEVICE void multiply(const ScaledArgs& args, i64 batch, i64 i, i64 j,
                                         const Slice<BK>& mine, int row, int column, char* shared,
                                         Sums (&sum)[kTilesM][kTilesN], AFTER& after) {
        const i64 first = static_cast<i64>(mine.begin) * BK;
        TileA a(args.a, batch * args.stride_a, args.lda, i, args.m, first, args.k);
        TileB b(args.b, batch * args.stride_b, args.ldb, j, args.n, first, args.k);
        const bool full = a.full() && b.full();
        int left = static_cast<int>(args.k - first);  // elements of k from the next tile to load on
        const auto load = [&] {
            if (full && left >= BK) {
                a.load(), b.load();
            } else {
                a.load_edge(left), b.load_edge(left);
            }
            left -= BK;
        };
        const auto store = [&](char* to) { a.store(to), b.store(to + TileA::kBytes); };
        const auto multiply = [&](const char* tile) {
            if constexpr (!IDLE) multiply_tile(tile, row, column, sum), after(sum);
        };
        staged_pipeline<STAGES, kTile>(mine.end - mine.begin, shared, load, store, multiply);
    }

    // Stores the wavefront's sums; place(column) is where those from a column of its part on go.
    template <typename PLACE>
    static GEMMTUNE_DEVICE void store(const Sums (&sum)[kTilesM][kTilesN], Sum* patch, const PLACE& place) {
        Patch::store(sum, patch, place);
    }

private:
    // The operands of a step's instructions.
    struct Fragments {
        Packed<I::kWords> a[kTilesM][kPerStep], b[kTilesN][kPerStep];
    };

    // A step's operands are read while the step before is multiplied, and no earlier: compilers would read
    // those of the whole tile at once and run out of registers.
    static GEMMTUNE_DEVICE void multiply_tile(const char* tile, int row, int column,
                                              Sums (&sum)[kTilesM][kTilesN]) {
        Fragments fragments[2];
        const auto read = [&](int step, Fragments& to) {
            ReadA::run(tile, row, step, to.a);
            ReadB::run(tile + TileA::kBytes, column, step, to.b);
        };
        read(0, fragments[0]);
        GEMMTUNE_UNROLL
        for (int step = 0; step < ReadA::kSteps; ++step) {
            if (step + 1 < ReadA::kSteps) read(step + 1, fragments[(step + 1) % 2]);
            schedule_barrier();
            multiply_step(fragments[step % 2], sum);
            schedule_barrier();
        }
    }

    static GEMMTUNE_DEVICE void multiply_step(const Fragments& from, Sums (&sum)[kTilesM][kTilesN]) {
        GEMMTUNE_UNROLL
        for (int part = 0; part < kPerStep; ++part) {
            GEMMTUNE_UNROLL
            for (int m = 0; m < kTilesM; ++m) {
                GEMMTUNE_UNROLL
                for (int n = 0; n < kTilesN; ++n) I::multiply(sum[m][n], from.a[m][part], from.b[n][part]);
            }
        }
    }
};

}  // namespace gemmtune
