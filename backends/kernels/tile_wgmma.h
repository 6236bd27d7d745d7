// Products by Hopper's tensor cores (wgmma, sm_90a) of operands that are contiguous along k and whose lines
// start at multiples of 16 bytes. One thread has the copy engine bring tiles of A and B, 64 deep, to STAGES
// buffers in shared memory (TMA); BM / 64 groups of four warps multiply them, each 64 rows and all BN columns,
// and no register of theirs sees an operand.
//
// SHARE blocks beside each other (a cluster along x) have A's tile in common: each has a part of it sent to
// all, and a buffer is free when all have read it.
//
// SPLITS blocks (a cluster along y) have a slice of k each of one tile of D. At the end each adds up, in the
// order of slices, its part of all their sums, from where they lie in each other's shared memory, and stores
// that. There is no workspace, and no second launch.
#pragma once

#include "epilogue.h"
#include "hopper.h"
#include "tile_order.h"

namespace gemmtune {

template <typename TYPES, int BM, int BN, int STAGES, int SHARE, int SPLITS, int GROUP>
struct TileWgmma {
    using T = typename TYPES::Input;
    static constexpr int kDeep = kMapLine / static_cast<int>(sizeof(T)), kSteps = kDeep / 16;
    static constexpr int kWorkers = BM / 16, kWarps = kWorkers + 1;  // warps that multiply, and the copier
    static constexpr int kThreads = 32 * kWarps, kMinBlocks = 0;
    static constexpr int kBlocks = SHARE * SPLITS;  // of a cluster
    static constexpr int kBytesA = BM * kMapLine, kBytesB = BN * kMapLine, kStage = kBytesA + kBytesB;
    // Sums on their way to D, by columns, of which a store's pairs lie 8 banks apart.
    static constexpr int kPitch = BM + 4, kPatch = BN * kPitch * 4;
    static constexpr int kPipeline = STAGES * kStage, kBarriers = kPipeline > kPatch ? kPipeline : kPatch;
    static constexpr int kSharedBytes = (kBarriers + 2 * STAGES * 8 + 1023) / 1024 * 1024;
    static constexpr bool kWaits = true;
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit floats, fragments of 32 lanes");
    static_assert(BM % 64 == 0 && BN % 8 == 0 && BN <= 256 && STAGES >= 2, "wgmma's sizes");
    static_assert(kBlocks <= 8, "a cluster has eight blocks");

    using Args = TensorArgs<2>;  // maps of A and of B

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.product;
        Barrier* const full = reinterpret_cast<Barrier*>(shared + kBarriers);
        Barrier* const empty = full + STAGES;
        const int warp = warp_index();
        const bool copies = warp == kWorkers;
        if (copies && lane_index() < 2) fetch_map(&all.maps[lane_index()]);
        if (warp == 0 && lane_index() == 0) {
            for (int stage = 0; stage < STAGES; ++stage)
                start_barrier(&full[stage], 1), start_barrier(&empty[stage], kWorkers * SHARE);
            started_barriers();
        }
        if (kBlocks > 1) cluster_barrier<false>();
        else block_barrier();
        const unsigned slice = block_y() % SPLITS;
        const unsigned batch = block_z() + block_y() / SPLITS * static_cast<unsigned>(args.batch_blocks);
        i64 i, j;
        TileOrder<BM, BN * SHARE, GROUP>(args).place(block_x() / SHARE, i, j);
        j += block_x() % SHARE * BN;
        const unsigned steps = (static_cast<unsigned>(args.k) - 1) / kDeep + 1;
        const unsigned each = (steps - 1) / SPLITS + 1, from = least(slice * each, steps);
        const int begin = static_cast<int>(from), tiles = static_cast<int>(least(from + each, steps) - from);
        wait_for_launches();
        if (batch >= static_cast<unsigned>(args.batch)) return;  // as do all of a cluster
        float* const patch = reinterpret_cast<float*>(shared);
        float sum[BN / 2] = {};
        if (!copies) multiply_tiles(shared, tiles, full, empty, sum);
        else if (lane_index() == 0) copy(all, i, j, batch, begin, tiles, full, empty, shared);
        warp_barrier();  // the copier's lanes
        // Nobody reads this block's tiles any more, and nothing is on its way here.
        block_barrier();
        if (!copies) lay_out(sum, patch);
        if (SPLITS > 1) cluster_barrier<true>();
        else block_barrier();
        store(args, batch, i, j, static_cast<int>(slice), patch);
        if (kBlocks > 1) cluster_barrier<false>();  // others read what lies here, and have stored it then
    }

private:
    static GEMMTUNE_DEVICE unsigned least(unsigned x, unsigned y) { return x < y ? x : y; }
    // Rank in the cluster of the block `at` of those that share A's tile with this one.
    static GEMMTUNE_DEVICE int sharer(int at) {
        return static_cast<int>(block_y() % SPLITS) * SHARE + at;
    }
    // The rank of the block of slice `slice` of this tile.
    static GEMMTUNE_DEVICE int slicer(int slice) {
        return slice * SHARE + static_cast<int>(block_x() % SHARE);
    }

