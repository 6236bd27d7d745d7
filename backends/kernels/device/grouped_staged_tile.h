// Grouped products by AMD's matrix instructions: blocks compute tiles of D by the main loop of register_staged_tile.h,
// round-robin over all groups' tiles, which are derived on the device (grouped.h).
#pragma once

#include "device/gated_rows.h"
#include "device/grouped_tile.h"
#include "device/register_staged_tile.h"

namespace gemmtune {

// The argument: 8-bit floats have scales.
template <bool SCALED>
struct ArgsOfGroups {
    using Type = GroupedArgs;
};
template <>
struct ArgsOfGroups<true> {
    using Type = ScaledGroupedArgs;
};

// A place in D from which gated sums are finished (gated_rows.h): element (row, column) of the sums is so many rows and
// columns on. `rows` are the sums', twice D's.
template <typename TYPES>
struct GatedFinish {
    using Sum = typename TYPES::Sum;
    using D = typename TYPES::D;

    D* d;
    i64 apart;
    int rows, columns;
    bool twos;  // two rows of D from an even one on may be stored at once

    GEMMTUNE_DEVICE GatedFinish(const ScaledArgs& args, i64 i, i64 j)
        : d(static_cast<D*>(args.d) + i / 2 + j * args.d_column), apart(args.d_column),
          rows(static_cast<int>(args.m - i)), columns(static_cast<int>(args.n - j)) {
        const u64 bytes = static_cast<u64>(apart) * sizeof *d;
        twos = ((reinterpret_cast<u64>(d) | bytes) & (2 * sizeof *d - 1)) == 0;
    }

    // Stores the two elements of four neighbouring sums of a column, as far as they are in D.
    GEMMTUNE_DEVICE void store4(int row, int column, const Sum (&sum)[4]) const {
        if (column >= columns || row >= rows) return;
        const D two[2] = {narrow<D>(gated(sum[0], sum[1])), narrow<D>(gated(sum[2], sum[3]))};
        D* const to = d + row / 2 + column * apart;
        if (twos && row + 4 <= rows) {
            constexpr int kSize = static_cast<int>(sizeof(D)), kWords = 2 * kSize / 4;
            unsigned words[kWords] = {};
            GEMMTUNE_UNROLL
            for (int e = 0; e < 2; ++e) words[e * kSize / 4] |= bits_of(two[e]) << e * kSize % 4 * 8;
            return store_words(to, words);
        }
        store_global(to, two[0]);
        if (row + 2 < rows) store_global(to + 1, two[1]);
    }
};

// INSTRUCTION: matrix_core.h. WHOLE_A, WHOLE_B: staged_operand.h; WHOLE_A also says that the weights of every group
// begin at a multiple of 16 bytes. SCALES: enum GroupedScales. GATED: gated_rows.h.
template <typename INSTRUCTION, typename TYPES, int GROUPS, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN,
          int BK, int WM, int WN, int STAGES, int SCALES, bool GATED>
struct GroupedStagedTile {
    using Args = typename ArgsOfGroups<SCALES != kUnscaled>::Type;
    using Product = RegisterStagedTile<INSTRUCTION, TYPES, true, true, WHOLE_A, WHOLE_B, FAR, BM, BN, BK, WM, WN,
                                       STAGES, 1, GATED>;
    using Tiles = GroupedTiles<GROUPS, BN, BM>;
    using Sum = typename Product::Sum;
    using Sums = typename Product::Sums;
    static constexpr int kTilesM = Product::kTilesM, kTilesN = Product::kTilesN;
    static constexpr int kThreads = Product::kThreads, kMinBlocks = 0;
    static constexpr int kTable = Product::kSharedBytes, kSharedBytes = kTable + Tiles::kBytes;
    static_assert(SCALES != kBlockScales || (BK == kScaleBlock && WM <= kScaleBlock), "a tile along k has one scale");
    static_assert(!GATED || SCALES == kUnscaled, "gated weights have no scales");

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
            const ScaledArgs own = product_of(all, at);
            const bool idle = at.row + row >= own.m || column >= own.n;
            Sums sum[kTilesM][kTilesN] = {};
            if constexpr (SCALES == kBlockScales) {
                BlockScales scaled(all, at, row, column, every.end, idle);
                multiply(own, at, every, row, column, idle, shared, sum, scaled);
                store(own, at, row, column, idle, scaled.total, patch);
            } else {
                typename Product::Nothing nothing;
                multiply(own, at, every, row, column, idle, shared, sum, nothing);
                store(own, at, row, column, idle, sum, patch);
            }
            block_barrier();  // sums have been read where the next tile's operands go
        }
    }

