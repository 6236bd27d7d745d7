// 8-bit weights times few columns of 8-bit activations on tensor cores (mma.sync, sm_80 and later; 8-bit floats sm_89),
// with scales: int8 summed in int32, 8-bit floats in fp32. The weights are A and are read once. Data in flight is in
// shared memory, as in dequant_ring.h: a ring of SLOTS chunks of BK elements along k, in which WARPS_M warps, a team,
// have ROWS rows of weights each and share COLUMNS columns of activations. A block's WARPS_K teams have the same rows
// and take chunks round-robin; their sums are added at the end. One barrier of the team a chunk says that all of its
// copies have arrived and that the previous chunk has been read.
//
// The weights are the sixteen rows of an instruction, the activations its eight columns (mma_bytes.h). A lane reads 16
// contiguous bytes of a row, so the four lanes of a row read a *step* of 64 elements.
//
// Scales of rows, columns and operands multiply finished sums, in fp32 (matrix_epilogue.h). They are copied to shared
// memory together with the first chunk, so that the end of the kernel does not wait for them. BLOCKS: 128 x 128 weights
// share a scale, and 128 activations of a column; the sums of 128 elements of k are scaled before they are added.
#pragma once

#include "device/byte_tiles.h"
#include "device/line_copies.h"
#include "device/matrix_epilogue.h"

namespace gemmtune {

template <typename TYPES, bool BLOCKS, int COLUMNS, int ROWS, int BK, int SLOTS, int WARPS_M, int WARPS_K>
struct BytesRing {
    using Args = ScaledArgs;
    using SecondLaunch = AddSlices<TYPES, !BLOCKS>;
    using Products = ByteProducts<typename TYPES::A, typename TYPES::B>;
    using Sum = typename TYPES::Sum;
    static constexpr int kTeam = 32 * WARPS_M, kThreads = kTeam * WARPS_K, kMinBlocks = 0;
    static constexpr int kAll = ROWS * WARPS_M;                            // rows of a block
    static constexpr int kStep = 64, kSteps = BK / kStep;                  // elements of k; steps of a chunk
    static constexpr int kTiles = ROWS / 16, kHalves = (COLUMNS + 7) / 8;  // accumulators down and across
    static constexpr int kDeep = 128;                                      // elements of k that share a scale
    static constexpr int kScales = BLOCKS ? BK / kDeep : 0;  // of a tile's rows, or of a column, in a chunk
    // Where the parts of a slot begin.
    static constexpr int kX = kAll * BK, kS = kX + COLUMNS * BK, kT = kS + kAll / 16 * kScales * 4;
    static constexpr int kSlot = (kT + COLUMNS * kScales * 4 + 15) / 16 * 16;
    static constexpr int kSumsPitch = kAll + 8, kPart = COLUMNS * kSumsPitch;  // of a team's sums
    static constexpr int kRings = WARPS_K * SLOTS * kSlot, kParts = WARPS_K * kPart * 4;
    static constexpr int kOwnScales = kRings > kParts ? kRings : kParts;  // where scales of rows and columns begin
    static constexpr int kSharedBytes = kOwnScales + (BLOCKS ? 0 : (kAll + COLUMNS + 3) / 4 * 16);
    static_assert(sizeof(typename TYPES::A) == 1 && sizeof(typename TYPES::B) == 1, "8-bit elements");
    static_assert(kWarp == 32, "fragments of 32 lanes");
    static_assert(ROWS % 16 == 0 && BK % kStep == 0 && SLOTS >= 2, "whole tiles and steps");
    static_assert(COLUMNS <= 8 || COLUMNS % 8 == 0, "whole halves of tiles");
    static_assert(!BLOCKS || (BK % kDeep == 0 && !kInteger<typename TYPES::A>), "whole blocks, of floats");
    static_assert(WARPS_M == 1 || WARPS_K <= 15, "a named barrier a team");

    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const Args& args, char* shared) {
        const Task task(args);
        const int team = warp_index() / WARPS_M, member = warp_index() % WARPS_M;
        const int first = static_cast<int>(block_x()) * kAll;
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        const Copies copies(args, task, first, member);
        const Reads reads(member);
        char* const ring = opaque_shared(shared + team * SLOTS * kSlot);
        Sums sum = {};
        // The first SLOTS - 1 iterations only copy. Every team has the same iterations, the last maybe without a
        // chunk.
        const int end = opaque(mine.end);
        int next = opaque(mine.begin + team), to = 0, from = 0;
        wait_for_launches();
        if (task.beyond(args)) return;
        GEMMTUNE_ROLL
        for (int ahead = 1 - SLOTS; next - team < end + (SLOTS - 1) * WARPS_K; ++ahead) {
            if (ahead >= 0) {
                wait_copies<SLOTS - 2>();
                team_barrier(team);  // this chunk has arrived; the previous one's place is free
            }
            if (next < end) copies.chunk(ring + to, next);
            // After the first weights, which everything waits for.
            if (!BLOCKS && ahead == 1 - SLOTS && args.splits == 1)
                copy_scales(args, first, reinterpret_cast<float*>(shared + kOwnScales));
            commit_copies();  // also an empty group: groups are counted
            next += WARPS_K, to = to + kSlot == SLOTS * kSlot ? 0 : to + kSlot;
            if (ahead < 0) continue;
            if (WARPS_K == 1 || next - SLOTS * WARPS_K < end) Tiles::multiply(ring + from, reads, sum);
            from = from + kSlot == SLOTS * kSlot ? 0 : from + kSlot;
        }
        wait_copies<0>();
        release_reduce(args);
        block_barrier();  // sums take the rings' place
        lay_out(sum, reinterpret_cast<Sum*>(shared) + team * kPart, member);
        block_barrier();
        store(args, task, first, reinterpret_cast<const Sum*>(shared),
              reinterpret_cast<const float*>(shared + kOwnScales));
    }

private:
    using Tiles = ByteTiles<Products, kTiles, kHalves, kSteps, BLOCKS>;
    using Sums = typename Tiles::Sums;

