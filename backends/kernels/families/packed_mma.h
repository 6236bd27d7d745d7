// Prepacked quantised weights (packed_weights.h) times 1 to 64 columns of 16-bit activations on tensor cores
// (mma.sync, sm_80 and later). A program packs its weights once; a warp then reads them in contiguous runs of 512
// bytes, with the scales and zero points behind them, and no word has to be permuted.
//
// TILES tiles of sixteen rows are a warp's. WARPS_M warps are a team, which shares the activations: a ring of SLOTS
// chunks, each a record of every tile and the same elements of k of COLUMNS columns. WARPS_K teams of a block have the
// same rows and take records round-robin; their sums are added at the end. One barrier of the team a chunk says that
// all of its copies have arrived and that the previous chunk has been read.
//
// The weights are the sixteen rows of mma_16x8x16, the activations its eight columns. An instruction sums over k in
// any order, as long as both operands agree, so that a lane reads 16 contiguous bytes of either. The sums of a group
// are multiplied by its scale in fp32: weights are exact numbers of 16 bits. A zero point that is an integer is
// subtracted from the weights; one that is a float times the sum of the group's activations, which instructions whose
// weights are all one add up, from the group's sums.
#pragma once

#include "device/epilogue.h"
#include "device/line_copies.h"
#include "device/mma.h"
#include "device/packed_weights.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, int COLUMNS, int TILES, int SLOTS, int WARPS_M, int WARPS_K>
struct PackedMma {
    using Args = PackedWeightArgs;
    using T = typename TYPES::Input;
    using Record = PackedRecord<QUANT>;
    using Scale = typename QUANT::Scale;
    static constexpr int kTeam = kWarp * WARPS_M, kThreads = kTeam * WARPS_K, kMinBlocks = 0;
    static constexpr int kRows = 16 * TILES * WARPS_M, kHalves = (COLUMNS + 7) / 8;  // accumulators across
    static constexpr int kInputBytes = Record::kDeep * 2, kInputs = COLUMNS * kInputBytes;  // of a chunk
    static constexpr int kSlot = kInputs + TILES * WARPS_M * Record::kBytes;
    static constexpr int kPitch = kRows + 8, kPart = COLUMNS * kPitch;  // of a team's sums, in floats
    static constexpr int kRings = WARPS_K * SLOTS * kSlot, kParts = WARPS_K * kPart * 4;
    static constexpr int kSharedBytes = kRings > kParts ? kRings : kParts;
    static constexpr int kThirties = Record::kDeep / 32;  // a lane's eight elements of each
    static constexpr int kRuns = Record::kGrouped ? Record::kGroups : 1, kOfRun = kThirties / kRuns;
    static constexpr bool kFloatZeros = Record::kFloatZeros;
    static constexpr bool kWaits = true;
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert(SLOTS >= 2, "a chunk is read while another arrives");
    static_assert(WARPS_M == 1 || WARPS_K <= 15, "a named barrier a team");
    static_assert(COLUMNS <= 8 || COLUMNS % 8 == 0, "whole halves of tiles");

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.weights.gemm;
        const Task task(args);
        const int team = warp_index() / WARPS_M, member = warp_index() % WARPS_M;
        const Slice<Record::kDeep> mine(args, task, static_cast<unsigned>(Record::records(args.k)));
        const Copies copies(all, member);
        const Reads reads(args.k, member);
        char* const ring = opaque_shared(shared + team * SLOTS * kSlot);
        Sums sum = {};
        // The first SLOTS - 1 iterations only copy. Every team has the same iterations, the last maybe without a
        // record.
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
            commit_copies();  // also an empty group: groups are counted
            next += WARPS_K, to = to + kSlot == SLOTS * kSlot ? 0 : to + kSlot;
            if (ahead < 0) continue;
            if (WARPS_K == 1 || next - SLOTS * WARPS_K < end) multiply(ring + from, reads, sum);
            from = from + kSlot == SLOTS * kSlot ? 0 : from + kSlot;
        }
        wait_copies<0>();
        release_reduce(args);
        block_barrier();  // sums take the rings' place
        store(all, task, sum, reinterpret_cast<float*>(shared), team, member);
    }

