// Products of two MXFP4 operands on tensor cores (mma.sync, sm_80 and later): a block computes a tile of D, or with
// split k one slice's partial sums of it, by the main loop of tile_product.h. That copies bytes, of two elements each,
// and BK counts them; 16 bytes of a line are a group of 32 elements.
//
// A warp converts its lines' fragments in registers (mx_pairs.h: PAIRS), those of one group for all of its instructions,
// and adds the sums of a group, times both scales, in fp32. A lane loads the scales of its rows and columns from global
// memory before it multiplies a tile, those of four groups at once. (Those of the next tile, too, are too many registers.)
#pragma once

#include "device/mx_pairs.h"
#include "device/tile_product.h"

namespace gemmtune {

// The elements in shared memory, and what is added.
struct MxElements {
    using T = Int8;
    using Sum = float;
};

template <typename TYPES, typename PAIRS, bool WORDS, int BM, int BN, int BK, int WM, int WN, int STAGES, int GROUP>
struct Mxfp4TileMma {
    using Args = MxArgs;
    using Product = TileProduct<TYPES, true, true, kAt16, kAt16, BM, BN, BK, WM, WN, STAGES, MxElements>;
    using Part = typename Product::Part;
    using Sums = typename Product::Sums;
    static constexpr int kThreads = Product::kThreads, kMinBlocks = 0;
    static constexpr int kSharedBytes = Product::kSharedBytes;
    static constexpr int kTilesM = Product::kTilesM, kTilesN = Product::kTilesN;  // of 16 rows and columns, of a warp
    static constexpr int kFours = BK / 64;                                        // groups of a tile, by four
    static_assert(BK % 64 == 0, "whole fours of groups");

    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.gemm;
        const Task task(args);
        i64 i, j;
        TileOrder<BM, BN, GROUP>(args).place(block_x(), i, j);
        const Part part(args, i, j);
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        Sums sum = {};
        wait_for_launches();
        if (task.beyond(args)) return;
        Scaled scaled(all, part);
        Product::multiply(args, task.batch, part, mine.begin, mine.end, shared, sum, scaled);
        release_reduce(args);
        if (part.idle) return;
        Product::transpose_all(sum, part, shared, [&](i64 column, const float* patch) {
            if (args.splits == 1) return Product::finish(args, task.batch, part, column, patch);
            const i64 slice = static_cast<i64>(task.slice) * args.batch + task.batch;
            float* const to = args.partial + (slice * args.n + column) * args.m + part.i;
            Product::store(args, part, column, patch, to, args.m, [](float x) { return x; });
        });
    }

private:
    // A lane's rows are `group` and every eighth from there on, its columns 2 member and 2 member + 1 of every eight.
    struct Scaled : NothingAround {
        static constexpr bool kMultiplies = true;
        const unsigned char *of_rows, *of_columns;  // scales of the first row and column
        int groups, rows, columns;                  // scales of a line; rows and columns of D from the first on
        unsigned row[kTilesM * 2][kFours], column[kTilesN * 4][kFours];              // of the tile

        GEMMTUNE_DEVICE Scaled(const Args& all, const Part& part) : groups(static_cast<int>(all.groups)) {
            const i64 i = part.i + lane_index() / 4, j = part.j + lane_index() % 4 * 2;
            of_rows = all.scales_a + i * all.groups, of_columns = all.scales_b + j * all.groups;
            rows = static_cast<int>(all.gemm.m - i), columns = static_cast<int>(all.gemm.n - j);
        }

        GEMMTUNE_DEVICE void before(int tile) { load(tile); }

        // The products of 32 bytes of every line: two groups.
        template <int TILES_M, int TILES_N>
        GEMMTUNE_DEVICE void multiply(int step, const unsigned (&a)[TILES_M][4], const unsigned (&b)[TILES_N][4],
                                      Sums& sum) const {
            GEMMTUNE_UNROLL
            for (int half = 0; half < 2; ++half) {
                const int number = step * 2 + half, four = number / 4, of = number % 4;
                typename PAIRS::Eight lines[kTilesM][2];
                float of_row[kTilesM][2];
                GEMMTUNE_UNROLL
                for (int at = 0; at < kTilesM * 2; ++at) {
                    lines[at / 2][at % 2] = PAIRS::eight(a[at / 2][half * 2 + at % 2]);
                    of_row[at / 2][at % 2] = scale_of(row[at][four], of);
                }
                GEMMTUNE_UNROLL
                for (int n = 0; n < kTilesN * 2; ++n) {
                    const typename PAIRS::Eight of_b = PAIRS::eight(b[n / 2][n % 2 * 2 + half]);
                    const float of_column[2] = {PAIRS::kUnit * scale_of(column[n * 2][four], of),
                                                PAIRS::kUnit * scale_of(column[n * 2 + 1][four], of)};
                    GEMMTUNE_UNROLL
                    for (int m = 0; m < kTilesM; ++m) {
                        float part[4];
                        PAIRS::multiply(lines[m][0], lines[m][1], of_b, part);
                        GEMMTUNE_UNROLL
                        for (int e = 0; e < 4; ++e)
                            sum[n / 2][m][n % 2][e] += part[e] * (of_row[m][e / 2] * of_column[e % 2]);
                    }
                }
            }
        }

    private:
        GEMMTUNE_DEVICE void load(int tile) {
            // (Opaque, so that the lines' addresses are not kept in registers from tile to tile.)
            const int apart = opaque(groups), first = tile * kFours * 4;
            GEMMTUNE_UNROLL
            for (int at = 0; at < kTilesM * 2 * kFours; ++at) {
                const int line = at / kFours * 8;
                row[at / kFours][at % kFours] = four_scales<WORDS>(
                    of_rows + static_cast<i64>(line) * apart, first + at % kFours * 4, apart, line < rows);
            }
            GEMMTUNE_UNROLL
            for (int at = 0; at < kTilesN * 4 * kFours; ++at) {
                const int line = at / kFours / 2 * 8 + at / kFours % 2;
                column[at / kFours][at % kFours] = four_scales<WORDS>(
                    of_columns + static_cast<i64>(line) * apart, first + at % kFours * 4, apart, line < columns);
            }
        }
    };
};

}  // namespace gemmtune
