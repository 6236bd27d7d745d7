// GEMMs on Hopper's tensor cores (wgmma, sm_90a) with both operands contiguous along k and rows that start at
// multiples of 16 bytes. Warp-specialised: one producer thread has the copy engine (TMA) load tiles of A and B,
// 64 deep, into STAGES buffers in shared memory; BM / 64 consumer warpgroups multiply them, each 64 rows by all
// BN columns. No operand passes through registers. Each stage has two mbarriers: `full` (the bytes have
// arrived) and `empty` (all warps that read it have finished).
//
// A cluster along x is a rectangle of tiles: SHARE neighbouring blocks in a row use the same tile of A, SHARE_B
// blocks in a column the same tile of B. Each block requests a part of each tile, which TMA multicasts to all
// blocks that use it, and a stage is free when all of them have read it. Blocks whose tile lies beyond D still
// request their parts, because others wait for them.
//
// Split k: SPLITS blocks (a cluster along y) each have a slice of k of one tile of D. At the end each block
// adds up its share of the tile's columns over all slices, in the order of slices, through distributed shared
// memory, and stores them. There is no workspace and no second launch.
//
// TYPES: Types of 16-bit floats, or MatrixTypes of 8-bit elements with the epilogue of matrix_epilogue.h: scales, and
// sums of int8 in int32. Tiles are 64 deep for 16-bit elements and 128 for 8-bit ones: 128 bytes. SUMS: kPlain keeps an
// element's sum in its instruction's registers. kPromoted, for 8-bit floats, adds the sum of every tile's 128 elements
// in fp32. kScaled multiplies it by the scales of 128 x 128 elements of A and of 128 of B's column before, which the lanes
// of the producer warp copy to the stage of the tile (block_scales.h).
#pragma once

#include "device/block_scales.h"
#include "device/hopper.h"
#include "device/tile_order.h"
#include "device/tile_sums.h"
#include "device/wgmma_bytes.h"
#include "device/wgmma_types.h"

namespace gemmtune {

template <typename TYPES, int BM, int BN, int STAGES, int SHARE, int SHARE_B, int SPLITS, int GROUP,
          SumsKind SUMS = kPlain>
struct TileWgmma {
    using Of = WgmmaOf<TYPES>;
    using T = typename Of::A;
    using Sum = typename Of::Sum;
    using Product = typename Of::Product;
    using End = typename Of::Finish;
    static constexpr int kDeep = kMapLine / static_cast<int>(sizeof(T)), kSteps = kMapLine / 32;
    static constexpr int kWorkers = BM / 16, kWarps = kWorkers + 1;  // consumer warps, and the producer warp
    static constexpr int kThreads = 32 * kWarps, kMinBlocks = 0;
    static constexpr int kTiles = SHARE * SHARE_B, kBlocks = kTiles * SPLITS;  // in a cluster
    static constexpr int kReaders = SHARE + SHARE_B - 1;  // blocks that read parts that one block requests
    static constexpr int kBand = GROUP > SHARE_B ? GROUP / SHARE_B : 1;  // rows of clusters for GROUP tile rows
    static constexpr int kBytesA = BM * kMapLine, kBytesB = BN * kMapLine, kStage = kBytesA + kBytesB;
    // (MatrixFinish has no path of its own for plain epilogues.)
    using Sums = TileSums<End, typename TYPES::D, Sum, BM, BN, kWorkers * 32, SPLITS, kTiles, !Of::kBytes>;
    static constexpr int kPatch = Sums::kPatch;
    static constexpr int kPipeline = STAGES * kStage, kBarriers = kPipeline > kPatch ? kPipeline : kPatch;
    struct Place {
        i64 i, j;  // the first row and column of a block's tile
    };
    static constexpr int kPlace = kBarriers + 2 * STAGES * 8, kScales = kPlace + static_cast<int>(sizeof(Place));
    using Scales = BlockScales<BM, BN>;
    static constexpr bool kScaling = SUMS == kScaled;
    static constexpr int kStageScales = kScaling ? Scales::kFloats : 0;
    static constexpr int kSharedBytes = (kScales + STAGES * kStageScales * 4 + 1023) / 1024 * 1024;
    // Arrivals that fill a stage: of the thread that requests its tiles, and of the lanes that copy scales.
    static constexpr int kFills = kScaling ? 1 + kWarp : 1;
    // Arrivals that free a stage: see release().
    static constexpr int kReleases = kWorkers * (kScaling ? kWarp + kReaders - 1 : kReaders);
    static constexpr bool kWaits = true;
    static_assert(sizeof(T) == (Of::kBytes ? 1 : 2) && kWarp == 32, "8 or 16 bits, fragments of 32 lanes");
    static_assert(SUMS == kPlain || (Of::kBytes && !kInteger<T>), "8-bit floats' sums");
    static_assert(!Of::kBytes || has_columns<T>(BN), "columns of an instruction");
    static_assert(BM % 64 == 0 && BN % 8 == 0 && BN <= 256 && STAGES >= 2, "wgmma's sizes");
    static_assert(BM % (8 * SHARE) == 0 && BN % (8 * SHARE_B) == 0, "parts are whole groups of eight lines");
    static_assert(kBlocks <= 8, "a cluster has eight blocks");

