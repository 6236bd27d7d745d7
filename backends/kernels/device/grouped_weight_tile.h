// Grouped products of 4-bit weights by AMD's matrix instructions: blocks compute tiles of D (weight_tile.h) round-robin
// over all groups' tiles, as in grouped_staged_tile.h.
#pragma once

#include "device/grouped_tile.h"
#include "device/matrix_epilogue.h"
#include "device/weight_tile.h"

namespace gemmtune {

// See weight_tile.h; WHOLE_A also says that the weights of every group begin at a multiple of 16 bytes.
template <typename INSTRUCTION, typename TYPES, typename QUANT, int GROUPS, bool WHOLE_A, bool WHOLE_B, bool FAR,
          int BM, int BN, int BK, int WM, int WN, int STAGES>
struct GroupedWeightTile {
    using I = INSTRUCTION;
    using Args = GroupedWeightArgs;
    using T = typename TYPES::A;
    using Tile = WeightTile<I, T, QUANT, WHOLE_A, WHOLE_B, FAR, BM, BN, BK, WM, WN, STAGES>;
    using Sum = typename Tile::Sum;
    using Patch = typename Tile::Patch;
    using Tiles = GroupedTiles<GROUPS, BN, BM>;
    static constexpr int kThreads = Tile::kThreads, kMinBlocks = 0;
    static constexpr int kTable = Tile::kSharedBytes, kSharedBytes = kTable + Tiles::kBytes;

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const Tiles tiles(all, shared + kTable);
        const int wave = uniform(warp_index());
        const int row = wave % Tile::kWavesM * WM, column = wave / Tile::kWavesM * WN;
        Sum* const patch = reinterpret_cast<Sum*>(shared + wave * Patch::kBytes);
        const unsigned last = static_cast<unsigned>(uniform(static_cast<int>(tiles.tiles)));
        GEMMTUNE_ROLL
        for (unsigned tile = block_x(); tile < last; tile += static_cast<unsigned>(all.gemm.blocks)) {
            const GroupedTilePlace at = same_for_all(tiles.place(tile));
            const ScaledArgs own = of_group<1, sizeof(T), typename TYPES::D>(all.gemm, at);
            const WeightScales scales = {all.scales, all.zeros, all.scale_row, all.scale_group, all.zero_group,
                                         at.group, all.gemm.m};
            const bool idle = at.row + row >= own.m || column >= own.n;
            typename Tile::Sums sum[Tile::kTilesM][Tile::kTilesN] = {};
            if (idle) Tile::template multiply<true>(own, scales, at.row, 0, AllOfK<BK>(), row, column, shared, sum);
            else Tile::template multiply<false>(own, scales, at.row, 0, AllOfK<BK>(), row, column, shared, sum);
            if (!idle)
                Patch::store(sum, patch, [&](int c) { return MatrixFinish<TYPES>(own, 0, at.row + row, column + c); });
            block_barrier();  // sums have been read where the next tile's operands go
        }
    }
};

}  // namespace gemmtune
