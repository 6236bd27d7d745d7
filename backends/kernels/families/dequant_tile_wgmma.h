// Quantised weights times many columns of 16-bit activations on Hopper's tensor cores (wgmma, sm_90a),
// warp-specialised: producer warps fill the rings of dequant_rings.h by the copy engine (TMA); BM / 64 consumer
// warpgroups, each 64 rows by all BN columns of a tile of D, convert weights to the register operand of wgmma. Scales
// multiply weights, which are thereby rounded once to the activations' type.
//
// A block takes tiles of D in turn. No warp waits for a tile's end but those that multiply it: while a warpgroup stores
// its sums, the next tile's weights and activations arrive, and the other warpgroups have the tensor cores. How far
// warpgroups drift apart only the rings limit. A warp stores its 16 rows by itself, 16 columns at a time, through a
// patch of shared memory of its own.
//
// Weights are converted in halves of a stage, 32 elements of k, two instructions' operands: the half that is converted
// goes to the registers that the half before the running one has left.
//
// SHARE blocks of a cluster have neighbouring rows of the same columns, whose activations TMA multicasts to all of
// them. GROUP rows of tiles are taken together (tile_order.h), so that blocks that run at once share both operands in
// L2. Producers leave most of their registers to the consumers. BLOCKS: resident blocks of a multiprocessor.
#pragma once

#include "device/dequant_rings.h"
#include "device/epilogue.h"
#include "device/tile_order.h"
#include "device/wgmma_bytes.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, int BM, int BN, int SLOTS, int STAGES, int SHARE, int GROUP, int BLOCKS>
struct DequantTileWgmma {
    static constexpr int kWorkers = BM / 16, kThreads = 32 * (kWorkers + 4), kMinBlocks = BLOCKS;
    using Rings = DequantRings<TYPES, QUANT, BN, BM, kWorkers, SLOTS, STAGES, SHARE, 1>;
    using Chunk = typename Rings::Chunk;
    static constexpr int kDeep = Rings::kDeep, kPart = Rings::kPart, kParts = Rings::kParts;  // of a chunk
    using T = typename Chunk::T;
    using D = typename TYPES::D;
    using Args = typename Rings::Args;
    using End = Finish<TYPES, 1>;
    using Registers = ExchangedRegisters<kWorkers, BLOCKS, 56>;
    using Order = TileOrder<BM * SHARE, BN, (GROUP > SHARE ? GROUP / SHARE : 1)>;  // of a cluster's tiles
    // A warp's patch: columns of 16 rows, in fp32 or as two bytes.
    static constexpr int kColumns = 16, kPitch = 16 + 4, kNarrowPitch = 16 + 8, kPatch = kColumns * kPitch * 4;
    static constexpr int kPatches = Rings::kBytes, kBarriers = kPatches + kWorkers * kPatch;
    static constexpr int kSharedBytes = (kBarriers + Rings::kBarrierBytes + 1023) / 1024 * 1024;
    static constexpr bool kWaits = true;
    static_assert(BN % kColumns == 0, "whole columns of a patch");

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.product.gemm;
        const Rings rings(shared, kBarriers);
        const int warp = warp_index();
        if (warp == kWorkers && lane_index() < 2) fetch_map(&all.maps[lane_index()]);
        if (warp == 0 && lane_index() == 0) rings.start();
        if (SHARE > 1) arrive_at_cluster();
        const int chunks = (args.k - 1) / kDeep + 1;
        if (SHARE > 1) wait_for_cluster();  // what others send comes to barriers that are there
        else block_barrier();
        wait_for_launches();
        if (warp >= kWorkers) {
            if constexpr (Registers::kExchanged) keep_registers<Registers::kProducer>();
            const int copier = warp - kWorkers - 1;
            typename Rings::Stages stages(kFree);
            typename Rings::Slots slots(kFree);
            if (copier < 0 && lane_index() == 0) {
                GEMMTUNE_ROLL
                for (unsigned tile = first_tile(); exists(args, tile); tile += apart(args))
                    rings.copy_inputs(all, place(args, tile).column, 0, chunks, stages);
            } else if (copier >= 0 && copier < Rings::kCopiers) {
                GEMMTUNE_ROLL
                for (unsigned tile = first_tile(); exists(args, tile); tile += apart(args))
                    rings.copy_weights(all, place(args, tile).row, 0, chunks, copier, slots);
            }
            warp_barrier();  // reconverges the warp
        } else {
            if constexpr (Registers::kExchanged) take_registers<Registers::kConsumer>();
            multiply_tiles(all.product, chunks, rings, shared + kPatches + warp * kPatch);
        }
        if (SHARE > 1) cluster_barrier<false>();  // others free stages here
    }

