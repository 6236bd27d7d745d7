// Products by Hopper's tensor cores (wgmma, sm_90a) of operands that are contiguous along k and whose lines
// start at multiples of 16 bytes. One thread has the copy engine bring tiles of A and B, 64 deep, to STAGES
// buffers in shared memory (TMA); BM / 64 groups of four warps multiply them, each 64 rows and all BN columns,
// and no register of theirs sees an operand.
//
// A cluster along x is a rectangle of tiles: SHARE blocks beside each other have A's tile in common, SHARE_B
// blocks below each other B's. Each has a part of either sent to all who have it in common, and a buffer is
// free when all have read it. Blocks beyond D send their parts as well: others wait for them.
//
// SPLITS blocks (a cluster along y) have a slice of k each of one tile of D. At the end each adds up, in the
// order of slices, its part of all their sums, from where they lie in each other's shared memory, and stores
// that. There is no workspace, and no second launch.
#pragma once

#include "device/epilogue.h"
#include "device/hopper.h"
#include "device/tile_order.h"

namespace gemmtune {

template <typename TYPES, int BM, int BN, int STAGES, int SHARE, int SHARE_B, int SPLITS, int GROUP>
struct TileWgmma {
    using T = typename TYPES::Input;
    static constexpr int kDeep = kMapLine / static_cast<int>(sizeof(T)), kSteps = kDeep / 16;
    static constexpr int kWorkers = BM / 16, kWarps = kWorkers + 1;  // warps that multiply, and the copier
    static constexpr int kThreads = 32 * kWarps, kMinBlocks = 0;
    static constexpr int kTiles = SHARE * SHARE_B, kBlocks = kTiles * SPLITS;  // of a cluster
    static constexpr int kReaders = SHARE + SHARE_B - 1;  // blocks that read some of what one sends
    static constexpr int kBand = GROUP > SHARE_B ? GROUP / SHARE_B : 1;  // GROUP rows of tiles, in clusters
    static constexpr int kBytesA = BM * kMapLine, kBytesB = BN * kMapLine, kStage = kBytesA + kBytesB;
    // Sums on their way to D, by columns, of which a store's pairs lie 8 banks apart.
    static constexpr int kPitch = BM + 4, kPatch = BN * kPitch * 4;
    static constexpr int kPipeline = STAGES * kStage, kBarriers = kPipeline > kPatch ? kPipeline : kPatch;
    struct Place {
        i64 i, j;  // the first row and column of a block's tile
    };
    static constexpr int kPlace = kBarriers + 2 * STAGES * 8;
    static constexpr int kSharedBytes = (kPlace + static_cast<int>(sizeof(Place)) + 1023) / 1024 * 1024;
    static constexpr bool kWaits = true;
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit floats, fragments of 32 lanes");
    static_assert(BM % 64 == 0 && BN % 8 == 0 && BN <= 256 && STAGES >= 2, "wgmma's sizes");
    static_assert(BM % (8 * SHARE) == 0 && BN % (8 * SHARE_B) == 0, "parts are whole groups of eight lines");
    static_assert(kBlocks <= 8, "a cluster has eight blocks");

