// Quantised weights times up to 256 columns of 16-bit activations on Hopper's tensor cores (wgmma, sm_90a), warp-
// specialised. Producer warps fill the two rings of dequant_rings.h by the copy engine (TMA): chunks of weights as they
// are stored, and activations, 64 elements of k of all columns a stage. BM / 64 consumer warpgroups, each 64 rows by
// all columns, convert weights to the register operand of wgmma (dequant_chunk.h). The rings have mbarriers of their
// own: no consumer waits for another one. TEAMS of them take stages in turn; their sums are added at the end.
//
// With many columns the weights of the next stage are converted between the instructions of this one (kBetween).
// Scales multiply weights, which are thereby rounded once to the activations' type: sums stay in the instructions'
// registers for the whole of k, and no wait for them is needed at a group's end. MXFP4's scales are powers of two.
//
// A cluster has SHARE blocks with neighbouring rows along x: each requests a part of the columns of a stage, which TMA
// multicasts to all of them. Along y it has SPLITS blocks with a slice of k each of the same rows, whose sums are added
// through distributed shared memory (tile_sums.h). There is no workspace and no second launch.
// Producers leave most of their registers to the consumers. BLOCKS: resident blocks of a multiprocessor.
#pragma once

#include "device/dequant_rings.h"
#include "device/tile_sums.h"
#include "device/wgmma_bytes.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, int COLUMNS, int BM, int TEAMS, int SLOTS, int STAGES, int SHARE, int SPLITS,
          int BLOCKS>
struct DequantTmaWgmma {
    static constexpr int kRowWarps = BM / 16, kWorkers = kRowWarps * TEAMS;
    static constexpr int kThreads = 32 * (kWorkers + 4), kMinBlocks = BLOCKS;
    using Rings = DequantRings<TYPES, QUANT, COLUMNS, BM, kWorkers, SLOTS, STAGES, SHARE, SPLITS>;
    using Chunk = typename Rings::Chunk;
    static constexpr int kDeep = Rings::kDeep, kPart = Rings::kPart, kParts = Rings::kParts;  // of a chunk
    static constexpr int kSlot = Rings::kSlot, kStage = Rings::kStage;
    using T = typename Chunk::T;
    using Args = typename Rings::Args;
    using End = Finish<TYPES, 1>;
    using Tile = TileSums<End, typename TYPES::D, float, BM, COLUMNS, kWorkers * 32, SPLITS, SHARE, true>;
    using Registers = ExchangedRegisters<kWorkers, BLOCKS>;
    static constexpr int kBarriers = Rings::kBytes > Tile::kPatch ? Rings::kBytes : Tile::kPatch;
    static constexpr int kSharedBytes = (kBarriers + Rings::kBarrierBytes + 1023) / 1024 * 1024;
    static constexpr bool kWaits = true;
    static_assert(STAGES % TEAMS == 0, "a team has the same stages in every round");
    static_assert(STAGES >= 2 * TEAMS, "a stage is freed while the team multiplies the next one");

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.product.gemm;
        const Rings rings(shared, kBarriers);
        const int warp = warp_index();
        if (warp == kWorkers && lane_index() < 2) fetch_map(&all.maps[lane_index()]);
        if (warp == 0 && lane_index() == 0) rings.start();
        if (SHARE > 1) arrive_at_cluster();
        const unsigned slice = block_y() % SPLITS;
        const unsigned batch = block_z() + block_y() / SPLITS * static_cast<unsigned>(args.batch_blocks);
        const unsigned chunks = (static_cast<unsigned>(args.k) - 1) / kDeep + 1;
        const unsigned each = (chunks - 1) / SPLITS + 1, from = least(slice * each, chunks);
        const int begin = static_cast<int>(from), count = static_cast<int>(least(from + each, chunks) - from);
        const int row = static_cast<int>(block_x()) * BM;
        if (SHARE > 1) wait_for_cluster();  // what others send comes to barriers that are there
        else block_barrier();
        wait_for_launches();
        if (batch >= static_cast<unsigned>(args.batch)) return;  // all blocks of the cluster return
        if (warp >= kWorkers) {
            if constexpr (Registers::kExchanged) keep_registers<Registers::kProducer>();
            const int copier = warp - kWorkers - 1;
            typename Rings::Stages stages(kFree);
            typename Rings::Slots slots(kFree);
            if (warp == kWorkers && lane_index() == 0) rings.copy_inputs(all, 0, begin, count, stages);
            else if (copier >= 0 && copier < Rings::kCopiers) rings.copy_weights(all, row, begin, count, copier, slots);
            warp_barrier();  // reconverges the warp
            named_barrier_sync<kThreads>();
            GEMMTUNE_UNROLL
            for (int team = 1; team < TEAMS; ++team) named_barrier_sync<kThreads>();
            show_sums();
            if (SPLITS > 1) cluster_barrier<false>();
        } else {
            if constexpr (Registers::kExchanged) take_registers<Registers::kConsumer>();
            float sum[COLUMNS / 2];
            multiply_chunks(all.product, row, count, rings, sum);
            float* const patch = reinterpret_cast<float*>(shared);
            named_barrier_sync<kThreads>();  // no thread reads this block's rings, and all copies have arrived
            add_teams(sum, patch);
            show_sums();
            Tile::store(End(args, batch, row, 0), static_cast<int>(slice), patch);
            if (SPLITS > 1) cluster_barrier<false>();  // others read what lies here, and have stored it then
        }
    }

