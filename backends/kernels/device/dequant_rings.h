// The two rings in shared memory that producer warps fill by the copy engine (TMA) for a block that multiplies
// quantised weights by 16-bit activations on Hopper (dequant_tma_wgmma.h, dequant_tile_wgmma.h): SLOTS *slots* with a
// chunk of weights as they are stored, 128 bytes of each of BM rows, with their scales and zero points, and STAGES
// *stages* of activations, 64 elements of k of COLUMNS columns. Each slot and stage has a barrier of what arrives in
// it, and one of the consumers that have read it.
//
// SHARE blocks beside each other along x multiply the same activations: each requests a part of the columns of a stage,
// which TMA multicasts to all of them, and a stage is free when all have read it. Along y the cluster has SPLITS of
// them. READERS: warps of a block that read a slot; BM / 16 of them read a stage. Every lane of a reader says that it
// has read a slot, not one for its warp: a compiler may leave out the warp's barrier before.
#pragma once

#include "device/dequant_chunk.h"
#include "device/hopper.h"

namespace gemmtune {

struct ByBoxes {  // dequant_chunk.h: PRODUCTS
    static constexpr bool kOfWarpgroups = true, kBoxes = true;
    static constexpr int kPlace = 1024;
};

// The current slot or stage of a ring of SIZE, and the parity of the phase to wait for: that of the first phase, or of
// the phase before it, which counts as ended.
constexpr unsigned kFilled = 0, kFree = 1;
template <int SIZE>
struct PlaceInRing {
    int place;
    unsigned parity;
    GEMMTUNE_DEVICE explicit PlaceInRing(unsigned parity, int place = 0) : place(place), parity(parity) {}
    GEMMTUNE_DEVICE void advance(int by = 1) {
        place += by;
        if (place >= SIZE) place -= SIZE, parity ^= 1;
    }
};

template <typename TYPES, typename QUANT, int COLUMNS, int BM, int READERS, int SLOTS, int STAGES, int SHARE,
          int SPLITS>
struct DequantRings {
    static constexpr int kDeep = kMapLine * 8 / QUANT::kBits, kPart = 64, kParts = kDeep / kPart;  // of a chunk
    static constexpr int kRowWarps = BM / 16;
    using Chunk = DequantChunk<TYPES, QUANT, COLUMNS, 16, kDeep, kRowWarps, ByBoxes>;
    static constexpr int kCopied = QUANT::kFloat ? 16 : 64;  // rows whose scales a producer warp copies at once
    using Copied = DequantChunk<TYPES, QUANT, COLUMNS, kCopied, kDeep, BM / kCopied, ByBoxes>;
    using Args = TensorArgs<2, WeightArgs>;  // maps of the weights, as bytes, and of the activations
    using Slots = PlaceInRing<SLOTS>;
    using Stages = PlaceInRing<STAGES>;
    static constexpr int kSlot = Chunk::kSlot, kWeights = BM * kMapLine, kStage = COLUMNS * kMapLine;
    static constexpr int kInputs = SLOTS * kSlot, kBytes = kInputs + STAGES * kStage;
    static constexpr int kBarrierBytes = 2 * (SLOTS + STAGES) * 8;
    static constexpr int kCopiers = BM / kCopied < 3 ? BM / kCopied : 3;  // warps that copy scales
    // Arrivals that fill a slot: of the thread that requests its box, and of the lanes that copy scales, twice where
    // they may store a word of scales of bytes themselves.
    static constexpr int kFills = 1 + kCopiers * kWarp * ((Chunk::kGrouped ? 1 : 0) + (QUANT::kFloat ? 1 : 0));
    static_assert(kWarp == 32 && sizeof(typename Chunk::T) == 2, "16-bit elements in fragments of 32 lanes");
    static_assert(kSlot == Copied::kSlot && Chunk::kS == Copied::kS && Chunk::kZ == Copied::kZ, "one layout");
    static_assert(BM % 64 == 0 && BM <= 256 && SLOTS >= 2 && STAGES >= 2, "wgmma's sizes");
    static_assert(COLUMNS % (8 * SHARE) == 0 && COLUMNS <= 256, "parts are whole groups of eight lines");
    static_assert(SHARE * SPLITS <= 8, "a cluster has eight blocks");

    char *weights, *inputs;
    Barrier *full_weights, *free_weights, *full_inputs, *free_inputs;

    // `barriers`: where they begin in shared memory, behind the rings.
    GEMMTUNE_DEVICE DequantRings(char* shared, int barriers) : weights(shared), inputs(shared + kInputs) {
        full_weights = reinterpret_cast<Barrier*>(shared + barriers), free_weights = full_weights + SLOTS;
        full_inputs = free_weights + SLOTS, free_inputs = full_inputs + STAGES;
    }
    // By one thread. Weights are freed by this block's consumers, activations by all that share them.
    GEMMTUNE_DEVICE void start() const {
        for (int slot = 0; slot < SLOTS; ++slot)
            start_barrier(&full_weights[slot], kFills),
                start_barrier(&free_weights[slot], READERS * kWarp);
        for (int stage = 0; stage < STAGES; ++stage)
            start_barrier(&full_inputs[stage], 1), start_barrier(&free_inputs[stage], kRowWarps * SHARE);
        started_barriers();
    }
    // The rank in the cluster of the block `at` of those that share activations.
    static GEMMTUNE_DEVICE int sharer(int at) { return static_cast<int>(block_y() % SPLITS) * SHARE + at; }

