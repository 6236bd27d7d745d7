// Grouped products: the rows of X (columns of B), sorted by group, times the weights of their group (A). Only the
// device knows where groups end, so the blocks of a launch, of which there are `gemm.blocks`, derive from the ends
// which tiles there are, and take them round-robin. No block waits for another, and the host for none.
//
// A tile has `rows` rows of one group's weights and up to COLUMNS of its columns. Tiles are numbered group by group,
// in a group by blocks of rows, and the columns of a block of rows follow one another: blocks that run at once read
// the same weights.
#pragma once

#include "device/matrix_epilogue.h"

namespace gemmtune {

// (backends/kernels/grouped.py: GroupedArgs)
struct GroupedArgs {
    GemmArgs gemm;    // of all groups: n is the number of B's columns, stride_a is from group to group
    const int* ends;  // of each group's columns
    int groups, unused;
};

// The same, with scales (backends/kernels/grouped.py: ScaledGroupedArgs).
struct ScaledGroupedArgs : GroupedArgs {
    const float *scale_a, *scale_b;    // of every group's weights; of the columns of all groups
    i64 scale_a_bytes, scale_b_bytes;  // of all scales
};

// The same, with quantised weights, whose stride is in bytes (backends/kernels/grouped.py: GroupedWeightArgs).
// `scale_row`: scales of a row. Bytes: from the scales and zero points of a group to those of the next one, and of all.
struct GroupedWeightArgs : GroupedArgs {
    const void *scales, *zeros;
    i64 scale_row, scale_group, zero_group, scale_bytes, zero_bytes;
};

// Which elements share a scale. kRowScales: a row of the weights, and a column. kBlockScales: 128 x 128 weights, and
// 128 elements of a column: [groups][ceil(m / 128)][ceil(k / 128)] and [n][ceil(k / 128)].
enum GroupedScales { kUnscaled = 0, kRowScales = 1, kBlockScales = 2 };
constexpr int kScaleBlock = 128;

// What differs between 16-bit floats and 8-bit ones, which have scales.
template <typename TYPES>
struct GroupedOf;
template <typename INPUT, typename C, typename D_TYPE, typename BIAS>
struct GroupedOf<Types<INPUT, C, D_TYPE, BIAS>> {
    using T = INPUT;
    using D = D_TYPE;
    using Args = GroupedArgs;
};
template <typename A, typename C, typename D_TYPE, typename BIAS>
struct GroupedOf<MatrixTypes<A, A, C, D_TYPE, BIAS>> {
    using T = A;
    using D = D_TYPE;
    using Args = ScaledGroupedArgs;
};

// A tile: its group, the group's first column, and the tile's first row, first column and columns.
struct GroupedTilePlace {
    int group, start, row, column, columns;
};

// The tiles of a launch. GROUPS: the most groups, whole warps of them.
template <int GROUPS, int COLUMNS, int ROWS>
struct GroupedTiles {
    static constexpr int kBytes = 2 * GROUPS * 4;  // of shared memory
    static constexpr int kLanes = 32, kEach = GROUPS / kLanes;  // that count groups; groups of a lane
    static_assert(GROUPS % kLanes == 0 && GROUPS <= 1024, "whole warps of groups");

    int *ends, *before;  // of groups: ends of their columns; tiles across of all groups up to this one
    unsigned row_blocks, tiles;

    // All threads of the block must take part.
    GEMMTUNE_DEVICE GroupedTiles(const GroupedArgs& args, char* shared)
        : ends(reinterpret_cast<int*>(shared)), before(ends + GROUPS),
          row_blocks((static_cast<unsigned>(args.gemm.m) - 1) / ROWS + 1) {
        if (warp_index() == 0) count(args);
        block_barrier();
        tiles = static_cast<unsigned>(before[GROUPS - 1]) * row_blocks;
    }

    GEMMTUNE_DEVICE GroupedTilePlace place(unsigned tile) const {
        const int across = static_cast<int>(tile / row_blocks);
        int group = 0;  // the first with more tiles before its end than `across`
        GEMMTUNE_UNROLL
        for (int half = GROUPS / 2; half > 0; half /= 2)
            if (before[group + half - 1] <= across) group += half;
        const int start = group > 0 ? ends[group - 1] : 0, first = group > 0 ? before[group - 1] : 0;
        const unsigned wide = static_cast<unsigned>(before[group] - first);
        const unsigned within = tile - static_cast<unsigned>(first) * row_blocks;
        const int column = static_cast<int>(within % wide) * COLUMNS, left = ends[group] - start - column;
        return {group, start, static_cast<int>(within / wide) * ROWS, column, left < COLUMNS ? left : COLUMNS};
    }

private:
    // A lane has kEach neighbouring groups. Their ends are loaded by neighbouring lanes.
    GEMMTUNE_DEVICE void count(const GroupedArgs& args) const {
        const int lane = lane_index(), first = lane * kEach;
        const bool counts = kWarp == kLanes || lane < kLanes;  // of 64 lanes the first 32
        int loaded[kEach];
        GEMMTUNE_UNROLL
        for (int i = 0; i < kEach; ++i) {
            const int group = i * kLanes + lane, all = static_cast<int>(args.gemm.n);
            const int end = counts && group < args.groups ? args.ends[group] : 0;
            loaded[i] = end < 0 ? 0 : end > all ? all : end;  // no end leads out of the operands
        }
        if (counts) {
            GEMMTUNE_UNROLL
            for (int i = 0; i < kEach; ++i) ends[i * kLanes + lane] = loaded[i];
        }
        warp_barrier();
        int sum = 0;
        bool back = false;  // a group ends before the one before it
        if (counts) {
            GEMMTUNE_UNROLL
            for (int i = 0; i < kEach; ++i) {
                const int group = first + i, start = group > 0 ? ends[group - 1] : 0;
                const int columns = group < args.groups ? ends[group] - start : 0;
                back |= columns < 0;
                sum += columns > 0 ? (columns + COLUMNS - 1) / COLUMNS : 0;
                before[group] = sum;
            }
        }
        warp_barrier();
        back = warp_any(back);
        // (Unrolled, so that the loads do not wait for one another: no tile starts before this.)
        int earlier = 0;
        GEMMTUNE_UNROLL
        for (int other = 0; other < kLanes - 1; ++other) {
            const int theirs = before[other * kEach + kEach - 1];
            earlier += other < lane ? theirs : 0;
        }
        warp_barrier();
        if (counts) {
            GEMMTUNE_UNROLL
            for (int i = 0; i < kEach; ++i) before[first + i] += earlier;
        }
        if (GEMMTUNE_RARELY(back)) {
            warp_barrier();
            if (lane == 0) count_forward(args.groups);
        }
    }

    // The same by one lane, where ends go back: no group begins before the last end so far, so that no two have the
    // same columns.
    GEMMTUNE_DEVICE void count_forward(int groups) const {
        int last = 0, sum = 0;
        GEMMTUNE_ROLL
        for (int group = 0; group < GROUPS; ++group) {
            const int columns = group < groups ? ends[group] - last : 0;
            if (columns > 0) last += columns, sum += (columns + COLUMNS - 1) / COLUMNS;
            ends[group] = last, before[group] = sum;
        }
    }
};

}  // namespace gemmtune
