// A wavefront's sums on their way to D: they pass through a patch of shared memory of its own, kColumns columns at a
// time, so that neighbouring lanes store neighbouring rows. D is contiguous along its columns.
#pragma once

#include "device/matrix_core.h"

namespace gemmtune {

// Of WM rows and WN columns. TURNED: D's columns are the rows of the instruction's sums, and its rows their columns.
template <typename I, int WM, int WN, bool TURNED>
struct SumPatch {
    using Sum = typename I::Sum;
    using Sums = typename I::Sums;
    static constexpr int kTilesM = WM / I::kLines, kTilesN = WN / I::kLines;
    static constexpr int kColumns = 16, kPad = 4;  // kPad keeps columns in different banks
    static constexpr int kPitch = WM + kPad, kBytes = kColumns * kPitch * 4;
    static constexpr int kHalves = I::kLines / kColumns, kSumsOfHalf = I::kSums / kHalves;
    static constexpr int kFours = WM / 4;              // lanes that store one column
    static constexpr int kAtOnce = I::kWave / kFours;  // columns that a wavefront stores at once
    static_assert(kFours <= I::kWave && kColumns % kAtOnce == 0, "a wavefront stores whole columns");

    // Stores the wavefront's sums; place(column) is where those from a column of its part on go. The code of
    // a store is in the program once, not for each group of columns.
    template <typename PLACE>
    static GEMMTUNE_DEVICE void store(const Sums (&sum)[kTilesM][kTilesN], Sum* patch, const PLACE& place) {
        const int lane = lane_index(), row = lane % kFours * 4, column = lane / kFours;
        GEMMTUNE_ROLL
        for (int group = 0; group < kTilesN * kHalves; ++group) {
            if (group > 0) warp_barrier();  // the columns before are read
            GEMMTUNE_UNROLL
            for (int here = 0; here < kTilesN * kHalves; ++here) {
                if (here != group) continue;
                GEMMTUNE_UNROLL
                for (int m = 0; m < kTilesM; ++m)
                    lay_out(sum[m][here / kHalves], here % kHalves, m * I::kLines, patch);
            }
            warp_barrier();
            const auto to = place(group * kColumns);
            GEMMTUNE_ROLL
            for (int c = column; c < kColumns; c += kAtOnce) {
                const Words found = *reinterpret_cast<const Words*>(patch + c * kPitch + row);
                Sum four[4];
                GEMMTUNE_UNROLL
                for (int e = 0; e < 4; ++e) four[e] = __builtin_bit_cast(Sum, found.at[e]);
                to.store4(row, c, four);
            }
        }
    }

private:
    // An instruction's sums of kColumns columns, column by column.
    static GEMMTUNE_DEVICE void lay_out(const Sums& sum, int half, int row, Sum* patch) {
        const int lane = lane_index(), column = I::column(lane);
        if constexpr (TURNED) {
            GEMMTUNE_UNROLL
            for (int i = 0; i < I::kSums; ++i)
                if (i / kSumsOfHalf == half) patch[I::row(lane, i) % kColumns * kPitch + row + column] = sum[i];
        } else {
            if (kHalves > 1 && column / kColumns != half) return;
            Sum* const to = patch + column % kColumns * kPitch + row;
            GEMMTUNE_UNROLL
            for (int i = 0; i < I::kSums; ++i) to[I::row(lane, i)] = sum[i];
        }
    }
};

}  // namespace gemmtune