    using Args = TensorArgs<2>;  // maps of A and of B

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.product;
        Barrier* const full = reinterpret_cast<Barrier*>(shared + kBarriers);
        Barrier* const empty = full + STAGES;
        Place* const place = reinterpret_cast<Place*>(shared + kPlace);
        const int warp = warp_index();
        const bool copies = warp == kWorkers;
        if (copies && lane_index() < 2) fetch_map(&all.maps[lane_index()]);
        if (warp == 0 && lane_index() == 0) {
            for (int stage = 0; stage < STAGES; ++stage)
                start_barrier(&full[stage], 1), start_barrier(&empty[stage], kWorkers * kReaders);
            started_barriers();
        }
        if (kTiles > 1) arrive_at_cluster();
        // Compilers would put these divisions after wait_for_launches(), where copies wait for them; what is
        // stored they work out where it is stored. (All others read it at the end.)
        Place mine{0, 0};
        if (copies && lane_index() == 0) *place = mine = place_of(args);
        const unsigned slice = block_y() % SPLITS;
        const unsigned batch = block_z() + block_y() / SPLITS * static_cast<unsigned>(args.batch_blocks);
        const unsigned steps = (static_cast<unsigned>(args.k) - 1) / kDeep + 1;
        const unsigned each = (steps - 1) / SPLITS + 1, from = least(slice * each, steps);
        const int begin = static_cast<int>(from), tiles = static_cast<int>(least(from + each, steps) - from);
        if (kTiles > 1) wait_for_cluster();  // what others send comes to barriers that are there
        else block_barrier();
        wait_for_launches();
        if (batch >= static_cast<unsigned>(args.batch)) return;  // as do all of a cluster
        float* const patch = reinterpret_cast<float*>(shared);
        float sum[BN / 2];  // of threads that multiply, and cleared by them: copies would wait for it
        if (!copies) multiply_tiles(shared, tiles, full, empty, sum);
        else if (lane_index() == 0) copy(all, mine, batch, begin, tiles, full, empty, shared);
        warp_barrier();  // the copier's lanes
        // Nobody reads this block's tiles any more, and nothing is on its way here.
        block_barrier();
        if (!copies) lay_out(sum, patch);
        if (SPLITS > 1) cluster_barrier<true>();
        else block_barrier();
        if (!copies) store(args, batch, *place, static_cast<int>(slice), patch);
        if (SPLITS > 1) cluster_barrier<false>();  // others read what lies here, and have stored it then
    }

private:
    static GEMMTUNE_DEVICE unsigned least(unsigned x, unsigned y) { return x < y ? x : y; }
    // This block's tile in the cluster.
    static GEMMTUNE_DEVICE int row_of_cluster() { return static_cast<int>(block_x() % kTiles / SHARE); }
    static GEMMTUNE_DEVICE int column_of_cluster() { return static_cast<int>(block_x() % SHARE); }
    static GEMMTUNE_DEVICE Place place_of(const GemmArgs& args) {
        Place found;
        TileOrder<BM * SHARE_B, BN * SHARE, kBand>(args).place(block_x() / kTiles, found.i, found.j);
        found.i += row_of_cluster() * BM, found.j += column_of_cluster() * BN;
        return found;
    }
    // Ranks in the cluster: of the block of that tile and of this slice,
    static GEMMTUNE_DEVICE int rank_of(int row, int column) {
        return static_cast<int>(block_y() % SPLITS) * kTiles + row * SHARE + column;
    }
    // of the block of slice `slice` of this tile,
    static GEMMTUNE_DEVICE int slicer(int slice) {
        return slice * kTiles + static_cast<int>(block_x() % kTiles);
    }
    // and of those that read what this block sends, and send what it reads: its row, then others of its column.
    static GEMMTUNE_DEVICE int reader(int at) {
        if (at < SHARE) return rank_of(row_of_cluster(), at);
        const int other = at - SHARE;
        return rank_of(other < row_of_cluster() ? other : other + 1, column_of_cluster());
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

    static GEMMTUNE_DEVICE void copy(const Args& all, Place place, unsigned batch, int begin, int tiles,
                                     Barrier* full, Barrier* empty, char* shared) {
        const int part_a = column_of_cluster() * (BM / SHARE), part_b = row_of_cluster() * (BN / SHARE_B);
        // (Beyond 2^31 they are less than zero, which is as far beyond the tensor.)
        const int row = static_cast<int>(place.i) + part_a, column = static_cast<int>(place.j) + part_b;
        const int z = static_cast<int>(batch);
        unsigned beside = 0, below = 0;
        for (int at = 0; at < SHARE; ++at) beside |= 1u << rank_of(row_of_cluster(), at);
        for (int at = 0; at < SHARE_B; ++at) below |= 1u << rank_of(at, column_of_cluster());
        Ring ring(kFree);
        GEMMTUNE_ROLL
        for (int tile = 0; tile < tiles; ++tile) {
            Barrier* const done = &full[ring.stage];
            char* const to = shared + ring.stage * kStage;
            const int p = (begin + tile) * kDeep;
            wait_phase(&empty[ring.stage], ring.parity);
            expect_bytes(done, kStage);
            send<SHARE>(to + part_a * kMapLine, &all.maps[0], p, row, z, done, beside);
            send<SHARE_B>(to + kBytesA + part_b * kMapLine, &all.maps[1], p, column, z, done, below);
            ring.advance();
        }
    }
    // A box to so many blocks, or to this one alone.
    template <int BLOCKS>
    static GEMMTUNE_DEVICE void send(char* to, const TensorMap* map, int p, int line, int z, Barrier* done,
                                     unsigned blocks) {
        if (BLOCKS == 1) copy_box(to, map, p, line, z, done);
        else copy_box(to, map, p, line, z, done, blocks);
    }

    static GEMMTUNE_DEVICE void multiply_tiles(char* shared, int tiles, Barrier* full, Barrier* empty,
                                               float (&sum)[BN / 2]) {
        const u64 first_a = shared_matrix(shared + warp_index() / 4 * 64 * kMapLine);
        const u64 first_b = shared_matrix(shared + kBytesA);
        GEMMTUNE_UNROLL
        for (float& one : sum) one = 0.0f;
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
            // Of buffers that are filled again: who fills them waits for this, and has not ended when it comes.
            if (tile > 0 && tile + STAGES <= tiles) release(&empty[last]);
            last = ring.stage;
            ring.advance();
        }
        wait_products<0>();
    }
    // A buffer may be written again, here and by those who write here.
    static GEMMTUNE_DEVICE void release(Barrier* empty) {
        if (kReaders == 1) {
            if (lane_index() == 0) arrive(empty);
        } else if (lane_index() < kReaders) {
            arrive_at(empty, reader(lane_index()));
        }
    }