private:
    using Reads = typename Chunk::Reads;
    using Row = typename Chunk::Row;

    // A tile's first row and column.
    struct Place {
        int row, column;
    };
    // This block's tiles: those that its cluster takes, the clusters of the launch in turn. (All but a tile's number is
    // computed anew from the arguments, so that no register holds what its end alone needs.)
    static GEMMTUNE_DEVICE unsigned first_tile() { return block_x() / SHARE; }
    static GEMMTUNE_DEVICE unsigned apart(const GemmArgs& args) { return static_cast<unsigned>(args.blocks) / SHARE; }
    static GEMMTUNE_DEVICE bool exists(const GemmArgs& args, unsigned tile) {
        const Order order(args);
        return tile < order.tiles_m * order.tiles_n;
    }
    static GEMMTUNE_DEVICE Place place(const GemmArgs& args, unsigned tile) {
        i64 row, column;
        Order(args).place(static_cast<unsigned>(opaque(static_cast<int>(tile))), row, column);
        return {static_cast<int>(row) + static_cast<int>(block_x() % SHARE) * BM, static_cast<int>(column)};
    }

    // A warp's weights of 32 elements of k on their way to the register operands of two instructions.
    struct Converter {
        static constexpr int kWords = Chunk::kWords32;
        const Reads reads;
        int from;  // the lane's row in a slot, with the swizzle of its words
        unsigned held[2][2][4];
        Words words[2][kWords];  // of both rows of a lane
        Row rows[2];

        GEMMTUNE_DEVICE Converter(int warp, const WeightArgs& all)
            : reads(warp, all.gemm.k, all.scale_row),
              from(opaque((reads.row + reads.group) * kMapLine + reads.group * 16)) {}

        // Half a stage, number `half` of a slot. (Slots and rows begin at multiples of 128 bytes, so that the words'
        // numbers are exchanged in an address of the whole.)
        GEMMTUNE_DEVICE void read(const char* weights, int slot, int half) {
            constexpr int kHalf = kPart / 2;
            const char* const begin = weights + slot;
            GEMMTUNE_UNROLL
            for (int upper = 0; upper < 2; ++upper) {
                if (half * kHalf % Chunk::kGroup == 0)
                    rows[upper].read_scales(begin, reads, upper * 8, half * kHalf / Chunk::kGroup);
                GEMMTUNE_UNROLL
                for (int i = 0; i < kWords; ++i) {
                    const int at = (slot + from) ^ (half * kWords + i) * 16;
                    words[upper][i] = read_shared<Words>(weights + at + upper * 8 * kMapLine);
                }
            }
        }
        GEMMTUNE_DEVICE void convert(int buffer) {
            unsigned w[2][4];
            GEMMTUNE_UNROLL
            for (int upper = 0; upper < 2; ++upper) {
                reads.own_pairs(words[upper], rows[upper].whole, w[upper]);
                rows[upper].scale_pairs(w[upper]);
            }
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; i += 2) {
                unsigned(&a)[4] = held[buffer][i / 2];
                a[0] = w[0][i], a[1] = w[1][i], a[2] = w[0][i + 1], a[3] = w[1][i + 1];
                GEMMTUNE_UNROLL
                for (unsigned& one : a)  // now, not when they are used
                    one = static_cast<unsigned>(opaque(static_cast<int>(one)));
            }
        }
    };

    // What a consumer reads next in the rings.
    struct Consumer {
        const Rings& rings;
        typename Rings::Slots slots;
        typename Rings::Stages stages;
        u64 inputs;

        GEMMTUNE_DEVICE explicit Consumer(const Rings& rings)
            : rings(rings), slots(kFilled), stages(kFilled), inputs(shared_matrix(rings.inputs)) {}

        GEMMTUNE_DEVICE void wait_weights() const { wait_phase(&rings.full_weights[slots.place], slots.parity); }
        // Frees the slot and waits for the next one, if there is one. (Behind the last chunk the last slot is read
        // again, and its weights are not used.)
        GEMMTUNE_DEVICE void next_weights(bool more) {
            rings.free_slot(slots.place);
            if (!more) return;
            slots.advance();
            wait_weights();
        }
        // The matrix of the stage, which has arrived then.
        GEMMTUNE_DEVICE u64 wait_inputs() const {
            wait_phase(&rings.full_inputs[stages.place], stages.parity);
            return inputs + static_cast<u64>(stages.place * (Rings::kStage / 16));
        }
    };

    static GEMMTUNE_DEVICE void multiply_tiles(const WeightArgs& all, int chunks, const Rings& rings, char* patch) {
        const GemmArgs& args = all.gemm;
        const int warp = warp_index();
        Consumer consumer(rings);
        Converter converter(warp, all);
        if (exists(args, first_tile())) {
            consumer.wait_weights();
            converter.read(rings.weights, 0, 0);
            converter.convert(0);
        }
        GEMMTUNE_ROLL
        for (unsigned tile = first_tile(); exists(args, tile); tile += apart(args)) {
            float sum[BN / 2];
            GEMMTUNE_UNROLL
            for (float& one : sum) one = 0.0f;
            multiply_chunks(consumer, converter, chunks, exists(args, tile + apart(args)), sum);
            const Place at = place(args, tile);
            const int row = at.row + warp * 16;
            if constexpr (!Chunk::kGrouped) Rings::scale_rows(all, row, sum);
            store(End(args, 0, row, at.column), sum, patch);
        }
    }

    // A tile's products. The first half of its weights is converted, and that of the next tile is at the end, if there
    // is `another` one.
    static GEMMTUNE_DEVICE void multiply_chunks(Consumer& consumer, Converter& converter, int chunks, bool another,
                                                float (&sum)[BN / 2]) {
        const Rings& rings = consumer.rings;
        int last = -1;  // the stage before
        GEMMTUNE_ROLL
        for (int chunk = 0; chunk < chunks; ++chunk) {
            GEMMTUNE_UNROLL
            for (int on = 0; on < kParts; ++on) {
                const u64 stage = consumer.wait_inputs();
                GEMMTUNE_UNROLL
                for (int half = 0; half < 2; ++half) {
                    begin_products();
                    GEMMTUNE_UNROLL
                    for (int at = 0; at < 2; ++at)
                        multiply_held<T, BN>(sum, converter.held[half][at], stage + (half * 2 + at) * kMatrixStep);
                    end_products();
                    const int next = (on * 2 + half + 1) % (kParts * 2);
                    if (next == 0) consumer.next_weights(another || chunk + 1 < chunks);
                    converter.read(rings.weights, consumer.slots.place * Rings::kSlot, next);
                    wait_products<1>();  // those before these: nothing reads the other registers and the stage before
                    if (half == 0) {
                        if (last >= 0) rings.free_stage(last);
                        last = consumer.stages.place;
                        consumer.stages.advance();
                    }
                    converter.convert(1 - half);
                }
            }
        }
        wait_products<0>();
        settle(sum);
        rings.free_stage(last);
    }

    // Stores a warp's 16 rows.
    static GEMMTUNE_DEVICE void store(const End& here, const float (&sum)[BN / 2], char* patch) {
        const u64 apart = static_cast<u64>(here.args.d_column) * sizeof(D);
        const bool whole = ((reinterpret_cast<u64>(here.d) | apart) & 15) == 0 && here.rows >= 16;
        if constexpr (sizeof(D) == 2) {
            if (here.plain && whole) return store_narrow(here, sum, reinterpret_cast<D*>(patch));
        }
        store_any(here, sum, reinterpret_cast<float*>(patch));
    }

    // Of two bytes, alpha times the sums: a lane has eight rows of a column.
    static GEMMTUNE_DEVICE void store_narrow(const End& here, const float (&sum)[BN / 2], D* patch) {
        const int lane = lane_index(), half = lane % 2 * 8;
        const float alpha = here.args.alpha;
        D* const column = patch + (lane / 16 * 8 + lane % 8) * kNarrowPitch + lane / 8 % 2 * 8;
        const D* const from = patch + lane / 2 * kNarrowPitch + half;
        D* d = here.d + lane / 2 * here.args.d_column + half;
        int left = here.columns - lane / 2;
        GEMMTUNE_UNROLL
        for (int first = 0; first < BN; first += kColumns) {
            unsigned words[4];  // of eight columns, eight rows and the next eight; and of the next columns
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) {
                const float* const two = sum + first / 2 + 2 * i;
                const D pair[2] = {narrow<D>(alpha * two[0]), narrow<D>(alpha * two[1])};
                words[i] = Word<D>::pack(pair);
            }
            warp_barrier();  // the columns before have been read
            store_columns(column, words);
            warp_barrier();
            if (left > 0) write16(d, *reinterpret_cast<const Words*>(from));
            left -= kColumns, d += kColumns * here.args.d_column;
        }
    }

    // Of any type, with any epilogue: a lane has eight rows of a column. The code of a store is in the program once.
    static GEMMTUNE_DEVICE void store_any(const End& here, const float (&sum)[BN / 2], float* patch) {
        const int lane = lane_index(), half = lane % 2 * 8;
        const float* const from = patch + lane / 2 * kPitch + half;
        float* const to = patch + lane % 4 * 2 * kPitch + lane / 4;
        GEMMTUNE_ROLL
        for (int group = 0; group < BN / kColumns; ++group) {
            warp_barrier();  // the columns before have been read
            GEMMTUNE_UNROLL
            for (int mine = 0; mine < BN / kColumns; ++mine) {
                if (mine != group) continue;
                GEMMTUNE_UNROLL
                for (int i = 0; i < 8; ++i) to[(i / 4 * 8 + i % 2) * kPitch + i / 2 % 2 * 8] = sum[mine * 8 + i];
            }
            warp_barrier();
            GEMMTUNE_UNROLL
            for (int down = 0; down < 8; down += 4) {
                const float four[4] = {from[down], from[down + 1], from[down + 2], from[down + 3]};
                here.store4(half + down, group * kColumns + lane / 2, four);
            }
        }
    }
};

}  // namespace gemmtune
