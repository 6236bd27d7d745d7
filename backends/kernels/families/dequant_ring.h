// Quantised weights times few columns of 16-bit activations on tensor cores (mma.sync, sm_80 and later). The
// weights are read once, as they are stored, and dequantised in registers, so that a product is as fast as its
// few bytes. Data in flight is in shared memory, as in skinny_ring.h: a ring of SLOTS chunks of BK elements along k.
//
// WARPS_M warps are a team with one ring: a chunk of it has ROWS rows of weights of each of them, the rows' scales
// and zero points, and COLUMNS columns of activations, which the team shares. A block's WARPS_K teams have the same
// rows and take chunks round-robin; their sums are added at the end. One barrier of the team a chunk says that all
// of its copies have arrived and that the previous chunk has been read.
//
// The weights are the sixteen rows of mma_16x8x16, the activations its eight columns. An instruction sums over k
// in any order, as long as both operands agree. So a lane reads 16 contiguous bytes of a row of weights, kWide
// integers, which lie in one group, and the activations of the same k. The four lanes of a row read 64 contiguous
// bytes: a *step* of 4 kWide elements of k. Their activations lie 2 kWide bytes apart; copies store them so that
// four lanes read 64 contiguous bytes of them, too.
//
// Scales: if a group covers whole steps, the sums of a group are multiplied by its scale in fp32, and weights are
// exact integers until then (kAfter). Otherwise, and with a zero point that is added, every weight is multiplied
// by its scale and thereby rounded once to the activations' type. A row's only scale multiplies its sum.
//
// MXFP4's groups of 32 are too short for that: the four lanes of a row read 4 bytes each, so that a step is a group,
// and an instruction's sums are one group's. Scales are bytes, and rows of them start anywhere.
//
// Converting two integers takes a byte permutation, a mask and a subtraction (dequantise.h). With few columns, whose
// products leave the tensor cores idle, the subtraction is left out where sums of bf16 are scaled: an instruction whose
// weights are all one adds up the activations, and their sum times what was to be subtracted is subtracted from the
// group's (kFolded). That is exact but for fp32's rounding of sums of numbers of 128 to 143.
//
// PRODUCTS: how a warp multiplies, by mma.sync or, with more columns, by Hopper's wgmma (dequant_wgmma.h).
#pragma once

#include "device/dequant_tiles.h"
#include "device/dequant_together.h"
#include "device/epilogue.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, int COLUMNS, int ROWS, int BK, int SLOTS, int WARPS_M, int WARPS_K,
          typename PRODUCTS = ByWarps>
struct DequantRing {
    using Chunk = DequantChunk<TYPES, QUANT, COLUMNS, ROWS, BK, WARPS_M, PRODUCTS>;
    using Args = WeightArgs;
    using T = typename Chunk::T;
    using Scale = typename Chunk::Scale;
    static constexpr int kTeam = Chunk::kTeam, kThreads = kTeam * WARPS_K, kMinBlocks = 0;
    static constexpr int kAll = Chunk::kAll, kSlot = Chunk::kSlot, kGroup = Chunk::kGroup;
    static constexpr int kStep = Chunk::kStep, kSteps = Chunk::kSteps, kEights = Chunk::kEights;
    static constexpr bool kGrouped = Chunk::kGrouped, kAfter = Chunk::kAfter, kFolded = Chunk::kFolded;
    static constexpr int kTiles = ROWS / 16, kHalves = Chunk::kHalves;  // accumulators down and across
    using Tiles = DequantTiles<Chunk, kTiles>;
    using Together = DequantTogether<Chunk, QUANT, PRODUCTS, kTiles>;
    static constexpr int kRun = Tiles::kRun, kAtOnce = Tiles::kAtOnce;
    static constexpr int kSumsPitch = kAll + 8, kPart = COLUMNS * kSumsPitch;  // of a team's sums, in floats
    static constexpr int kRings = WARPS_K * SLOTS * kSlot, kParts = WARPS_K * kPart * 4;
    static constexpr int kSharedBytes = kRings > kParts ? kRings : kParts;
    static_assert(SLOTS >= 2, "a chunk is read while another arrives");
    static_assert(WARPS_M == 1 || WARPS_K <= 15, "a named barrier a team");
    static_assert(!PRODUCTS::kOfWarpgroups || (COLUMNS % 8 == 0 && WARPS_M % 4 == 0), "a team is whole warpgroups");

    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.gemm;
        const Task task(args);
        const int team = warp_index() / WARPS_M, member = warp_index() % WARPS_M;
        const int first = static_cast<int>(block_x()) * kAll;
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        const Copies copies(all, first, member);
        const Reads reads(member, args.k, all.scale_row);
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
                PRODUCTS::show();
                team_barrier(team);  // this chunk has arrived; the previous one's place is free
            }
            if (next < end) copies.chunk(ring + to, next);
            commit_copies();  // also an empty group: groups are counted
            next += WARPS_K, to = to + kSlot == SLOTS * kSlot ? 0 : to + kSlot;
            if (ahead < 0) continue;
            if (WARPS_K == 1 || next - SLOTS * WARPS_K < end) {
                if constexpr (PRODUCTS::kOfWarpgroups) {
                    Together::multiply(ring + from, reads, sum);
                } else {
                    GEMMTUNE_UNROLL
                    for (int tile = 0; tile < kTiles; tile += kAtOnce)
                        Tiles::multiply(opaque_shared(ring + from), reads, tile, sum);
                }
            }
            from = from + kSlot == SLOTS * kSlot ? 0 : from + kSlot;
        }
        wait_copies<0>();
        release_reduce(args);
        block_barrier();  // sums take the rings' place
        store(all, task, first, sum, reinterpret_cast<float*>(shared), team, member);
    }

private:
    using Copies = typename Chunk::Copies;
    using Reads = typename Chunk::Reads;
    using Row = typename Chunk::Row;
    using Sums = typename Tiles::Sums;

    static GEMMTUNE_DEVICE void team_barrier(int team) {
        if constexpr (WARPS_M == 1) warp_barrier();
        else if constexpr (WARPS_K == 1) block_barrier();
        else named_barrier_sync<kTeam>(1 + team);
    }

    // Adds the teams' sums and stores them; neighbouring threads store neighbours in D's columns.
    static GEMMTUNE_DEVICE void store(const Args& all, Task task, int first, const Sums& sum, float* parts, int team,
                                      int member) {
        const int group = lane_index() / 4, pair = lane_index() % 4 * 2;
        GEMMTUNE_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
            GEMMTUNE_UNROLL
            for (int half = 0; half < kHalves; ++half) {
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const int row = member * ROWS + tile * 16 + i / 2 * 8 + group, column = half * 8 + pair + i % 2;
                    if (COLUMNS % 8 && column >= COLUMNS) continue;
                    parts[team * kPart + column * kSumsPitch + row] = sum[tile][half][i];
                }
            }
        }
        block_barrier();
        for (int i = static_cast<int>(thread_index()); i < kAll * COLUMNS; i += kThreads) {
            const int at = i / kAll * kSumsPitch + i % kAll, row = first + i % kAll;
            float whole = 0.0f;
            GEMMTUNE_UNROLL
            for (int part = 0; part < WARPS_K; ++part) whole += parts[part * kPart + at];
            if (!kGrouped && row < all.gemm.m)
                whole *= widen(static_cast<const Scale*>(all.scales)[row * all.scale_row]) * Chunk::kUnshrunk;
            finish_slice<TYPES>(all.gemm, task, row, i / kAll, whole);
        }
    }
};

}  // namespace gemmtune