    using Args = TensorArgs<2, Product>;  // maps of A and of B

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const Product& args = all.product;
        Barrier* const full = reinterpret_cast<Barrier*>(shared + kBarriers);
        Barrier* const empty = full + STAGES;
        Place* const place = reinterpret_cast<Place*>(shared + kPlace);
        const int warp = warp_index();
        const bool copies = warp == kWorkers;
        if (copies && lane_index() < 2) fetch_map(&all.maps[lane_index()]);
        if (warp == 0 && lane_index() == 0) {
            for (int stage = 0; stage < STAGES; ++stage)
                start_barrier(&full[stage], kFills), start_barrier(&empty[stage], kReleases);
            started_barriers();
        }
        if (kTiles > 1) arrive_at_cluster();
        // Storing the place keeps these divisions before wait_for_launches(): the compiler would otherwise sink
        // them below it, where the copies wait for them. (All other threads read it at the end.)
        Place mine{0, 0};
        if (copies && (kScaling || lane_index() == 0)) mine = place_of(args);
        if (copies && lane_index() == 0) *place = mine;
        const unsigned slice = block_y() % SPLITS;
        const unsigned batch = block_z() + block_y() / SPLITS * static_cast<unsigned>(args.batch_blocks);
        const unsigned steps = (static_cast<unsigned>(args.k) - 1) / kDeep + 1;
        const unsigned each = (steps - 1) / SPLITS + 1, from = least(slice * each, steps);
        const int begin = static_cast<int>(from), tiles = static_cast<int>(least(from + each, steps) - from);
        if (kTiles > 1) wait_for_cluster();  // what others send comes to barriers that are there
        else block_barrier();
        wait_for_launches();
        if (batch >= static_cast<unsigned>(args.batch)) return;  // all blocks of the cluster return
        Sum* const patch = reinterpret_cast<Sum*>(shared);
        Sum sum[BN / 2];  // of consumer threads; cleared there, so that copies need not wait
        if (!copies) multiply_tiles(shared, tiles, full, empty, sum);
        else if (kScaling || lane_index() == 0) copy(all, mine, batch, begin, tiles, full, empty, shared);
        warp_barrier();  // reconverges the producer warp
        // After this barrier no thread reads this block's tiles, and no copy to this block is in flight.
        block_barrier();
        if (!copies) Sums::lay_out(sum, warp, patch);
        if (SPLITS > 1) cluster_barrier<true>();
        else block_barrier();
        if (!copies) store(args, batch, *place, static_cast<int>(slice), patch);
        if (SPLITS > 1) cluster_barrier<false>();  // others read what lies here, and have stored it then
    }

private:
    static GEMMTUNE_DEVICE unsigned least(unsigned x, unsigned y) { return x < y ? x : y; }
    // The position of this block's tile in the cluster.
    static GEMMTUNE_DEVICE int row_of_cluster() { return static_cast<int>(block_x() % kTiles / SHARE); }
    static GEMMTUNE_DEVICE int column_of_cluster() { return static_cast<int>(block_x() % SHARE); }
    static GEMMTUNE_DEVICE Place place_of(const GemmArgs& args) {
        Place found;
        TileOrder<BM * SHARE_B, BN * SHARE, kBand>(args).place(block_x() / kTiles, found.i, found.j);
        found.i += row_of_cluster() * BM, found.j += column_of_cluster() * BN;
        return found;
    }
    // Ranks in the cluster: of the block with the tile at (row, column) and this block's slice;
    static GEMMTUNE_DEVICE int rank_of(int row, int column) {
        return static_cast<int>(block_y() % SPLITS) * kTiles + row * SHARE + column;
    }
    // and of the blocks that share tiles with this one, both ways: this block's row, then the others of its
    // column.
    static GEMMTUNE_DEVICE int reader(int at) {
        if (at < SHARE) return rank_of(row_of_cluster(), at);
        const int other = at - SHARE;
        return rank_of(other < row_of_cluster() ? other : other + 1, column_of_cluster());
    }