    // Buffers in their turn.
    struct Ring {
        int stage = 0;
        unsigned parity;
        GEMMTUNE_DEVICE explicit Ring(unsigned parity) : parity(parity) {}
        GEMMTUNE_DEVICE void advance() {
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    };
    // The parity of the first phase, and of one before it, which has ended.
    static constexpr unsigned kFilled = 0, kFree = 1;

    static GEMMTUNE_DEVICE void copy(const Args& all, i64 i, i64 j, unsigned batch, int begin, int tiles,
                                     Barrier* full, Barrier* empty, char* shared) {
        constexpr int kPart = BM / SHARE;
        const int part = static_cast<int>(block_x() % SHARE) * kPart, z = static_cast<int>(batch);
        // (Beyond 2^31 they are less than zero, which is as far beyond the tensor.)
        const int row = static_cast<int>(i) + part, column = static_cast<int>(j);
        unsigned everyone = 0;
        for (int at = 0; at < SHARE; ++at) everyone |= 1u << sharer(at);
        Ring ring(kFree);
        GEMMTUNE_ROLL
        for (int tile = 0; tile < tiles; ++tile) {
            Barrier* const done = &full[ring.stage];
            char* const to = shared + ring.stage * kStage;
            const int p = (begin + tile) * kDeep;
            wait_phase(&empty[ring.stage], ring.parity);
            expect_bytes(done, kStage);
            if (SHARE == 1) copy_box(to, &all.maps[0], p, row, z, done);
            else copy_box(to + part * kMapLine, &all.maps[0], p, row, z, done, everyone);
            copy_box(to + kBytesA, &all.maps[1], p, column, z, done);
            ring.advance();
        }
    }

    static GEMMTUNE_DEVICE void multiply_tiles(char* shared, int tiles, Barrier* full, Barrier* empty,
                                               float (&sum)[BN / 2]) {
        const u64 first_a = shared_matrix(shared + warp_index() / 4 * 64 * kMapLine);
        const u64 first_b = shared_matrix(shared + kBytesA);
        Ring ring(kFilled);
        int last = 0;
        GEMMTUNE_ROLL
        for (int tile = 0; tile < tiles; ++tile) {
            wait_phase(&full[ring.stage], ring.parity);
            begin_products();
            const u64 on = static_cast<u64>(ring.stage * (kStage / 16));
            GEMMTUNE_UNROLL
            for (int step = 0; step < kSteps; ++step)
                multiply<T, BN>(sum, first_a + on + step * kMatrixStep, first_b + on + step * kMatrixStep);
            end_products();
            wait_products<1>();  // those of the tile before
            if (tile > 0) release(&empty[last]);
            last = ring.stage;
            ring.advance();
        }
        wait_products<0>();
    }
    // A buffer may be written again, here and by those who write here.
    static GEMMTUNE_DEVICE void release(Barrier* empty) {
        if (SHARE == 1) {
            if (lane_index() == 0) arrive(empty);
        } else if (lane_index() < SHARE) {
            arrive_at(empty, sharer(lane_index()));
        }
    }

