// Grouped products by AMD's matrix instructions: blocks compute tiles of D by the main loop of register_staged_tile.h,
// round-robin over all groups' tiles, which are derived on the device (grouped.h).
#pragma once

#include "device/grouped.h"
#include "device/register_staged_tile.h"

namespace gemmtune {

// INSTRUCTION: matrix_core.h. WHOLE_A, WHOLE_B: staged_operand.h; WHOLE_A also says that the weights of every group begin
// at a multiple of 16 bytes.
template <typename INSTRUCTION, typename TYPES, int GROUPS, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN, int BK,
          int WM, int WN, int STAGES>
struct GroupedStagedTile {
    using Args = GroupedArgs;
    using Product = RegisterStagedTile<INSTRUCTION, TYPES, true, true, WHOLE_A, WHOLE_B, FAR, BM, BN, BK, WM, WN,
                                       STAGES, 1>;
    using Tiles = GroupedTiles<GROUPS, BN, BM>;
    using Sum = typename Product::Sum;
    static constexpr int kThreads = Product::kThreads, kMinBlocks = 0;
    static constexpr int kTable = Product::kSharedBytes, kSharedBytes = kTable + Tiles::kBytes;

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const Tiles tiles(all, shared + kTable);
        const Slice<BK> every(0, static_cast<int>((static_cast<unsigned>(all.gemm.k) - 1) / BK + 1));
        const int wave = uniform(warp_index());
        const int row = wave % Product::kWavesM * WM, column = wave / Product::kWavesM * WN;
        char* const patch = shared + wave * Product::kPatch;
        const unsigned last = static_cast<unsigned>(uniform(static_cast<int>(tiles.tiles)));
        GEMMTUNE_ROLL
        for (unsigned tile = block_x(); tile < last; tile += static_cast<unsigned>(all.gemm.blocks)) {
            const GroupedTilePlace at = same_for_all(tiles.place(tile));
            const ScaledArgs own = of_group(all.gemm, at);
            const bool idle = at.row + row >= own.m || column >= own.n;
            typename Product::Sums sum[Product::kTilesM][Product::kTilesN] = {};
            if (idle) Product::template multiply<true>(own, 0, at.row, 0, every, row, column, shared, sum);
            else Product::template multiply<false>(own, 0, at.row, 0, every, row, column, shared, sum);
            if (!idle) {
                Product::store(sum, reinterpret_cast<Sum*>(patch), [&](int c) {
                    return MatrixFinish<TYPES>(own, 0, at.row + row, column + c);
                });
            }
            block_barrier();  // sums have been read where the next tile's operands go
        }
    }

private:
    // What was read from shared memory, in scalar registers: the main loop's addresses and branches are.
    static GEMMTUNE_DEVICE GroupedTilePlace same_for_all(const GroupedTilePlace& at) {
        return {uniform(at.group), uniform(at.start), uniform(at.row), uniform(at.column), uniform(at.columns)};
    }

    // The product of the tile's columns: B and D begin at the first, and end behind the last. Grouped products have no
    // epilogue and no scales.
    static GEMMTUNE_DEVICE ScaledArgs of_group(const GemmArgs& args, const GroupedTilePlace& at) {
        constexpr int kSize = static_cast<int>(sizeof(typename TYPES::A));
        const i64 first = static_cast<i64>(at.start) + at.column;
        ScaledArgs own = {};
        own.a = static_cast<const char*>(args.a) + at.group * args.stride_a * kSize;
        own.b = static_cast<const char*>(args.b) + first * args.ldb * kSize;
        own.d = static_cast<typename TYPES::D*>(args.d) + first * args.d_column;
        own.lda = args.lda, own.ldb = args.ldb, own.d_row = args.d_row, own.d_column = args.d_column;
        own.m = args.m, own.n = at.columns, own.k = args.k;
        own.alpha = 1.0f;
        return own;
    }
};

}  // namespace gemmtune
