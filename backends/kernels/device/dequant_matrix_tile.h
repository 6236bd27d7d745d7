// Products of quantised weights by AMD's matrix instructions: a block computes BM x BN of D (weight_tile.h), or a slice
// of k's part of it. Sums pass through shared memory on their way to D (sum_patch.h).
#pragma once

#include "device/matrix_epilogue.h"
#include "device/tile_order.h"
#include "device/weight_tile.h"

namespace gemmtune {

// See weight_tile.h. GROUP: tile_order.h.
template <typename INSTRUCTION, typename TYPES, typename QUANT, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN,
          int BK, int WM, int WN, int STAGES, int GROUP>
struct DequantMatrixTile {
    using I = INSTRUCTION;
    using Args = WeightArgs;
    using Tile = WeightTile<I, typename TYPES::A, QUANT, WHOLE_A, WHOLE_B, FAR, BM, BN, BK, WM, WN, STAGES>;
    using Sum = typename Tile::Sum;
    using Patch = typename Tile::Patch;
    static constexpr int kThreads = Tile::kThreads, kMinBlocks = 0, kSharedBytes = Tile::kSharedBytes;

    static GEMMTUNE_DEVICE void run(const WeightArgs& all, char* shared) {
        const GemmArgs& args = all.gemm;
        const Task task(args);
        if (task.beyond(args)) return;
        i64 i, j;
        TileOrder<BM, BN, GROUP>(args).place(block_x(), i, j);
        const int wave = uniform(warp_index());
        const int row = wave % Tile::kWavesM * WM, column = wave / Tile::kWavesM * WN;
        const bool idle = i + row >= args.m || j + column >= args.n;
        const SliceOfK<BK> mine = {Slice<BK>(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1)};
        const WeightScales scales = {all.scales, all.zeros, all.scale_row, 0, 0, 0, args.m};
        typename Tile::Sums sum[Tile::kTilesM][Tile::kTilesN] = {};
        if (idle) Tile::template multiply<true>(args, scales, i, j, mine, row, column, shared, sum);
        else Tile::template multiply<false>(args, scales, i, j, mine, row, column, shared, sum);
        release_reduce(args);
        if (idle) return;
        Sum* const patch = reinterpret_cast<Sum*>(shared + wave * Patch::kBytes);
        if (args.splits > 1) {
            Patch::store(sum, patch, [&](int c) { return SlicePlace<Sum>(args, task, i + row, j + column + c); });
        } else {
            ScaledArgs finished = {};  // without scales of rows, columns and D
            static_cast<GemmArgs&>(finished) = args;
            Patch::store(sum, patch, [&](int c) {
                return MatrixFinish<TYPES>(finished, task.batch, i + row, j + column + c);
            });
        }
    }
};

}  // namespace gemmtune