private:
    template <typename AFTER>
    static GEMMTUNE_DEVICE void multiply(const ScaledArgs& own, const GroupedTilePlace& at, const Slice<BK>& every,
                                         int row, int column, bool idle, char* shared,
                                         Sums (&sum)[kTilesM][kTilesN], AFTER& after) {
        if (idle) Product::template multiply<true>(own, 0, at.row, 0, every, row, column, shared, sum, after);
        else Product::template multiply<false>(own, 0, at.row, 0, every, row, column, shared, sum, after);
    }

    static GEMMTUNE_DEVICE void store(const ScaledArgs& own, const GroupedTilePlace& at, int row, int column, bool idle,
                                      const Sums (&sum)[kTilesM][kTilesN], char* patch) {
        if (idle) return;
        Product::store(sum, reinterpret_cast<Sum*>(patch), [&](int c) {
            if constexpr (GATED) return GatedFinish<TYPES>(own, at.row + row, column + c);
            else return MatrixFinish<TYPES>(own, 0, at.row + row, column + c);
        });
    }

    // Scales of blocks: a tile along k is as deep as a block, and its sums are added in fp32 times the scale of the
    // wavefront's rows and that of each column. They are requested while the tile before is multiplied.
    struct BlockScales {
        using I = INSTRUCTION;
        Sums total[kTilesM][kTilesN] = {};
        const float *of_rows, *of_columns;  // of the next tile
        int at[kTilesN];                    // the lane's columns, from the first on
        int left;                           // tiles that were not requested
        float row_scale, column_scale[kTilesN];

        GEMMTUNE_DEVICE BlockScales(const Args& all, const GroupedTilePlace& tile, int row, int column, int tiles,
                                    bool idle)
            : left(idle ? 0 : tiles) {
            const i64 down = (static_cast<unsigned>(all.gemm.m) - 1) / kScaleBlock + 1;
            of_rows = all.scale_a + (tile.group * down + (tile.row + row) / kScaleBlock) * tiles;
            of_columns = all.scale_b + (static_cast<i64>(tile.start) + tile.column) * tiles;
            GEMMTUNE_UNROLL
            for (int n = 0; n < kTilesN; ++n) {
                const int own = column + n * I::kLines + I::column(lane_index());
                at[n] = (own < tile.columns ? own : tile.columns - 1) * tiles;
            }
            request();
        }

        GEMMTUNE_DEVICE void request() {
            if (left == 0) return;
            --left;
            row_scale = load_global(of_rows++);
            GEMMTUNE_UNROLL
            for (int n = 0; n < kTilesN; ++n) column_scale[n] = load_global(of_columns + at[n]);
            ++of_columns;
        }

        GEMMTUNE_DEVICE void operator()(Sums (&sum)[kTilesM][kTilesN]) {
            float scale[kTilesN];
            GEMMTUNE_UNROLL
            for (int n = 0; n < kTilesN; ++n) scale[n] = row_scale * column_scale[n];
            request();
            GEMMTUNE_UNROLL
            for (int m = 0; m < kTilesM; ++m) {
                GEMMTUNE_UNROLL
                for (int n = 0; n < kTilesN; ++n) {
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < I::kSums; ++i) total[m][n][i] += scale[n] * sum[m][n][i];
                    sum[m][n] = {};
                }
            }
        }
    };

    // The tile's product. Scales of rows multiply finished sums.
    static GEMMTUNE_DEVICE ScaledArgs product_of(const Args& all, const GroupedTilePlace& at) {
        constexpr int kSize = static_cast<int>(sizeof(typename TYPES::A));
        ScaledArgs own = of_group<kSize, kSize, typename TYPES::D>(all.gemm, at);
        if constexpr (SCALES == kRowScales) {
            own.scale_a = all.scale_a + static_cast<i64>(at.group) * own.m, own.scale_row = 1;
            own.scale_b = all.scale_b + at.start + at.column, own.scale_column = 1;
        }
        return own;
    }
};

}  // namespace gemmtune