    static GEMMTUNE_DEVICE void lay_out(const float (&sum)[BN / 2], float* patch) {
        const int lane = lane_index(), group = lane / 4, member = lane % 4;
        float* const to = patch + member * 2 * kPitch + warp_index() * 16 + group;
        GEMMTUNE_UNROLL
        for (int at = 0; at < BN / 2; ++at)
            to[(at / 4 * 8 + at % 2) * kPitch + at / 2 % 2 * 8] = sum[at];
    }

    // An element of all slices.
    static GEMMTUNE_DEVICE float added(const float* at) {
        if (SPLITS == 1) return *at;
        float all = read_peer(at, slicer(0));
        GEMMTUNE_UNROLL
        for (int slice = 1; slice < SPLITS; ++slice) all += read_peer(at, slicer(slice));
        return all;
    }
    // Four neighbours of a column, of all slices.
    static GEMMTUNE_DEVICE void added4(const float* at, float (&four)[4]) {
        if (SPLITS == 1) {
            const Words words = *reinterpret_cast<const Words*>(at);
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

    // Stores this block's columns of the tile at `place`, every SPLITS-th: a thread has the same four rows of
    // several columns, or where D has no place for four at once every 32nd row of some. This is most of what
    // follows the last product, and bound by instructions: plain sums have a way without any other.
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, unsigned batch, Place place, int slice,
                                      const float* patch) {
        const Finish<TYPES, 1> here(args, batch, place.i, place.j);
        const int columns = here.columns < BN ? here.columns : BN;
        const int row = static_cast<int>(thread_index()) % kFours * 4;
        if (!here.fours && here.plain) store_lines<true>(here, columns, slice, patch);
        else if (!here.fours) store_lines<false>(here, columns, slice, patch);
        else if (here.plain && row + 4 <= here.rows) store_fours<true>(here, row, columns, slice, patch);
        else if (row < here.rows) store_fours<false>(here, row, columns, slice, patch);
    }
    static constexpr int kFours = BM / 4;  // threads of a column

    template <bool PLAIN>
    static GEMMTUNE_DEVICE void store_fours(const Finish<TYPES, 1>& here, int row, int columns, int slice,
                                            const float* patch) {
        constexpr int kAcross = kWorkers * 32 / kFours * SPLITS, kAtOnce = PLAIN ? 4 : 1;
        int column = static_cast<int>(thread_index()) / kFours * SPLITS + slice;
        typename TYPES::D* to = here.d + row + column * here.args.d_column;
        const float* from = patch + column * kPitch + row;
        GEMMTUNE_ROLL
        for (; column < columns; column += kAtOnce * kAcross) {
            float four[kAtOnce][4];
            GEMMTUNE_UNROLL
            for (int n = 0; n < kAtOnce; ++n)
                if (column + n * kAcross < columns) added4(from + n * kAcross * kPitch, four[n]);
            GEMMTUNE_UNROLL
            for (int n = 0; n < kAtOnce; ++n) {
                if (column + n * kAcross >= columns) break;
                if (PLAIN) here.write4(to, four[n]);
                else here.store4(row, column + n * kAcross, four[n]);
                to += kAcross * here.args.d_column;
            }
            from += kAtOnce * kAcross * kPitch;
        }
    }

    template <bool PLAIN>
    static GEMMTUNE_DEVICE void store_lines(const Finish<TYPES, 1>& here, int columns, int slice,
                                            const float* patch) {
        constexpr int kAcross = kWorkers * SPLITS, kAtOnce = PLAIN ? BM / 32 : 1;
        const int lane = lane_index(), left = here.rows - lane;
        int column = warp_index() * SPLITS + slice;
        typename TYPES::D* to = here.d + lane + column * here.args.d_column;
        const float* from = patch + column * kPitch + lane;
        GEMMTUNE_ROLL
        for (; column < columns; column += kAcross) {
            GEMMTUNE_ROLL
            for (int at = 0; at < BM; at += kAtOnce * 32) {
                float value[kAtOnce];
                GEMMTUNE_UNROLL
                for (int n = 0; n < kAtOnce; ++n)
                    if (at + n * 32 < left) value[n] = added(from + at + n * 32);
                GEMMTUNE_UNROLL
                for (int n = 0; n < kAtOnce; ++n) {
                    if (at + n * 32 >= left) continue;
                    if (PLAIN) to[at + n * 32] = narrow<typename TYPES::D>(here.args.alpha * value[n]);
                    else here.store(at + n * 32 + lane, column, value[n]);
                }
            }
            to += kAcross * here.args.d_column, from += kAcross * kPitch;
        }
    }
};

}  // namespace gemmtune