    // The pipeline's current stage, and the parity of the phase to wait for.
    struct Ring {
        int stage = 0;
        unsigned parity;
        GEMMTUNE_DEVICE explicit Ring(unsigned parity) : parity(parity) {}
        GEMMTUNE_DEVICE void advance() {
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    };
    // The parity of the first phase, and that of the phase before it, which counts as ended.
    static constexpr unsigned kFilled = 0, kFree = 1;

    static GEMMTUNE_DEVICE void copy(const Args& all, Place place, unsigned batch, int begin, int tiles,
                                     Barrier* full, Barrier* empty, char* shared) {
        const int part_a = column_of_cluster() * (BM / SHARE), part_b = row_of_cluster() * (BN / SHARE_B);
        // (Coordinates beyond 2^31 wrap to negative ones, which are outside the tensor, too.)
        const int row = static_cast<int>(place.i) + part_a, column = static_cast<int>(place.j) + part_b;
        const int z = static_cast<int>(batch);
        unsigned beside = 0, below = 0;
        for (int at = 0; at < SHARE; ++at) beside |= 1u << rank_of(row_of_cluster(), at);
        for (int at = 0; at < SHARE_B; ++at) below |= 1u << rank_of(at, column_of_cluster());
        const auto scales = scale_copies(all.product, place);
        Ring ring(kFree);
        GEMMTUNE_ROLL
        for (int tile = 0; tile < tiles; ++tile) {
            Barrier* const done = &full[ring.stage];
            char* const to = shared + ring.stage * kStage;
            const int p = (begin + tile) * kDeep;
            wait_phase(&empty[ring.stage], ring.parity);
            if (!kScaling || lane_index() == 0) {
                expect_bytes(done, kStage);
                send<SHARE>(to + part_a * kMapLine, &all.maps[0], p, row, z, done, beside);
                send<SHARE_B>(to + kBytesA + part_b * kMapLine, &all.maps[1], p, column, z, done, below);
            }
            if constexpr (kScaling) {
                scales.start(scales_of(shared, ring.stage), begin + tile);
                arrive_after_copies(done);
            }
            ring.advance();
        }
    }
    static GEMMTUNE_DEVICE float* scales_of(char* shared, int stage) {
        return reinterpret_cast<float*>(shared + kScales) + stage * kStageScales;
    }
    struct NoCopies {};
    // kScaled: this lane's copies of scales for a tile of D.
    static GEMMTUNE_DEVICE auto scale_copies(const Product& args, const Place& place) {
        if constexpr (kScaling) {
            const i64 groups = (args.k - 1) / kDeep + 1, row = place.i + lane_index() * 64;
            const bool rows = lane_index() < BM / 64 && row < args.m;
            // (Tiles beyond D, whose columns do not exist, start at the first column's.)
            const float* const of_columns = args.scale_b + (place.j < args.n ? place.j * groups : 0);
            return typename Scales::Copies(of_columns, args.n - place.j,
                                           rows ? args.scale_a + row / 128 * groups : nullptr, groups);
        } else {
            return NoCopies();
        }
    }
    // Copies a box to the `blocks` of the cluster, or if BLOCKS is 1 to this one.
    template <int BLOCKS>
    static GEMMTUNE_DEVICE void send(char* to, const TensorMap* map, int p, int line, int z, Barrier* done,
                                     unsigned blocks) {
        if (BLOCKS == 1) copy_box(to, map, p, line, z, done);
        else copy_box(to, map, p, line, z, done, blocks);
    }

