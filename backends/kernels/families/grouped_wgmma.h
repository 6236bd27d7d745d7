// Grouped products on Hopper's tensor cores (wgmma, sm_90a): as many blocks as run at once take the tiles of all groups
// round-robin (grouped.h). Warp-specialised as tile_wgmma.h: one producer thread has the copy engine (TMA) load tiles
// of weights and columns, 64 deep, into STAGES buffers in shared memory; BM / 64 consumer warpgroups multiply them,
// each 64 rows of weights by all BN columns. The producer does not wait for a tile's end: while its sums are stored,
// the first stages of the next tile arrive, so that memory is read without a pause.
//
// The weights of all groups are one tensor of three dimensions. A box of columns may reach into the next group: those
// columns' sums are dropped.
//
// CLUSTER blocks along x have neighbouring blocks of rows of the same weights, and use the same columns: each requests
// a part of them, which TMA multicasts to all. A stage is free when all of them have read it.
//
// 8-bit floats (wgmma_bytes.h): a step is 128 elements deep, and its sums are added in fp32, as an instruction keeps
// about 14 bits of them. Scales of blocks come with a step's operands: the lanes of the producer warp copy them to the
// stage (block_scales.h). Scales of rows multiply finished sums.
//
// Gated rows (gated_rows.h): a box of weights has pairs of lines, one of the gate's and one of up's, so that the tensor's
// dimensions are k, the two halves and the lines of all groups' gates. A sum and the one of its pair are eight lanes'
// neighbours: lanes exchange half of their sums, and each has both of the other half.
//
// A warp stores its 16 rows of a tile by itself, 16 columns at a time, through a patch of shared memory of its own.
#pragma once

#include "device/block_scales.h"
#include "device/gated_rows.h"
#include "device/grouped.h"
#include "device/wgmma_bytes.h"