private:
    using Sums = float[TILES][kHalves][4];

    static GEMMTUNE_DEVICE void team_barrier(int team) {
        if constexpr (WARPS_M == 1) warp_barrier();
        else if constexpr (WARPS_K == 1) block_barrier();
        else named_barrier_sync<kTeam>(1 + team);
    }

    // A warp copies its own tiles' records, and its share of the team's activations: 16-byte words, side by side along
    // a column and on as many columns as the team's lanes suffice for. Tiles and columns beyond the last are read as
    // the last, and not stored.
    struct Copies {
        static constexpr int kWords = kInputBytes / 16, kSide = kTeam / kWords;  // words and columns side by side
        static constexpr int kPasses = (COLUMNS + kSide - 1) / kSide;
        static_assert(kTeam % kWords == 0, "lanes side by side");
        static_assert(kSide % 2 == 0, "every pass of a lane has its words exchanged alike");
        const char* from[TILES];
        const char* inputs;      // the first column
        int column[kPasses];     // bytes from there to its own columns
        int at, to, element, k;  // to: where the lane's word of its first column goes; element: the word's first
        bool copies, beside;     // whether the lane has a column in the last pass, and a word behind the weights

        GEMMTUNE_DEVICE Copies(const Args& all, int member)
            : at(opaque(kInputs + member * TILES * Record::kBytes + lane_index() * 16)), k(all.weights.gemm.k) {
            const GemmArgs& args = all.weights.gemm;
            const int tiles = Record::tiles(args.m), records = Record::records(k), lane = member * 32 + lane_index();
            GEMMTUNE_UNROLL
            for (int t = 0; t < TILES; ++t) {
                const int tile = (static_cast<int>(block_x()) * WARPS_M + member) * TILES + t;
                from[t] = opaque(static_cast<const char*>(all.packed) + lane_index() * 16 +
                                 static_cast<i64>(tile < tiles ? tile : tiles - 1) * records * Record::kBytes);
            }
            const int word = lane % kWords, first = lane / kWords;
            copies = first + (kPasses - 1) * kSide < COLUMNS, beside = lane_index() < Record::kBeside;
            element = opaque(word * 8);
            inputs = opaque(static_cast<const char*>(args.b));
            to = opaque(first * kInputBytes + (word ^ exchanged<kInputBytes>(first)) * 16);
            GEMMTUNE_UNROLL
            for (int pass = 0; pass < kPasses; ++pass) {
                const int own = first + pass * kSide;
                const int last = args.n - 1;
                column[pass] = opaque((own < last ? own : last) * static_cast<int>(args.ldb) * 2);
            }
        }

        // Starts this lane's copies of a record. Activations beyond the last are zero.
        GEMMTUNE_DEVICE void chunk(char* slot, int record) const {
            GEMMTUNE_UNROLL
            for (int t = 0; t < TILES; ++t) {
                const char* const source = from[t] + static_cast<i64>(record) * Record::kBytes;
                char* const target = slot + at + t * Record::kBytes;
                copy_async16(target, source);
                copy_async16(target + 512, source + 512);
                if constexpr (Record::kBeside > 0) copy_async16_if(beside, target + 1024, source + 1024);
            }
            const int first = element + record * Record::kDeep;
            // Zero bytes are read from the column's first word, which exists.
            const bool inside = first < k;
            const char* const source = inputs + (inside ? first * 2u : 0u);
            const int bytes = inside ? 16 : 0;
            GEMMTUNE_UNROLL
            for (int pass = 0; pass < kPasses; ++pass) {
                char* const target = slot + to + pass * kSide * kInputBytes;
                const char* const own = source + static_cast<unsigned>(column[pass]);
                if (pass + 1 < kPasses || COLUMNS % kSide == 0) copy_async16(target, own, bytes);
                else copy_async16_if(copies, target, own, bytes);
            }
        }
    };

    // Where a lane reads in a slot: its row of every eight, its column of every eight.
    struct Reads {
        static constexpr int kZero = Record::kZeroBytes / Record::kRows;  // bytes of a zero point
        int weights, scales, zeros, inputs;
        unsigned mask;

        GEMMTUNE_DEVICE Reads(int k, int member)
            : weights(opaque(kInputs + member * TILES * Record::kBytes + lane_index() * 16)),
              scales(opaque(kInputs + member * TILES * Record::kBytes + lane_index() / 4 * int(sizeof(Scale)))),
              zeros(opaque(kInputs + member * TILES * Record::kBytes + lane_index() / 4 * kZero)),
              inputs(opaque(line_place<kInputBytes>(lane_index() / 4 < COLUMNS ? lane_index() / 4 : COLUMNS - 1,
                                                    lane_index() % 4))),
              mask(kept(QUANT::kBits == 4 ? 0x000f000fu : kConvertMask, k)) {}

        GEMMTUNE_DEVICE Words words(const char* slot, int tile, int upper) const {
            return read_shared<Words>(slot + weights + tile * Record::kBytes + upper * 512);
        }
        // Of row `upper * 8` + its own, of the record's group `of`.
        GEMMTUNE_DEVICE float scale(const char* slot, int tile, int upper, int of) const {
            return widen(value<Scale>(slot + scales + Record::kScales, tile, upper, of));
        }
        GEMMTUNE_DEVICE float float_zero(const char* slot, int tile, int upper, int of) const {
            return widen(value<Scale>(slot + zeros + Record::kZeros, tile, upper, of));
        }
        GEMMTUNE_DEVICE unsigned whole_zero(const char* slot, int tile, int upper, int of) const {
            return value<unsigned char>(slot + zeros + Record::kZeros, tile, upper, of);
        }
        template <typename VALUE>
        static GEMMTUNE_DEVICE VALUE value(const char* from, int tile, int upper, int of) {
            return reinterpret_cast<const VALUE*>(from + tile * Record::kBytes)[of * Record::kRows + upper * 8];
        }
        // The activations of the lane's eight elements of the 32 from 32 j on.
        GEMMTUNE_DEVICE Words activations(const char* slot, int half, int j) const {
            return read_shared<Words>(slot + line_word<kInputBytes>(inputs, j) + half * 8 * kInputBytes);
        }
    };

    // A row's eight weights of 32, as pairs: numbers of T that are exact, divided by kShrunkOf if they have 8 bits.
    static GEMMTUNE_DEVICE void pairs(const Words& raw, unsigned mask, int j, unsigned zero, unsigned (&out)[4]) {
        if constexpr (QUANT::kBits == 8) {
            ConvertOf<T, QUANT>::template run<QUANT::kSigned>(raw.at, mask, j, 0, out);
        } else if constexpr (QUANT::kFloat) {
            eight_floats<T>(raw.at[j], out);
        } else {
            constexpr unsigned kPower = kSame<T, Bf16> ? 0x43004300u : 0x64006400u;  // 128, 1024
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i)
                out[i] = fma_pair<T>((raw.at[j] >> 4 * i & mask) ^ kPower, PairBits<T>::kOne, zero);
        }
    }
    // What pairs() adds to integers of 4 bits: minus their power of two and their zero point.
    static GEMMTUNE_DEVICE unsigned minus(unsigned point) { return both((kSame<T, Bf16> ? 0xc300u : 0xe400u) + point); }

    static GEMMTUNE_DEVICE void multiply(const char* slot, const Reads& reads, Sums& sum) {
        constexpr unsigned kOne = PairBits<T>::kOne;
        constexpr unsigned kOnes[2][4] = {{kOne, kOne, kOne, kOne}, {kOne, kOne, kOne, kOne}};
        Words raw[TILES][2];
        GEMMTUNE_UNROLL
        for (int t = 0; t < 2 * TILES; ++t) raw[t / 2][t % 2] = reads.words(slot, t / 2, t % 2);
        GEMMTUNE_UNROLL
        for (int run = 0; run < kRuns; ++run) {
            Sums part = {};
            float inputs[kHalves][4] = {}, factor[TILES][2], point[TILES][2];
            if constexpr (Record::kGrouped) read_scales(slot, reads, run, factor, point);
            unsigned zero[TILES][2];
            GEMMTUNE_UNROLL
            for (int t = 0; t < 2 * TILES; ++t) {
                unsigned whole = QUANT::kBits == 4 ? kConstantZero<QUANT> : 0u;
                if constexpr (QUANT::kZero == kWords) whole = reads.whole_zero(slot, t / 2, t % 2, run);
                zero[t / 2][t % 2] = minus(whole);
            }
            GEMMTUNE_UNROLL
            for (int on = 0; on < kOfRun; ++on) {
                const int j = run * kOfRun + on;
                Words x[kHalves];
                GEMMTUNE_UNROLL
                for (int half = 0; half < kHalves; ++half) x[half] = reads.activations(slot, half, j);
                if constexpr (kFloatZeros) {
                    GEMMTUNE_UNROLL
                    for (int half = 0; half < kHalves; ++half) eight(inputs[half], kOnes, x[half].at);
                }
                GEMMTUNE_UNROLL
                for (int t = 0; t < TILES; ++t) {
                    unsigned w[2][4];
                    pairs(raw[t][0], reads.mask, j, zero[t][0], w[0]);
                    pairs(raw[t][1], reads.mask, j, zero[t][1], w[1]);
                    GEMMTUNE_UNROLL
                    for (int half = 0; half < kHalves; ++half) {
                        if constexpr (Record::kGrouped) eight(part[t][half], w, x[half].at);
                        else eight(sum[t][half], w, x[half].at);
                    }
                }
            }
            if constexpr (Record::kGrouped) scale(factor, point, part, inputs, sum);
        }
    }

    using Factors = float[TILES][2];
    // The scales of a group, and its zero points if they are floats.
    static GEMMTUNE_DEVICE void read_scales(const char* slot, const Reads& reads, int run, Factors& factor,
                                            Factors& point) {
        GEMMTUNE_UNROLL
        for (int t = 0; t < 2 * TILES; ++t) {
            const int tile = t / 2, upper = t % 2;
            factor[tile][upper] = reads.scale(slot, tile, upper, run) * kUnshrunk;
            if constexpr (kFloatZeros) point[tile][upper] = reads.float_zero(slot, tile, upper, run);
        }
    }
    // Adds the sums of a group, times its scale.
    static GEMMTUNE_DEVICE void scale(const Factors& factor, const Factors& point, const Sums& part,
                                      const float (&inputs)[kHalves][4], Sums& sum) {
        GEMMTUNE_UNROLL
        for (int t = 0; t < 2 * TILES; ++t) {
            const int tile = t / 2, upper = t % 2;
            GEMMTUNE_UNROLL
            for (int half = 0; half < kHalves; ++half) {
                GEMMTUNE_UNROLL
                for (int i = 2 * upper; i < 2 * upper + 2; ++i) {
                    float own = part[tile][half][i];
                    if constexpr (QUANT::kZero == kSubtracted) own -= point[tile][upper] * inputs[half][i];
                    sum[tile][half][i] += factor[tile][upper] * own;
                    if constexpr (QUANT::kZero == kAdded) sum[tile][half][i] += point[tile][upper] * inputs[half][i];
                }
            }
        }
    }
    static constexpr float kUnshrunk = QUANT::kBits == 8 ? kShrunkOf<T, QUANT> : 1.0f;

    // Adds the products of eight elements of k a lane.
    static GEMMTUNE_DEVICE void eight(float (&sum)[4], const unsigned (&w)[2][4], const unsigned (&x)[4]) {
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; i += 2) {
            const unsigned of_a[4] = {w[0][i], w[1][i], w[0][i + 1], w[1][i + 1]};
            const unsigned of_b[2] = {x[i], x[i + 1]};
            mma_16x8x16<T>(sum, of_a, of_b);
        }
    }

    // Adds the teams' sums and stores them; neighbouring threads store neighbours in D's columns.
    static GEMMTUNE_DEVICE void store(const Args& all, Task task, const Sums& sum, float* parts, int team, int member) {
        const GemmArgs& args = all.weights.gemm;
        const int group = lane_index() / 4, pair = lane_index() % 4 * 2;
        const i64 first = static_cast<i64>(block_x()) * kRows;
        GEMMTUNE_UNROLL
        for (int tile = 0; tile < TILES; ++tile) {
            GEMMTUNE_UNROLL
            for (int half = 0; half < kHalves; ++half) {
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const int row = (member * TILES + tile) * 16 + i / 2 * 8 + group, column = half * 8 + pair + i % 2;
                    if (COLUMNS % 8 && column >= COLUMNS) continue;
                    parts[team * kPart + column * kPitch + row] = sum[tile][half][i];
                }
            }
        }
        block_barrier();
        const char* const tail = static_cast<const char*>(all.packed) +
                                 static_cast<i64>(Record::tiles(args.m)) * Record::records(args.k) * Record::kBytes;
        for (int i = static_cast<int>(thread_index()); i < kRows * COLUMNS; i += kThreads) {
            const int at = i / kRows * kPitch + i % kRows;
            const i64 row = first + i % kRows;
            float whole = 0.0f;
            GEMMTUNE_UNROLL
            for (int part = 0; part < WARPS_K; ++part) whole += parts[part * kPart + at];
            if (!Record::kGrouped && row < args.m)
                whole *= widen(reinterpret_cast<const Scale*>(tail)[row]) * kUnshrunk;
            finish_slice<TYPES>(args, task, row, i / kRows, whole);
        }
    }
};

}  // namespace gemmtune