    // Columns of a tile up to which a thread has registers for a step's scales beside its sums.
    static constexpr int kEarly = 64;
    static GEMMTUNE_DEVICE void multiply_tiles(char* shared, int tiles, Barrier* full, Barrier* empty,
                                               Sum (&sum)[BN / 2]) {
        const u64 first_a = shared_matrix(shared + warp_index() / 4 * 64 * kMapLine);
        const u64 first_b = shared_matrix(shared + kBytesA);
        Part part;
        GEMMTUNE_UNROLL
        for (Sum& one : sum) one = 0;
        Ring ring(kFilled);
        int last = 0;
        GEMMTUNE_ROLL
        for (int tile = 0; tile < tiles; ++tile) {
            wait_phase(&full[ring.stage], ring.parity);
            begin_products();
            const u64 on = static_cast<u64>(ring.stage * (kStage / 16));
            GEMMTUNE_UNROLL
            for (int step = 0; step < kSteps; ++step) {
                const u64 a = first_a + on + step * kMatrixStep, b = first_b + on + step * kMatrixStep;
                if constexpr (SUMS == kPlain) multiply_step(sum, a, b, true);
                else multiply_step(part.sum, a, b, step > 0);
            }
            end_products();
            if constexpr (SUMS == kPlain) {
                wait_products<1>();  // those of the tile before
                // Only stages that will be filled again are released: their producers wait for this, so their
                // blocks have not exited.
                if (tile > 0 && tile + STAGES <= tiles) release(&empty[last]);
                last = ring.stage;
            } else {
                const float* const staged = scales_of(shared, ring.stage);
                typename Scales::Factors scales;
                if constexpr (kScaling && BN <= kEarly) scales.read(staged);  // while the products are computed
                wait_products<0>(), settle(part.sum);
                if constexpr (kScaling && BN > kEarly) scales.read(staged);
                if (tile + STAGES < tiles) release(&empty[ring.stage]);
                if constexpr (kScaling) {
                    scales.add(sum, part.sum);
                } else {
                    GEMMTUNE_UNROLL
                    for (int at = 0; at < BN / 2; ++at) sum[at] += part.sum[at];
                }
            }
            ring.advance();
        }
        wait_products<0>();
    }
    // The sums of one tile, where they are added apart.
    struct Part {
        Sum sum[SUMS == kPlain ? 1 : BN / 2];
        GEMMTUNE_DEVICE Part() {
            if constexpr (SUMS != kPlain) {
                GEMMTUNE_UNROLL
                for (Sum& one : sum) one = 0;
            }
        }
    };
    static GEMMTUNE_DEVICE void multiply_step(Sum (&sum)[BN / 2], u64 a, u64 b, bool add) {
        if constexpr (Of::kBytes) multiply_bytes<T, typename Of::B, BN>(sum, a, b, add);
        else multiply<T, BN>(sum, a, b);
    }

    // Permits this and the other producers to overwrite a stage. Each lane reads a tile's scales, which this block's
    // producer alone overwrites, so that each lane arrives here; of the operands a warp is done as a whole.
    static GEMMTUNE_DEVICE void release(Barrier* empty) {
        if constexpr (kScaling) {
            arrive(empty);
            const int lane = lane_index();
            if (kReaders > 1 && lane < kReaders && lane != column_of_cluster()) arrive_at(empty, reader(lane));
        } else if (kReaders == 1) {
            if (lane_index() == 0) arrive(empty);
        } else if (lane_index() < kReaders) {
            arrive_at(empty, reader(lane_index()));
        }
    }

    static GEMMTUNE_DEVICE void store(const Product& args, unsigned batch, Place place, int slice,
                                      const Sum* patch) {
        End here(args, batch, place.i, place.j);
        if constexpr (SUMS == kScaled) here.scale_a = here.scale_b = nullptr;  // they are in the sums
        Sums::store(here, slice, patch);
    }
};

}  // namespace gemmtune