    static GEMMTUNE_DEVICE void team_barrier(int team) {
        if constexpr (WARPS_M == 1) warp_barrier();
        else if constexpr (WARPS_K == 1) block_barrier();
        else named_barrier_sync<kTeam>(1 + team);
    }

    // Starts copies of the scales of the block's rows and of all columns, which the first group of copies includes.
    static GEMMTUNE_DEVICE void copy_scales(const Args& args, int first, float* to) {
        const int rows = args.m - first < kAll ? args.m - first : kAll;
        for (int i = static_cast<int>(thread_index()); i < kAll + COLUMNS; i += kThreads) {
            const int column = i - kAll;
            if (column < 0 && args.scale_a && i < (args.scale_row ? rows : 1))
                copy_async4(to + i, args.scale_a + (first + i) * args.scale_row);
            if (column >= 0 && args.scale_b && column < (args.scale_column ? args.n : 1))
                copy_async4(to + i, args.scale_b + column * args.scale_column);
        }
    }

    // A warp copies its own rows of weights, and its share of the team's activations.
    struct Copies {
        LineCopies<BK, ROWS, 32, 1> weights;
        LineCopies<BK, COLUMNS, kTeam, 1> inputs;
        const float *of_rows, *of_columns;  // BLOCKS: scales of the warp's first row's block, and of all columns
        int k, row, groups, member, offset, rows, columns;

        GEMMTUNE_DEVICE Copies(const Args& args, Task task, int first, int member)
            : weights(static_cast<const char*>(args.a) + task.batch * args.stride_a +
                          (first + member * ROWS) * args.lda,
                      args.lda, args.m - first - member * ROWS, lane_index()),
              inputs(static_cast<const char*>(args.b) + task.batch * args.stride_b, args.ldb, args.n,
                     member * 32 + lane_index()),
              k(args.k), row(member * ROWS), member(member) {
            if constexpr (BLOCKS) {
                const int begin = first + row;
                groups = (args.k - 1) / kDeep + 1, offset = begin % kDeep;
                of_rows = args.scale_a + static_cast<i64>(begin / kDeep) * groups, of_columns = args.scale_b;
                rows = args.m - begin, columns = args.n;
            }
        }

