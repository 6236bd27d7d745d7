// Grouped products with many columns a group, on tensor cores (mma.sync, sm_80 and later): blocks compute tiles of D
// (tile_product.h: the main loop), round-robin over all groups' tiles, which are derived on the device (grouped.h).
#pragma once

#include "device/grouped.h"
#include "device/tile_product.h"

namespace gemmtune {

// BLOCKS: resident blocks of a multiprocessor. GATED: gated_rows.h.
template <typename TYPES, int GROUPS, int BM, int BN, int BK, int WM, int WN, int STAGES, int BLOCKS,
          bool GATED = false>
struct GroupedTile {
    using Args = GroupedArgs;
    using Product = TileProduct<TYPES, true, true, kAt16, kAt16, BM, BN, BK, WM, WN, STAGES,
                                MmaProducts<typename TYPES::Input>, GATED>;
    using Tiles = GroupedTiles<GROUPS, BN, BM>;
    static constexpr int kThreads = Product::kThreads, kMinBlocks = BLOCKS;
    static constexpr int kTable = Product::kSharedBytes, kSharedBytes = kTable + Tiles::kBytes;

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const Tiles tiles(all, shared + kTable);
        const int steps = (all.gemm.k - 1) / BK + 1;
        GEMMTUNE_ROLL
        for (unsigned tile = block_x(); tile < tiles.tiles; tile += static_cast<unsigned>(all.gemm.blocks)) {
            const GroupedTilePlace at = tiles.place(tile);
            const GemmArgs own = of_group(all.gemm, at, tiles.ends[at.group] - at.start);
            const typename Product::Part part(own, at.row, at.column);
            typename Product::Sums sum = {};
            Product::multiply(own, 0, part, 0, steps, shared, sum);
            if (!part.idle) {
                Product::transpose_all(sum, part, shared, [&](i64 column, const float* patch) {
                    if constexpr (GATED) finish_gated(own, part, column, patch);
                    else Product::finish(own, 0, part, column, patch);
                });
            }
            block_barrier();  // sums have been read where the next tile's operands go
        }
    }

private:
    // Stores a warp's columns of D from column j on, as Product::transpose() left their sums.
    static GEMMTUNE_DEVICE void finish_gated(const GemmArgs& args, const typename Product::Part& part, i64 j,
                                             const float* patch) {
        using D = typename TYPES::D;
        constexpr int kRows = WM / 2;
        const int rows = static_cast<int>(args.m - part.i) / 2, columns = static_cast<int>(args.n - j);
        D* const to = static_cast<D*>(args.d) + j * args.d_column + part.i / 2;
        GEMMTUNE_UNROLL
        for (int first = 0; first < kRows * Product::kColumns; first += 32) {
            const int at = first + lane_index(), row = at % kRows, column = at / kRows;
            const float* const from = patch + column * Product::kPitch + row * 2;
            if (row < rows && column < columns) to[column * args.d_column + row] = narrow<D>(gated(from[0], from[1]));
        }
    }

    // The group's product. Operands end where all groups' do.
    static GEMMTUNE_DEVICE GemmArgs of_group(const GemmArgs& args, const GroupedTilePlace& at, int columns) {
        GemmArgs own = args;
        const i64 weights = at.group * args.stride_a * 2, first = at.start * args.ldb * 2;
        own.a = static_cast<const char*>(args.a) + weights, own.a_bytes -= weights;
        own.b = static_cast<const char*>(args.b) + first, own.b_bytes -= first;
        own.d = static_cast<typename TYPES::D*>(args.d) + at.start * args.d_column;
        own.n = columns;
        return own;
    }
};

}  // namespace gemmtune
