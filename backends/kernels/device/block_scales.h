// Scales of blocks in a pipeline of tiles (Hopper): of 128 x 128 elements of A and of 128 elements of each of B's
// columns. They come to shared memory with the tiles that they belong to, as a load from memory for each step would take
// longer than the step. A stage has BN scales of columns, then one for each 64 rows of A.
#pragma once

#include "device/hopper.h"

namespace gemmtune {

template <int BM, int BN>
struct BlockScales {
    static constexpr int kFloats = BN + 4;  // of a stage
    static_assert(BM <= 256 && BN % 8 == 0, "a stage's scales");

    // What a lane of the producer warp copies: the scales of every 32nd column, and those of 64 rows. Scales of columns
    // and rows that do not exist are zero.
    struct Copies {
        const float *of_columns, *of_rows;
        i64 columns, apart;
        bool rows;

        // of_columns: the first column's; columns: how many exist from there; of_rows: those of this lane's 64 rows, null
        // for none; apart: scales of a column.
        GEMMTUNE_DEVICE Copies(const float* of_columns, i64 columns, const float* of_rows, i64 apart)
            : of_columns(of_columns), of_rows(of_rows ? of_rows : of_columns), columns(columns), apart(apart),
              rows(of_rows != nullptr) {}
        // Starts a step's copies; arrive_after_copies() arrives behind them.
        GEMMTUNE_DEVICE void start(float* to, int step) const {
            const int lane = lane_index();
            const float* const from = of_columns + step;
            GEMMTUNE_UNROLL
            for (int i = 0; i < BN; i += 32) {
                if (BN % 32 != 0 && i + lane >= BN) break;
                const bool there = i + lane < columns;
                copy_async4(to + i + lane, there ? from + (i + lane) * apart : of_columns, there ? 4 : 0);
            }
            if (lane < BM / 64) copy_async4(to + BN + lane, rows ? of_rows + step : of_columns, rows ? 4 : 0);
        }
    };

    // A step's scale of a warpgroup's rows times those of a thread's columns.
    struct Factors {
        float factor[BN / 4];

        GEMMTUNE_DEVICE void read(const float* stage) {
            const float rows = stage[BN + warp_index() / 4];
            const float* const from = stage + lane_index() % 4 * 2;
            GEMMTUNE_UNROLL
            for (int at = 0; at < BN / 4; at += 2) {
                const u64 two = *reinterpret_cast<const u64*>(from + at * 4);
                factor[at] = rows * as_float(static_cast<unsigned>(two));
                factor[at + 1] = rows * as_float(static_cast<unsigned>(two >> 32));
            }
        }
        // Adds a step's sums, in wgmma's layout, times their scales.
        GEMMTUNE_DEVICE void add(float (&sum)[BN / 2], const float (&part)[BN / 2]) const {
            GEMMTUNE_UNROLL
            for (int at = 0; at < BN / 2; ++at) sum[at] += factor[at / 4 * 2 + at % 2] * part[at];
        }
    };
};

}  // namespace gemmtune