        // Starts this lane's copies of a chunk. Elements beyond the last are zero.
        GEMMTUNE_DEVICE void chunk(char* slot, int chunk) const {
            const int left = k - chunk * BK;
            const i64 at = static_cast<i64>(chunk) * BK;
            char* const to = slot + row * BK;
            if (left >= BK) {
                weights.template run<true>(to, at, BK);
                inputs.template run<true>(slot + kX, at, BK);
            } else {
                weights.template run<false>(to, at, left);
                inputs.template run<false>(slot + kX, at, left);
            }
            if constexpr (BLOCKS) {
                const int from = chunk * kScales;
                for (int i = lane_index(); i < kTiles * kScales; i += 32) {
                    const int tile = i / kScales, block = from + i % kScales;
                    const bool there = tile * 16 < rows && block < groups;
                    const i64 on = there ? static_cast<i64>((offset + tile * 16) / kDeep) * groups + block : 0;
                    copy_async4(slot + kS + (row / 16 * kScales + i) * 4, there ? of_rows + on : of_columns,
                                there ? 4 : 0);
                }
                for (int i = member * 32 + lane_index(); i < COLUMNS * kScales; i += kTeam) {
                    const int column = i / kScales, block = from + i % kScales;
                    const bool there = column < columns && block < groups;
                    const i64 on = there ? static_cast<i64>(column) * groups + block : 0;
                    copy_async4(slot + kT + i * 4, of_columns + on, there ? 4 : 0);
                }
            }
        }
    };

    // Where a lane reads in a slot: its row of every eight, its column of every eight.
    struct Reads {
        int row, weights_at, inputs_at;  // row: the warp's first one in the block
        GEMMTUNE_DEVICE explicit Reads(int warp) : row(warp * ROWS) {
            const int group = lane_index() / 4, member = lane_index() % 4;
            weights_at = opaque(line_place<BK>(row + group, member));
            inputs_at = opaque(kX + line_place<BK>(COLUMNS < 8 ? group % COLUMNS : group, member));
        }
        GEMMTUNE_DEVICE Words weights(const char* slot, int from, int step) const {
            return read_shared<Words>(slot + line_word<BK>(weights_at, step) + from * BK);
        }
        GEMMTUNE_DEVICE Words inputs(const char* slot, int half, int step) const {
            return read_shared<Words>(slot + line_word<BK>(inputs_at, step) + half * 8 * BK);
        }
        // BLOCKS: the scale of a tile's rows, and of a column, in the chunk's block `of`.
        GEMMTUNE_DEVICE float of_rows(const char* slot, int tile, int of) const {
            return reinterpret_cast<const float*>(slot + kS)[(row / 16 + tile) * kScales + of];
        }
        GEMMTUNE_DEVICE float of_column(const char* slot, int column, int of) const {
            const int last = COLUMNS < 8 ? column % COLUMNS : column;
            return reinterpret_cast<const float*>(slot + kT)[last * kScales + of];
        }
    };

    // A warp's sums, column by column.
    static GEMMTUNE_DEVICE void lay_out(const Sums& sum, Sum* part, int member) {
        const int group = lane_index() / 4, pair = lane_index() % 4 * 2;
        GEMMTUNE_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
            GEMMTUNE_UNROLL
            for (int half = 0; half < kHalves; ++half) {
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const int row = member * ROWS + tile * 16 + i / 2 * 8 + group, column = half * 8 + pair + i % 2;
                    if (COLUMNS % 8 && column >= COLUMNS) continue;
                    part[column * kSumsPitch + row] = sum[tile][half][i];
                }
            }
        }
    }

    // Adds the teams' sums and stores them, four neighbouring rows of a column a thread.
    static GEMMTUNE_DEVICE void store(const Args& args, Task task, int first, const Sum* parts, const float* scales) {
        if (args.splits > 1) return finish(SlicePlace<Sum>(args, task, first, 0), parts);
        MatrixFinish<TYPES> here(args, task.batch, first, 0);
        if constexpr (BLOCKS) here.scale_a = here.scale_b = nullptr;
        else {
            if (args.scale_a) here.scale_a = scales;
            if (args.scale_b) here.scale_b = scales + kAll;
        }
        finish(here, parts);
    }
    template <typename PLACE>
    static GEMMTUNE_DEVICE void finish(const PLACE& place, const Sum* parts) {
        constexpr int kFours = kAll / 4;
        for (int i = static_cast<int>(thread_index()); i < kFours * COLUMNS; i += kThreads) {
            const int column = i / kFours, row = i % kFours * 4;
            Sum four[4] = {};
            GEMMTUNE_UNROLL
            for (int team = 0; team < WARPS_K; ++team) {
                GEMMTUNE_UNROLL
                for (int e = 0; e < 4; ++e) four[e] += parts[team * kPart + column * kSumsPitch + row + e];
            }
            place.store4(row, column, four);
        }
    }
};

}  // namespace gemmtune