    static GEMMTUNE_DEVICE void lay_out(const float (&sum)[BN / 2], float* patch) {
        const int lane = lane_index(), group = lane / 4, member = lane % 4;
        float* const to = patch + member * 2 * kPitch + warp_index() * 16 + group;
        GEMMTUNE_UNROLL
        for (int at = 0; at < BN / 2; ++at)
            to[(at / 4 * 8 + at % 2) * kPitch + at / 2 % 2 * 8] = sum[at];
    }

    // Four neighbours of a column, of all slices.
    static GEMMTUNE_DEVICE void added4(const float* at, float (&four)[4]) {
        if (SPLITS == 1) {
            const Words words = read_shared<Words>(at);
            GEMMTUNE_UNROLL
            for (int e = 0; e < 4; ++e) four[e] = as_float(words.at[e]);
            return;
        }
        float all[SPLITS][4];
        GEMMTUNE_UNROLL
        for (int slice = 0; slice < SPLITS; ++slice) read_peer4(at, slicer(slice), all[slice]);
        GEMMTUNE_UNROLL
        for (int e = 0; e < 4; ++e) {
            four[e] = all[0][e];
            GEMMTUNE_UNROLL
            for (int slice = 1; slice < SPLITS; ++slice) four[e] += all[slice][e];
        }
    }

    // Stores this block's columns of the tile at (i, j), every SPLITS-th. A thread has four neighbours of a
    // column, or where D has no place for four at once every 32nd of a column.
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, unsigned batch, i64 i, i64 j, int slice,
                                      const float* patch) {
        const Finish<TYPES, 1> here(args, batch, i, j);
        if (here.fours) store_fours(here, slice, patch);
        else store_lines(here, slice, patch);
    }

    static GEMMTUNE_DEVICE void store_fours(const Finish<TYPES, 1>& here, int slice, const float* patch) {
        constexpr int kColumns = (BN + SPLITS - 1) / SPLITS, kFours = BM / 4;
        constexpr int kEach = (kColumns * kFours + kThreads - 1) / kThreads, kAtOnce = kEach < 4 ? kEach : 4;
        const int columns = here.columns < BN ? here.columns : BN;
        GEMMTUNE_ROLL
        for (int first = 0; first < kEach; first += kAtOnce) {
            float four[kAtOnce][4];
            int column[kAtOnce], row[kAtOnce];
            GEMMTUNE_UNROLL
            for (int n = 0; n < kAtOnce; ++n) {
                const int unit = static_cast<int>(thread_index()) + (first + n) * kThreads;
                column[n] = unit / kFours * SPLITS + slice, row[n] = unit % kFours * 4;
                // (Of a peer's nothing that is not stored.)
                if (SPLITS == 1 ? column[n] < BN : column[n] < columns && row[n] < here.rows)
                    added4(patch + column[n] * kPitch + row[n], four[n]);
            }
            GEMMTUNE_UNROLL
            for (int n = 0; n < kAtOnce; ++n)
                if (column[n] < columns && row[n] < here.rows) here.store4(row[n], column[n], four[n]);
        }
    }

    static GEMMTUNE_DEVICE void store_lines(const Finish<TYPES, 1>& here, int slice, const float* patch) {
        const int columns = here.columns < BN ? here.columns : BN, lane = lane_index();
        GEMMTUNE_ROLL
        for (int column = warp_index() * SPLITS + slice; column < columns; column += kWarps * SPLITS) {
            const float* const at = patch + column * kPitch + lane;
            float value[BM / 32];
            GEMMTUNE_UNROLL
            for (int n = 0; n < BM / 32; ++n) {
                if (n * 32 >= here.rows) continue;
                value[n] = SPLITS == 1 ? at[n * 32] : read_peer(at + n * 32, slicer(0));
                GEMMTUNE_UNROLL
                for (int other = 1; other < SPLITS; ++other)
                    value[n] += read_peer(at + n * 32, slicer(other));
            }
            GEMMTUNE_UNROLL
            for (int n = 0; n < BM / 32; ++n)
                if (n * 32 < here.rows) here.store(n * 32 + lane, column, value[n]);
        }
    }
};

}  // namespace gemmtune