namespace gemmtune {

// BLOCKS: resident blocks of a multiprocessor. GATED: gated_rows.h.
template <typename TYPES, int GROUPS, int BM, int BN, int STAGES, int CLUSTER, int BLOCKS,
          GroupedScales SCALES = kUnscaled, bool GATED = false>
struct GroupedWgmma {
    using Of = GroupedOf<TYPES>;
    using T = typename Of::T;
    using D = typename Of::D;
    using Product = typename Of::Args;
    using Args = TensorArgs<2, Product>;  // maps of the weights and of the columns
    using Tiles = GroupedTiles<GROUPS, BN, BM * CLUSTER>;  // of a cluster
    static constexpr int kDeep = kMapLine / static_cast<int>(sizeof(T)), kSteps = kMapLine / 32;
    static constexpr bool kBytes = sizeof(T) == 1, kBlocks = SCALES == kBlockScales;
    static constexpr int kWorkers = BM / 16;  // consumer warps; the producer warp is the last
    static constexpr int kThreads = 32 * (kWorkers + 1), kMinBlocks = BLOCKS;
    static constexpr int kBytesA = BM * kMapLine, kBytesB = BN * kMapLine, kStage = kBytesA + kBytesB;
    static constexpr int kColumns = 16, kPitch = 16 + 16 / static_cast<int>(sizeof(D));  // of a warp's patch
    static constexpr int kPatch = kColumns * kPitch * static_cast<int>(sizeof(D));
    using Scales = BlockScales<BM, BN>;
    static constexpr int kScales = STAGES * kStage, kStageScales = kBlocks ? Scales::kFloats : 0;
    // Arrivals that fill a stage: of the thread that requests its boxes, and of the lanes that copy scales.
    static constexpr int kFills = kBlocks ? 1 + kWarp : 1;
    // Arrivals that free a stage: see release().
    static constexpr int kReleases = kWorkers * (kBlocks ? kWarp + CLUSTER - 1 : CLUSTER);
    static constexpr int kPatches = kScales + STAGES * kStageScales * 4, kBarriers = kPatches + kWorkers * kPatch;
    static constexpr int kTable = kBarriers + 2 * STAGES * 8;
    static constexpr int kSharedBytes = (kTable + Tiles::kBytes + 1023) / 1024 * 1024;
    static constexpr bool kWaits = true;
    static_assert(sizeof(T) <= 2 && kWarp == 32, "8-bit or 16-bit floats, fragments of 32 lanes");
    static_assert(kBytes == (SCALES != kUnscaled), "8-bit floats have scales");
    static_assert(!GATED || !kBytes, "gated weights have no scales");
    static_assert(!kBlocks || kDeep == kScaleBlock, "a step's scales");
    static_assert(BN % (8 * CLUSTER) == 0, "parts are whole groups of eight lines");
    static_assert(BM % 64 == 0 && BN % kColumns == 0 && BN <= 256 && STAGES >= 2, "wgmma's sizes");

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        Barrier* const full = reinterpret_cast<Barrier*>(shared + kBarriers);
        Barrier* const empty = full + STAGES;
        const int warp = warp_index();
        const bool copies = warp == kWorkers;
        if (copies && lane_index() < 2) fetch_map(&all.maps[lane_index()]);
        if (warp == 0 && lane_index() == 0) {
            for (int stage = 0; stage < STAGES; ++stage)
                start_barrier(&full[stage], kFills), start_barrier(&empty[stage], kReleases);
            started_barriers();
        }
        const int steps = (all.product.gemm.k - 1) / kDeep + 1;
        if (CLUSTER > 1) arrive_at_cluster(), wait_for_cluster();  // what others send comes to barriers that are there
        wait_for_launches();
        const Tiles tiles(all.product, shared + kTable);
        if (!copies) multiply_tiles(all.product, tiles, steps, full, empty, shared);
        else if (kBlocks || lane_index() == 0) copy(all, tiles, steps, full, empty, shared);
        warp_barrier();  // reconverges the producer warp
        if (CLUSTER > 1) cluster_barrier<false>();  // others release stages here
    }

private:
    static GEMMTUNE_DEVICE int rank() { return static_cast<int>(block_x() % CLUSTER); }
    // The clusters of the launch take tiles round-robin.
    static GEMMTUNE_DEVICE unsigned first_tile() { return block_x() / CLUSTER; }
    static GEMMTUNE_DEVICE unsigned apart(const GemmArgs& args) {
        return static_cast<unsigned>(args.blocks) / CLUSTER;
    }
    // Permits this and the other producers to overwrite a stage. Each lane reads a step's scales, which this block's
    // producer alone overwrites, so that each lane arrives here; of the products' operands a warp is done as a whole.
    static GEMMTUNE_DEVICE void release(Barrier* empty) {
        if constexpr (kBlocks) {
            arrive(empty);
            if (CLUSTER > 1 && lane_index() < CLUSTER && lane_index() != rank()) arrive_at(empty, lane_index());
        } else if (CLUSTER == 1) {
            if (lane_index() == 0) arrive(empty);
        } else if (lane_index() < CLUSTER) {
            arrive_at(empty, lane_index());
        }
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

    static GEMMTUNE_DEVICE void copy(const Args& all, const Tiles& tiles, int steps, Barrier* full, Barrier* empty,
                                     char* shared) {
        constexpr int kPart = BN / CLUSTER;  // lines of columns that this block requests
        const GemmArgs& args = all.product.gemm;
        const int lines = GATED ? static_cast<int>(args.stride_a / args.lda) : 0;  // from a group's gate to the next's
        Ring ring(kFree);
        GEMMTUNE_ROLL
        for (unsigned tile = first_tile(); tile < tiles.tiles; tile += apart(all.product.gemm)) {
            const GroupedTilePlace at = tiles.place(tile);
            const auto scales = scale_copies(all.product, at);
            GEMMTUNE_ROLL
            for (int step = 0; step < steps; ++step) {
                Barrier* const done = &full[ring.stage];
                char* const to = shared + ring.stage * kStage;
                wait_phase(&empty[ring.stage], ring.parity);
                if (!kBlocks || lane_index() == 0) {
                    expect_bytes(done, kStage);
                    const int row = at.row + rank() * BM;
                    if constexpr (GATED)
                        copy_box(to, &all.maps[0], step * kDeep, 0, at.group * lines + row / 2, done);
                    else copy_box(to, &all.maps[0], step * kDeep, row, at.group, done);
                    char* const part = to + kBytesA + rank() * kPart * kMapLine;
                    const int column = at.start + at.column + rank() * kPart;
                    if (CLUSTER == 1) copy_box(part, &all.maps[1], step * kDeep, column, 0, done);
                    else copy_box(part, &all.maps[1], step * kDeep, column, 0, done, (1u << CLUSTER) - 1);
                }
                if constexpr (kBlocks) {
                    scales.start(scales_of(shared, ring.stage), step);
                    arrive_after_copies(done);
                }
                ring.advance();
            }
        }
    }

    static GEMMTUNE_DEVICE float* scales_of(char* shared, int stage) {
        return reinterpret_cast<float*>(shared + kScales) + stage * kStageScales;
    }
    struct NoCopies {};
    // kBlockScales: this lane's copies of scales for a tile.
    static GEMMTUNE_DEVICE auto scale_copies(const Product& product, const GroupedTilePlace& at) {
        if constexpr (kBlocks) {
            const GemmArgs& args = product.gemm;
            const int row = at.row + rank() * BM + lane_index() * 64;
            const bool rows = lane_index() < BM / 64 && row < args.m;
            const i64 blocks = (args.k - 1) / kScaleBlock + 1, down = (args.m - 1) / kScaleBlock + 1;
            return typename Scales::Copies(
                product.scale_b + (static_cast<i64>(at.start) + at.column) * blocks, at.columns,
                rows ? product.scale_a + (at.group * down + row / kScaleBlock) * blocks : nullptr, blocks);
        } else {
            return NoCopies();
        }
    }

    static GEMMTUNE_DEVICE void multiply_tiles(const Product& product, const Tiles& tiles, int steps, Barrier* full,
                                               Barrier* empty, char* shared) {
        const GemmArgs& args = product.gemm;
        const u64 first_a = shared_matrix(shared + warp_index() / 4 * 64 * kMapLine);
        const u64 first_b = shared_matrix(shared + kBytesA);
        D* const patch = reinterpret_cast<D*>(shared + kPatches + warp_index() * kPatch);
        Ring ring(kFilled);
        GEMMTUNE_ROLL
        for (unsigned tile = first_tile(); tile < tiles.tiles; tile += apart(args)) {
            float sum[BN / 2];
            GEMMTUNE_UNROLL
            for (float& one : sum) one = 0.0f;
            if constexpr (kBytes) add_steps(sum, steps, ring, first_a, first_b, full, empty, shared);
            else multiply_steps(sum, steps, ring, first_a, first_b, full, empty);
            const GroupedTilePlace at = tiles.place(tile);
            if constexpr (SCALES == kRowScales) scale_rows(product, at, sum);
            if constexpr (GATED) store_gated(args, at, sum, patch);
            else store(args, at, sum, patch);
        }
    }

    // A tile's products of 16-bit floats.
    static GEMMTUNE_DEVICE void multiply_steps(float (&sum)[BN / 2], int steps, Ring& ring, u64 first_a, u64 first_b,
                                               Barrier* full, Barrier* empty) {
        int last = 0;
        GEMMTUNE_ROLL
        for (int step = 0; step < steps; ++step) {
            wait_phase(&full[ring.stage], ring.parity);
            begin_products();
            const u64 on = static_cast<u64>(ring.stage * (kStage / 16));
            GEMMTUNE_UNROLL
            for (int part = 0; part < kSteps; ++part)
                multiply<T, BN>(sum, first_a + on + part * kMatrixStep, first_b + on + part * kMatrixStep);
            end_products();
            wait_products<1>();  // those of the step before
            if (step > 0) release(&empty[last]);
            last = ring.stage;
            ring.advance();
        }
        wait_products<0>();
        release(&empty[last]);
    }

    // Columns of a tile up to which a thread has registers for a step's scales beside its sums.
    static constexpr int kEarly = 64;
    // A tile's products of 8-bit floats: every step's sums are added in fp32, multiplied by its scales.
    static GEMMTUNE_DEVICE void add_steps(float (&sum)[BN / 2], int steps, Ring& ring, u64 first_a, u64 first_b,
                                          Barrier* full, Barrier* empty, char* shared) {
        float part[BN / 2];
        GEMMTUNE_UNROLL
        for (float& one : part) one = 0.0f;
        GEMMTUNE_ROLL
        for (int step = 0; step < steps; ++step) {
            wait_phase(&full[ring.stage], ring.parity);
            begin_products();
            const u64 on = static_cast<u64>(ring.stage * (kStage / 16));
            GEMMTUNE_UNROLL
            for (int at = 0; at < kSteps; ++at)
                multiply_bytes<T, T, BN>(part, first_a + on + at * kMatrixStep,
                                         first_b + on + at * kMatrixStep, at > 0);
            end_products();
            [[maybe_unused]] const float* const staged = scales_of(shared, ring.stage);
            [[maybe_unused]] typename Scales::Factors scales;
            if constexpr (kBlocks && BN <= kEarly) scales.read(staged);  // while the products are computed
            wait_products<0>(), settle(part);
            if constexpr (kBlocks && BN > kEarly) {
                scales.read(staged);
                scales.add(sum, part);
            }
            release(&empty[ring.stage]);
            if constexpr (kBlocks && BN <= kEarly) scales.add(sum, part);
            if constexpr (!kBlocks) {
                GEMMTUNE_UNROLL
                for (int at = 0; at < BN / 2; ++at) sum[at] += part[at];
            }
            ring.advance();
        }
    }

    // kRowScales: multiplies a tile's sums by the scales of its rows and columns.
    static GEMMTUNE_DEVICE void scale_rows(const Product& product, const GroupedTilePlace& at, float (&sum)[BN / 2]) {
        const GemmArgs& args = product.gemm;
        const int row = at.row + rank() * BM + warp_index() * 16 + lane_index() / 4, first = lane_index() % 4 * 2;
        const float* const of_rows = product.scale_a + static_cast<i64>(at.group) * args.m;
        const float* const of_columns = product.scale_b + at.start + at.column;
        const float down[2] = {row < args.m ? load_global(of_rows + row) : 0.0f,
                               row + 8 < args.m ? load_global(of_rows + row + 8) : 0.0f};
        GEMMTUNE_UNROLL
        for (int i = 0; i < BN / 4; ++i) {
            const int column = first + i / 2 * 8 + i % 2;
            const float across = column < at.columns ? load_global(of_columns + column) : 0.0f;
            sum[i / 2 * 4 + i % 2] *= down[0] * across;
            sum[i / 2 * 4 + i % 2 + 2] *= down[1] * across;
        }
    }

    // Stores what a warp's 16 rows of sums make, eight rows of D, a lane four rows of a column at a time. A lane of even
    // groups has the gates of rows group / 2 and 4 + group / 2, one of odd groups their ups (gated_rows.h).
    static GEMMTUNE_DEVICE void store_gated(const GemmArgs& args, const GroupedTilePlace& at,
                                            const float (&sum)[BN / 2], D* patch) {
        constexpr int kDown = 8, kWords = 4 * static_cast<int>(sizeof(D)) / 4;  // rows of a patch; of four elements
        const int lane = lane_index(), group = lane / 4, member = lane % 4, odd = group % 2, half = lane % 2 * 4;
        const int row = (at.row + rank() * BM) / 2 + warp_index() * 8 + half, rows = args.m / 2 - row;
        D* d = static_cast<D*>(args.d) + (static_cast<i64>(at.start) + at.column + lane / 2) * args.d_column + row;
        const u64 apart = static_cast<u64>(args.d_column) * sizeof(D);
        const bool whole = ((reinterpret_cast<u64>(d) | apart) & (4 * sizeof(D) - 1)) == 0 && rows >= 4;
        GEMMTUNE_UNROLL
        for (int first = 0; first < BN; first += kColumns) {
            if (first >= at.columns) break;
            warp_barrier();  // the previous columns have been read
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int from = first / 2 + i / 2 * 4 + i % 2, column = i / 2 * 8 + member * 2 + i % 2;
                const float low = sum[from], high = sum[from + 2], other = shuffle_xor(odd ? low : high, 4);
                patch[column * kDown + odd * 4 + group / 2] = narrow<D>(odd ? gated(other, high) : gated(low, other));
            }
            warp_barrier();
            const D* const from = patch + lane / 2 * kDown + half;
            if (first + lane / 2 < at.columns) {
                if (whole) {
                    unsigned words[kWords];
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const unsigned*>(from)[i];
                    store_words(d, words);
                } else {
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i)
                        if (i < rows) d[i] = from[i];
                }
            }
            d += kColumns * args.d_column;
        }
    }

    // Stores a warp's 16 rows, a lane eight rows of a column at a time.
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, const GroupedTilePlace& at, const float (&sum)[BN / 2],
                                      D* patch) {
        constexpr int kWords = 8 * static_cast<int>(sizeof(D)) / 16;  // of eight elements
        const int lane = lane_index(), half = lane % 2 * 8;
        [[maybe_unused]] const int group = lane / 4, member = lane % 4;
        const int row = at.row + rank() * BM + warp_index() * 16 + half, rows = args.m - row;
        D* d = static_cast<D*>(args.d) + (static_cast<i64>(at.start) + at.column + lane / 2) * args.d_column + row;
        const u64 apart = static_cast<u64>(args.d_column) * sizeof(D);
        const bool whole = ((reinterpret_cast<u64>(d) | apart) & 15) == 0 && rows >= 8;
        GEMMTUNE_UNROLL
        for (int first = 0; first < BN; first += kColumns) {
            if (first >= at.columns) break;
            warp_barrier();  // the previous columns have been read
            if constexpr (sizeof(D) == 2) {
                unsigned words[4];  // of eight columns, eight rows and the next eight; and of the next columns
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const D pair[2] = {narrow<D>(sum[first / 2 + 2 * i]), narrow<D>(sum[first / 2 + 2 * i + 1])};
                    words[i] = Word<D>::pack(pair);
                }
                store_columns(patch + (lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8, words);
            } else {
                GEMMTUNE_UNROLL
                for (int i = 0; i < 8; ++i) {
                    const int column = i / 4 * 8 + member * 2 + i % 2, down = i / 2 % 2 * 8 + group;
                    patch[column * kPitch + down] = narrow<D>(sum[first / 2 + i]);
                }
            }
            warp_barrier();
            const D* const from = patch + lane / 2 * kPitch + half;
            if (first + lane / 2 < at.columns) {
                if (whole) {
                    GEMMTUNE_UNROLL
                    for (int word = 0; word < kWords; ++word)
                        write16(d + word * (8 / kWords), read_words(from + word * (8 / kWords)));
                } else {
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 8; ++i)
                        if (i < rows) d[i] = from[i];
                }
            }
            d += kColumns * args.d_column;
        }
    }
    static GEMMTUNE_DEVICE Words read_words(const D* from) { return *reinterpret_cast<const Words*>(from); }
};

}  // namespace gemmtune