    // By one thread: this block's parts of the activations of `count` chunks, of the columns from `column` on.
    GEMMTUNE_DEVICE void copy_inputs(const Args& all, int column, int begin, int count, Stages& ring) const {
        constexpr int kLines = COLUMNS / SHARE;
        const int line = static_cast<int>(block_x() % SHARE) * kLines;
        unsigned sharers = 0;
        for (int at = 0; at < SHARE; ++at) sharers |= 1u << sharer(at);
        GEMMTUNE_ROLL
        for (int step = begin * kParts; step < (begin + count) * kParts; ++step) {
            Barrier* const done = &full_inputs[ring.place];
            char* const to = inputs + ring.place * kStage + line * kMapLine;
            wait_phase(&free_inputs[ring.place], ring.parity);
            expect_bytes(done, kStage);
            if (SHARE == 1) copy_box(to, &all.maps[1], step * kPart, column + line, 0, done);
            else copy_box(to, &all.maps[1], step * kPart, column + line, 0, done, sharers);
            ring.advance();
        }
    }

    // By kCopiers warps, of which this is number `copier`: scales and zero points of chunks of the rows from `row` on,
    // kCopied of them in turn; by the first one weights.
    GEMMTUNE_DEVICE void copy_weights(const Args& all, int row, int begin, int count, int copier, Slots& ring) const {
        const int k = all.product.gemm.k;
        GEMMTUNE_ROLL
        for (int chunk = begin; chunk < begin + count; ++chunk) {
            Barrier* const done = &full_weights[ring.place];
            char* const slot = weights + ring.place * kSlot;
            wait_phase(&free_weights[ring.place], ring.parity);
            if (copier == 0 && lane_index() == 0) {
                order_before_copies();  // consumers read the slot by loads, which the barrier alone does not order
                expect_bytes(done, kWeights);
                copy_box(slot, &all.maps[0], chunk * kMapLine, row, 0, done);
            }
            if constexpr (Chunk::kGrouped) {
                GEMMTUNE_ROLL
                for (int down = copier * kCopied; down < BM; down += kCopiers * kCopied) {
                    const typename Copied::ScaleCopies scales(all.product, row + down, down);
                    scales.chunk(slot, chunk, k - chunk * kDeep);
                }
                arrive_after_copies(done);
                if constexpr (QUANT::kFloat) arrive(done);
            }
            ring.advance();
        }
    }

    // By a consumer's warp: permits this and the other producers to overwrite a stage.
    GEMMTUNE_DEVICE void free_stage(int stage) const {
        if (SHARE == 1) {
            if (lane_index() == 0) arrive(&free_inputs[stage]);
        } else if (lane_index() < SHARE) {
            arrive_at(&free_inputs[stage], sharer(lane_index()));
        }
    }
    GEMMTUNE_DEVICE void free_slot(int slot) const {
        arrive(&free_weights[slot]);
    }

    // Multiplies the finished sums of a warp's rows, from `row` on, by their only scale.
    static GEMMTUNE_DEVICE void scale_rows(const WeightArgs& all, int row, float (&sum)[COLUMNS / 2]) {
        const auto* const scales = static_cast<const typename QUANT::Scale*>(all.scales);
        float factor[2];
        GEMMTUNE_UNROLL
        for (int upper = 0; upper < 2; ++upper) {
            const int own = row + upper * 8 + lane_index() / 4;
            factor[upper] = own < all.gemm.m ? widen(scales[own * all.scale_row]) * Chunk::kUnshrunk : 0.0f;
        }
        GEMMTUNE_UNROLL
        for (int at = 0; at < COLUMNS / 2; ++at) sum[at] *= factor[at / 2 % 2];
    }
};

// Registers of a thread of a block of BLOCKS resident ones, with WORKERS consumer warps and a warpgroup of producers:
// at the launch, of a producer (of MOST at most), which leaves most of its own to the consumers, and of a consumer.
template <int WORKERS, int BLOCKS, int MOST = 40>
struct ExchangedRegisters {
    static constexpr int kThreads = 32 * (WORKERS + 4);
    static constexpr int kMost = 65536 / BLOCKS / kThreads / 8 * 8, kLaunched = kMost < 248 ? kMost : 248;
    static constexpr int kProducer = kLaunched < 128 ? 32 : MOST;
    static constexpr int kLeft = (kLaunched * kThreads - kProducer * 128) / (WORKERS * 32) / 8 * 8;
    static constexpr int kConsumer = kLeft < 240 ? kLeft : 240;
    static constexpr bool kExchanged = kConsumer > kLaunched;
};

}  // namespace gemmtune
