// 8-bit weights times many columns of 8-bit activations on tensor cores, with scales: int8 summed in int32 (mma.sync,
// sm_80 and later), 8-bit floats in fp32 (sm_89 and later). A block computes a tile of D, or with split k one slice's
// partial sums of it, by the main loop of tile_product.h. Both operands are contiguous along k and their lines are
// whole numbers of 16-byte words, so a fragment of 8-bit elements is read as one of 16-bit elements half as deep.
//
// SUMS: kPlain keeps an element's sum in its instruction's registers. The instruction for 8-bit floats adds in fewer
// bits than fp32's on sm_89, so kPromoted adds the sum of every tile along k in fp32. kScaled multiplies it first by
// the scales of 128 x 128 elements of A and of 128 of B's column; a tile is 128 deep then.
//
// The epilogue is matrix_epilogue.h's. Four neighbouring rows of a column are stored at once.
#pragma once

#include "device/matrix_epilogue.h"
#include "device/mma_bytes.h"
#include "device/tile_product.h"

namespace gemmtune {

template <typename TYPES, SumsKind SUMS, int BM, int BN, int BK, int WM, int WN, int STAGES, int GROUP>
struct BytesTileMma {
    using Args = ScaledArgs;
    using SecondLaunch = AddSlices<TYPES, SUMS != kScaled>;
    using Products = MmaBytes<typename TYPES::A, typename TYPES::B>;
    using Product = TileProduct<TYPES, true, true, kAt16, kAt16, BM, BN, BK, WM, WN, STAGES, Products>;
    using Part = typename Product::Part;
    using Sum = typename Product::Sum;
    using Sums = typename Product::Sums;
    static constexpr int kThreads = Product::kThreads, kMinBlocks = 0;
    static constexpr int kSharedBytes = Product::kSharedBytes;
    static constexpr int kTilesM = Product::kTilesM, kTilesN = Product::kTilesN;  // of 16 rows and columns, of a warp
    static constexpr int kBlock = 128;                                            // elements that share a scale
    static_assert(sizeof(typename TYPES::A) == 1 && sizeof(typename TYPES::B) == 1, "8-bit elements");
    static_assert(SUMS == kPlain || !kInteger<typename TYPES::A>, "8-bit floats' sums");
    static_assert(SUMS != kScaled || (BK == kBlock && kBlock % WM == 0), "a tile and a warp's rows have one scale");

    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const Args& args, char* shared) {
        const Task task(args);
        i64 i, j;
        TileOrder<BM, BN, GROUP>(args).place(block_x(), i, j);
        const Part part(args, i, j);
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        Sums sum = {};
        wait_for_launches();
        if (task.beyond(args)) return;
        if constexpr (SUMS == kPlain) {
            Product::multiply(args, task.batch, part, mine.begin, mine.end, shared, sum);
        } else {
            Promoted promoted(args, part, sum);
            Product::multiply(args, task.batch, part, mine.begin, mine.end, shared, promoted.own, promoted);
        }
        release_reduce(args);
        if (part.idle) return;
        Product::transpose_all(sum, part, shared, [&](i64 column, const Sum* patch) {
            if (args.splits > 1) return store(SlicePlace<Sum>(args, task, part.i, column), patch);
            MatrixFinish<TYPES> here(args, task.batch, part.i, column);
            if constexpr (SUMS == kScaled) here.scale_a = here.scale_b = nullptr;  // they are in the sums
            store(here, patch);
        });
    }

private:
    // A tile's own sums, which are added to those of the tiles before it.
    struct Promoted : NothingAround {
        Sums own = {};
        Sums& all;
        const float *of_rows, *of_columns;  // kScaled: the scales of a warp's rows, and of a lane's first column
        int groups, columns;                // blocks along k; columns of D from the lane's first on
        float factor[SUMS == kScaled ? kTilesN * 4 : 1];

        GEMMTUNE_DEVICE Promoted(const Args& args, const Part& part, Sums& all) : all(all) {
            if constexpr (SUMS == kScaled) {
                const i64 first = part.j + lane_index() % 4 * 2;
                groups = (args.k - 1) / kBlock + 1, columns = static_cast<int>(args.n - first);
                of_rows = args.scale_a + part.i / kBlock * groups, of_columns = args.scale_b + first * groups;
            }
        }
        // Loads the scales of a tile, while it is multiplied.
        GEMMTUNE_DEVICE void before(int tile) {
            if constexpr (SUMS == kScaled) {
                // (Opaque, so that the columns' addresses are not kept in registers from tile to tile.)
                const int apart = opaque(groups);
                const float rows = load_global(of_rows + tile);
                GEMMTUNE_UNROLL
                for (int at = 0; at < kTilesN * 4; ++at) {
                    const int column = at / 2 * 8 + at % 2;
                    const i64 on = static_cast<i64>(column) * apart + tile;
                    factor[at] = column < columns ? load_global(of_columns + on) : 0.0f;
                }
                GEMMTUNE_UNROLL
                for (float& one : factor) one *= rows;
            }
        }
        GEMMTUNE_DEVICE void after() {
            GEMMTUNE_UNROLL
            for (int at = 0; at < kTilesN * kTilesM * 8; ++at) {
                const int n = at / (kTilesM * 8), m = at / 8 % kTilesM, half = at / 4 % 2, e = at % 4;
                Sum& one = own[n][m][half][e];
                if constexpr (SUMS == kScaled) all[n][m][half][e] += factor[n * 4 + half * 2 + e % 2] * one;
                else all[n][m][half][e] += one;
                one = 0;
            }
        }
    };

    // Stores a warp's columns of sums, as transpose_all() laid them out, from `place` on.
    template <typename PLACE>
    static GEMMTUNE_DEVICE void store(const PLACE& place, const Sum* patch) {
        constexpr int kFours = WM / 4;  // of a column
        static_assert(kFours * Product::kColumns % 32 == 0, "all lanes store");
        GEMMTUNE_ROLL
        for (int at = lane_index(); at < kFours * Product::kColumns; at += 32) {
            const int column = at / kFours, row = at % kFours * 4;
            const Words found = *reinterpret_cast<const Words*>(patch + column * Product::kPitch + row);
            Sum four[4];
            GEMMTUNE_UNROLL
            for (int e = 0; e < 4; ++e) four[e] = __builtin_bit_cast(Sum, found.at[e]);
            place.store4(row, column, four);
        }
    }
};

}  // namespace gemmtune