private:
    using Reads = typename Chunk::Reads;
    using Row = typename Chunk::Row;

    static GEMMTUNE_DEVICE void add_teams(const float (&sum)[COLUMNS / 2], float* patch) {
        const int rows = warp_index() % kRowWarps, own = warp_index() / kRowWarps;
        if (own == 0) Tile::lay_out(sum, rows, patch);
        GEMMTUNE_UNROLL
        for (int team = 1; team < TEAMS; ++team) {
            named_barrier_sync<kThreads>();
            if (own == team) Tile::template lay_out<true>(sum, rows, patch);
        }
    }
    // All threads' sums to the block, or to those that have the other slices.
    static GEMMTUNE_DEVICE void show_sums() {
        if (SPLITS > 1) cluster_barrier<true>();
        else named_barrier_sync<kThreads>();
    }
    static GEMMTUNE_DEVICE unsigned least(unsigned x, unsigned y) { return x < y ? x : y; }
    static constexpr int kOwn = kParts / TEAMS;  // a team's parts of a chunk
    static constexpr bool kBetween = COLUMNS > 64;
    static_assert(kOwn % 2 == 0, "two parts are held");

    // A team's weights of 64 elements of k on their way to the register operands of four instructions.
    struct Converter {
        static constexpr int kWords = Chunk::kWords32, kRead = kOwn * 2 * kWords;  // of a row of a chunk
        const Reads reads;
        const int team;
        int at[kRead];    // where the words that the lane's row has for its team are in a slot
        unsigned held[2][kPart / 16][4];
        Words words[2][2][kWords];  // of 32 elements each, of both rows of a lane
        Row rows[2][2];

        GEMMTUNE_DEVICE Converter(int warp, int team, const WeightArgs& all)
            : reads(warp, all.gemm.k, all.scale_row), team(TEAMS == 1 ? 0 : team) {
            // Teams have neighbouring words: their numbers differ in bits of their own.
            GEMMTUNE_UNROLL
            for (int word = 0; word < kRead; ++word) {
                const int number = word / (2 * kWords) * (2 * kWords * TEAMS) + word % (2 * kWords);
                const int place = number ^ team * (2 * kWords) ^ reads.group;
                at[word] = opaque((reads.row + reads.group) * kMapLine + place * 16);
            }
        }

        // The team's part number `on` of a chunk.
        GEMMTUNE_DEVICE void read(const char* slot, int on) {
            GEMMTUNE_UNROLL
            for (int half = 0; half < 2; ++half) {
                GEMMTUNE_UNROLL
                for (int upper = 0; upper < 2; ++upper) {
                    const int of = ((on * TEAMS + team) * kPart + half * 32) / Chunk::kGroup;
                    if (half == 0 ? TEAMS > 1 || on * kPart % Chunk::kGroup == 0 : Chunk::kGroup == 32)
                        rows[half][upper].read_scales(slot, reads, upper * 8, of);
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < kWords; ++i) {
                        const char* const from = slot + at[(on * 2 + half) * kWords + i];
                        words[half][upper][i] = read_shared<Words>(from + upper * 8 * kMapLine);
                    }
                }
            }
        }
        GEMMTUNE_DEVICE void convert(int buffer, int half) {
            unsigned w[2][4];
            GEMMTUNE_UNROLL
            for (int upper = 0; upper < 2; ++upper) {
                const Row& own = rows[Chunk::kGroup == 32 ? half : 0][upper];
                reads.own_pairs(words[half][upper], own.whole, w[upper]);
                own.scale_pairs(w[upper]);
            }
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; i += 2) {
                unsigned(&a)[4] = held[buffer][half * 2 + i / 2];
                a[0] = w[0][i], a[1] = w[1][i], a[2] = w[0][i + 1], a[3] = w[1][i + 1];
                if constexpr (!kBetween) continue;
                GEMMTUNE_UNROLL
                for (unsigned& one : a)  // now, not when they are used
                    one = static_cast<unsigned>(opaque(static_cast<int>(one)));
            }
        }
    };

    // What a consumer waits for and frees.
    struct Consumer {
        const Rings& rings;
        typename Rings::Slots of_weights;
        typename Rings::Stages of_inputs;
        u64 inputs;
        int last = 0, left;  // the stage before; stages that will be filled again
        bool any = false;

        GEMMTUNE_DEVICE Consumer(const Rings& rings, int team, int count)
            : rings(rings), of_weights(kFilled), of_inputs(kFilled, team), inputs(shared_matrix(rings.inputs)),
              left((count * kParts - STAGES) / TEAMS) {}

        GEMMTUNE_DEVICE const char* slot() const { return rings.weights + of_weights.place * kSlot; }
        GEMMTUNE_DEVICE void wait_weights() const {
            wait_phase(&rings.full_weights[of_weights.place], of_weights.parity);
        }
        GEMMTUNE_DEVICE void free_weights() {
            rings.free_slot(of_weights.place);
            of_weights.advance();
        }
        // The matrix of the stage, which has arrived then.
        GEMMTUNE_DEVICE u64 wait_inputs() const {
            wait_phase(&rings.full_inputs[of_inputs.place], of_inputs.parity);
            return inputs + static_cast<u64>(of_inputs.place * (kStage / 16));
        }
        // The stage before has been read. Only stages that will be filled again are freed: their producers wait for
        // this, so their blocks have not exited.
        GEMMTUNE_DEVICE void free_last() {
            if (any && left > 0) rings.free_stage(last), --left;
            any = true, last = of_inputs.place;
            of_inputs.advance(TEAMS);
        }
    };

    static GEMMTUNE_DEVICE void multiply_chunks(const WeightArgs& all, int row, int count, const Rings& rings,
                                                float (&sum)[COLUMNS / 2]) {
        GEMMTUNE_UNROLL
        for (float& one : sum) one = 0.0f;
        const int rows = warp_index() % kRowWarps, team = warp_index() / kRowWarps;
        Consumer consumer(rings, team, count);
        Converter converter(rows, team, all);
        if constexpr (kBetween) multiply_between(consumer, converter, count, sum);
        else multiply_after(consumer, converter, count, sum);
        wait_products<0>();
        settle(sum);
        if constexpr (!Chunk::kGrouped) Rings::scale_rows(all, row + rows * 16, sum);
    }

    // Converts a stage's weights, while the tensor cores multiply those before.
    static GEMMTUNE_DEVICE void multiply_after(Consumer& consumer, Converter& converter, int count,
                                               float (&sum)[COLUMNS / 2]) {
        GEMMTUNE_ROLL
        for (int chunk = 0; chunk < count; ++chunk) {
            consumer.wait_weights();
            GEMMTUNE_UNROLL
            for (int on = 0; on < kOwn; ++on) {
                unsigned(&held)[kPart / 16][4] = converter.held[on % 2];
                converter.read(consumer.slot(), on);
                converter.convert(on % 2, 0), converter.convert(on % 2, 1);
                if (on == kOwn - 1) consumer.free_weights();
                const u64 stage = consumer.wait_inputs();
                begin_products();
                GEMMTUNE_UNROLL
                for (int at = 0; at < kPart / 16; ++at)
                    multiply_held<T, COLUMNS>(sum, held[at], stage + at * kMatrixStep);
                end_products();
                wait_products<1>();  // those of the stage before, whose registers are converted to next
                consumer.free_last();
            }
        }
    }

    // Converts the weights of the next stage between the instructions of this one.
    static GEMMTUNE_DEVICE void multiply_between(Consumer& consumer, Converter& converter, int count,
                                                 float (&sum)[COLUMNS / 2]) {
        if (count > 0) {
            consumer.wait_weights();
            converter.read(consumer.slot(), 0);
            converter.convert(0, 0), converter.convert(0, 1);
        }
        GEMMTUNE_ROLL
        for (int chunk = 0; chunk < count; ++chunk) {
            GEMMTUNE_UNROLL
            for (int on = 0; on < kOwn; ++on) {
                const char* slot = consumer.slot();
                if (on == kOwn - 1) {  // the next stage's are the next chunk's
                    consumer.free_weights();
                    if (chunk + 1 < count) {
                        slot = consumer.slot();
                        consumer.wait_weights();
                    }
                }
                // (Behind the last chunk these are read again and not used.)
                converter.read(slot, (on + 1) % kOwn);
                const u64 stage = consumer.wait_inputs();
                GEMMTUNE_UNROLL
                for (int half = 0; half < 2; ++half) {
                    begin_products();
                    GEMMTUNE_UNROLL
                    for (int at = half * 2; at < half * 2 + 2; ++at)
                        multiply_held<T, COLUMNS>(sum, converter.held[on % 2][at], stage + at * kMatrixStep);
                    end_products();
                    wait_products<1>();  // those before these: nothing reads the other registers and the last stage
                    if (half == 0) consumer.free_last();
                    converter.convert((on + 1) % 2, half);
                }
            }
        }
    }
};

}  // namespace gemmtune
