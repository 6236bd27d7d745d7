// Prepacked integers of 4 bits (packed_weights.h) times 1 or 2 columns of 16-bit activations on the integer tensor
// cores of Hopper: weights stay integers, and activations become some.
//
// Activations. The elements of a column that a record multiplies share a power of two, their unit, and are rounded to
// whole numbers of it, of which the largest has 21 bits and a sign. So a bf16 is exact if it is at least 2^-13 of the
// largest, and the rounding of smaller ones is like that of sums in fp32. A number is cut into three digits of base 256
// between -128 and 127, its *slices*, which are columns of the instruction: most of the eight columns of mma_16x8x32
// would be empty otherwise. A block converts its activations once, and keeps them in shared memory for all its rows.
//
// Weights. The low and the high halves of a word's bytes are two operands, a mask each, and have sums of their own: the
// high ones are sixteen times as large. The instruction adds to a number that has the zero point's part of the sum
// taken away already, and that is an fp32 of a fixed exponent when it is read as one: a sum is smaller than 2^22, so a
// subtraction of fp32 makes it a float, exactly. It is multiplied by the unit and by the group's scale in fp32.
//
// Data. The records of a tile lie one behind the other. One warp copies runs of them by the copy engine into a ring of
// SLOTS slots, each with WARPS_K * TURNS records of TILES tiles for each of WARPS_M teams; the WARPS_K warps of a team
// take records of the same tiles, and their sums meet in shared memory. Blocks stay, and take the next tiles while the
// sums of those before meet.
#pragma once

#include "device/digits.h"
#include "device/epilogue.h"
#include "device/hopper.h"
#include "device/mma_bytes.h"
#include "device/packed_weights.h"

namespace gemmtune {

// RECORDS: of a tile, along k.
template <typename TYPES, typename QUANT, int COLUMNS, int RECORDS, int TILES, int SLOTS, int WARPS_M, int WARPS_K,
          int TURNS>
struct PackedImma {
    using Args = PackedWeightArgs;
    using T = typename TYPES::Input;
    using Record = PackedRecord<QUANT>;
    using Scale = typename QUANT::Scale;
    static constexpr int kSlices = Digits::kCount, kSliced = kSlices * COLUMNS;
    static constexpr int kWarps = WARPS_M * WARPS_K, kThreads = 32 * (kWarps + 1), kMinBlocks = 0;
    static constexpr int kLanes = 32 * WARPS_K;                                  // of a team
    static constexpr int kRun = WARPS_K * TURNS, kTile = kRun * Record::kBytes;  // records of a tile in a slot
    static constexpr int kOfSlot = WARPS_M * TILES, kSlot = kOfSlot * kTile;     // tiles
    static constexpr int kGroups = Record::kGrouped ? Record::kGroups : 1;       // of a record
    static constexpr int kPitch = 16 * TILES + 4, kPart = kSliced * kPitch;      // of a warp's sums, in floats
    // Shared memory: the ring; slices; what sums start with; units; totals of groups; two rounds of sums; barriers.
    static constexpr int kInputs = SLOTS * kSlot, kPair = kSliced * 64;
    static constexpr int kStarts = kInputs + RECORDS * 2 * kPair, kStartBytes = 64;
    static constexpr int kUnits = kStarts + RECORDS * kGroups * kStartBytes;
    static constexpr int kTotals = kUnits + RECORDS * 32;
    static constexpr int kParts = kTotals + (QUANT::kStoredZeros ? RECORDS * kGroups * 32 : 0);
    static constexpr int kBarriers = kParts + 2 * kWarps * kPart * 4;
    static constexpr int kSharedBytes = kBarriers + (2 * SLOTS + 1 + WARPS_M) * 8;
    static constexpr bool kWaits = true;
    static_assert(QUANT::kBits == 4 && !QUANT::kFloat && kGroups <= 2, "integers in groups of 64 or 128");
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert(COLUMNS == 1 || COLUMNS == 2, "slices of an instruction");

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.weights.gemm;
        const Task task(args);
        const Work work(all, shared);
        const int warp = warp_index();
        if (thread_index() == 0) work.start_barriers();
        block_barrier();
        wait_for_launches();
        if (task.beyond(args)) return;
        if (warp == kWarps) {
            if (lane_index() == 0) work.copy();
        } else {
            const int team = warp / WARPS_K, own = warp % WARPS_K;
            convert(args, work, team, own);
            // Teams have converted for each other: each lane arrives for what it stored.
            if (WARPS_M > 1) arrive(work.converted), wait_phase(work.converted, kEnded);
            else warp_barrier();
            multiply_rows(all, work, task, team, own);
        }
    }

private:
    static constexpr unsigned kEnded = 0;

    // What the block has of the product: records and groups of tiles, and where they are in shared memory.
    struct Work {
        const Args& all;
        char* const shared;
        Barrier *full, *free, *converted, *met;
        int tiles, groups;

        GEMMTUNE_DEVICE Work(const Args& all, char* shared) : all(all), shared(shared) {
            const GemmArgs& args = all.weights.gemm;
            full = reinterpret_cast<Barrier*>(shared + kBarriers), free = full + SLOTS;
            converted = free + SLOTS, met = converted + 1;
            tiles = Record::tiles(args.m), groups = (tiles - 1) / kOfSlot + 1;
        }
        GEMMTUNE_DEVICE int next(int group) const { return group + all.weights.gemm.blocks; }

        GEMMTUNE_DEVICE void start_barriers() const {
            for (int slot = 0; slot < SLOTS; ++slot) start_barrier(&full[slot], 1), start_barrier(&free[slot], kWarps);
            start_barrier(converted, 32 * kWarps);
            for (int team = 0; team < WARPS_M; ++team) start_barrier(&met[team], kLanes);
            started_barriers();
        }

        // By one thread: all records of the block, in the order in which they are multiplied. Tiles beyond the last
        // are read as the last, and not stored.
        GEMMTUNE_DEVICE void copy() const {
            int slot = 0;
            unsigned parity = 1;
            GEMMTUNE_ROLL
            for (int group = static_cast<int>(block_x()); group < groups; group = next(group)) {
                GEMMTUNE_ROLL
                for (int first = 0; first < RECORDS; first += kRun) {
                    const int here = RECORDS - first < kRun ? RECORDS - first : kRun, bytes = here * Record::kBytes;
                    wait_phase(&free[slot], parity);
                    order_before_copies();  // warps read the slot by loads, which the barrier alone does not order
                    expect_bytes(&full[slot], bytes * kOfSlot);
                    GEMMTUNE_ROLL
                    for (int t = 0; t < kOfSlot; ++t) {
                        const int own = group * kOfSlot + t, tile = own < tiles ? own : tiles - 1;
                        const i64 record = static_cast<i64>(tile) * RECORDS + first;
                        copy_run(shared + slot * kSlot + t * kTile,
                                 static_cast<const char*>(all.packed) + record * Record::kBytes, bytes, &full[slot]);
                    }
                    if (++slot == SLOTS) slot = 0, parity ^= 1;
                }
            }
        }
        GEMMTUNE_DEVICE char* slices(int record) const { return shared + kInputs + record * 2 * kPair; }
        GEMMTUNE_DEVICE int* starts(int record, int group) const {
            return reinterpret_cast<int*>(shared + kStarts + (record * kGroups + group) * kStartBytes);
        }
        GEMMTUNE_DEVICE float* units(int record) const {
            return reinterpret_cast<float*>(shared + kUnits) + record * 8;
        }
        GEMMTUNE_DEVICE float* totals(int record, int group) const {
            return reinterpret_cast<float*>(shared + kTotals) + (record * kGroups + group) * 8;
        }
        // Sums of a round of a warp.
        GEMMTUNE_DEVICE float* part(int round, int warp) const {
            return reinterpret_cast<float*>(shared + kParts) + (round % 2 * kWarps + warp) * kPart;
        }
    };

    // ---- activations ---------------------------------------------------------------------------------------------

    // By a team's warps: the activations of their own records. Sixteen lanes have the elements of a record of a column,
    // eight each.
    static GEMMTUNE_DEVICE void convert(const GemmArgs& args, const Work& work, int team, int own) {
        constexpr int kItems = (RECORDS + WARPS_K - 1) / WARPS_K * COLUMNS, kStep = 2 * WARPS_M;
        constexpr int kAtOnce = kItems >= 4 * kStep ? 4 : kItems >= 2 * kStep ? 2 : 1;
        const int of = lane_index() % 16;
        const char* const inputs = static_cast<const char*>(args.b);
        GEMMTUNE_ROLL
        for (int first = team * 2; first < kItems; first += kAtOnce * kStep) {
            Words words[kAtOnce];
            GEMMTUNE_UNROLL
            for (int i = 0; i < kAtOnce; ++i) {
                const int item = first + i * kStep + lane_index() / 16, column = item % COLUMNS;
                const int record = item / COLUMNS * WARPS_K + own;
                const i64 k = static_cast<i64>(record) * Record::kDeep + of * 8;
                words[i] = Words{{0, 0, 0, 0}};
                if (record < RECORDS && column < args.n && k < args.k)
                    words[i] = read16(inputs + (column * args.ldb + k) * 2);
            }
            GEMMTUNE_UNROLL
            for (int i = 0; i < kAtOnce; ++i) {
                const int item = first + i * kStep + lane_index() / 16;
                const int record = item / COLUMNS * WARPS_K + own;
                keep(words[i], work, record, item % COLUMNS, of);
            }
        }
    }

    // Stores the slices of a lane's eight elements, and by one lane the unit and the total of each slice.
    static GEMMTUNE_DEVICE void keep(const Words& words, const Work& work, int record, int column, int of) {
        float x[8];
        unpack<T>(words.at, x);
        unsigned largest = 0;
        GEMMTUNE_UNROLL
        for (float one : x) largest = larger(largest, as_unsigned(one) & 0x7fffffffu);
        GEMMTUNE_UNROLL
        for (int mask = 1; mask < 16; mask *= 2) largest = larger(largest, shuffled(largest, mask));
        // Units are 2^-115 at least; those of infinity and NaN are NaN.
        constexpr unsigned kBits = 21, kLeast = 32;  // the largest is less than 2^kBits units
        const unsigned exponent = larger(largest >> 23, kLeast);
        const float up = as_float((253u + kBits - exponent) << 23);
        const float unit = exponent == 255u ? as_float(0x7fffffffu) : as_float((exponent + 1u - kBits) << 23);
        unsigned out[kSlices][2];
        Digits::cut(x, up, out);
        constexpr int kOfGroup = 16 / kGroups;
        const int group = of / kOfGroup;
        int total[kSlices];
        GEMMTUNE_UNROLL
        for (int s = 0; s < kSlices; ++s) {
            total[s] = sum_of_bytes(out[s][0], sum_of_bytes(out[s][1], 0));
            GEMMTUNE_UNROLL
            for (int mask = 1; mask < kOfGroup; mask *= 2)
                total[s] += static_cast<int>(shuffled(static_cast<unsigned>(total[s]), mask));
        }
        if (record >= RECORDS) return;
        GEMMTUNE_UNROLL
        for (int s = 0; s < kSlices; ++s) {
            const int place = s * COLUMNS + column;
            char* const to = work.slices(record) + of / 8 * kPair + place * 64 + of % 4 * 16 + of / 4 % 2 * 4;
            *reinterpret_cast<unsigned*>(to) = out[s][0], *reinterpret_cast<unsigned*>(to + 8) = out[s][1];
            // Read before the condition: behind it compilers index by the lane, in local memory.
            const int own = total[s];
            if (of % kOfGroup != s) continue;
            // A lane's sums are of two columns, in two rows.
            int* const start = work.starts(record, group) + place / 2 * 4 + place % 2;
            start[0] = start[2] = static_cast<int>(Digits::kOnes) - 16 * static_cast<int>(kConstantZero<QUANT>) * own;
            if (of == s) work.units(record)[place] = unit * worth(s);
            if constexpr (QUANT::kStoredZeros) work.totals(record, group)[place] = static_cast<float>(own);
        }
    }
    // What one is worth in a slice: sums are sixteen times too large.
    static GEMMTUNE_DEVICE constexpr float worth(int slice) {
        return slice == 0 ? 4096.0f : slice == 1 ? 16.0f : 0.0625f;
    }

    static GEMMTUNE_DEVICE unsigned larger(unsigned x, unsigned y) { return x > y ? x : y; }
    static GEMMTUNE_DEVICE unsigned shuffled(unsigned value, int mask) {
        return as_unsigned(shuffle_xor(as_float(value), mask));
    }

    // ---- products ------------------------------------------------------------------------------------------------

    using Sums = float[TILES][4];

    static GEMMTUNE_DEVICE void multiply_rows(const Args& all, const Work& work, Task task, int team, int own) {
        int slot = 0, round = 0, before = 0;
        unsigned parity = 0;
        GEMMTUNE_ROLL
        for (int group = static_cast<int>(block_x()); group < work.groups; group = work.next(group), ++round) {
            Sums sum = {};
            GEMMTUNE_ROLL
            for (int first = own; first - own < RECORDS; first += kRun) {
                wait_phase(&work.full[slot], parity);
                const char* const from = work.shared + slot * kSlot + team * TILES * kTile + own * Record::kBytes;
                GEMMTUNE_UNROLL
                for (int turn = 0; turn < TURNS; ++turn) {
                    const int record = first + turn * WARPS_K;
                    if (RECORDS % kRun == 0 || record < RECORDS)
                        multiply(from + turn * WARPS_K * Record::kBytes, work, record, sum);
                }
                warp_barrier();
                if (lane_index() == 0) arrive(&work.free[slot]);
                if (++slot == SLOTS) slot = 0, parity ^= 1;
            }
            if (round > 0) store(all, work, task, team, own, before, round - 1);
            lay_out(sum, work.part(round, team * WARPS_K + own));
            arrive(&work.met[team]);  // each lane for its own sums
            before = group;
        }
        if (round > 0) store(all, work, task, team, own, before, round - 1);
    }

    // Adds the products of a record of every tile of a warp.
    static GEMMTUNE_DEVICE void multiply(const char* from, const Work& work, int record, Sums& sum) {
        const int row = lane_index() / 4, pair = lane_index() % 4;
        Words raw[TILES][2];
        GEMMTUNE_UNROLL
        for (int t = 0; t < 2 * TILES; ++t)
            raw[t / 2][t % 2] = read_shared<Words>(from + t / 2 * kTile + t % 2 * 512 + lane_index() * 16);
        float unit[2];
        read_shared2(work.units(record) + pair * 2, unit);
        GEMMTUNE_UNROLL
        for (int group = 0; group < kGroups; ++group) {
            int low[TILES][4], high[TILES][4], start[4];
            const Words found = read_shared<Words>(work.starts(record, group) + pair * 4);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) start[i] = static_cast<int>(found.at[i]);
            GEMMTUNE_UNROLL
            for (int half = group; half < 2; half += kGroups) {
                // Columns beyond the last slice are read as the last, and dropped.
                const int column = row < kSliced ? row : kSliced - 1;
                const Words x = read_shared<Words>(work.slices(record) + half * kPair + column * 64 + pair * 16);
                const unsigned x_low[2] = {x.at[0], x.at[1]}, x_high[2] = {x.at[2], x.at[3]};
                GEMMTUNE_UNROLL
                for (int t = 0; t < TILES; ++t) {
                    unsigned of_low[4], of_high[4];
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i) {
                        const unsigned word = raw[t][i % 2].at[half * 2 + i / 2];
                        of_low[i] = word & 0x0f0f0f0fu, of_high[i] = word & 0xf0f0f0f0u;
                    }
                    if (half == group) {
                        mma_16x8x32_unsigned(low[t], of_low, x_low, {0, 0, 0, 0});
                        mma_16x8x32_unsigned(high[t], of_high, x_high, start);
                    } else {
                        mma_16x8x32_unsigned(low[t], of_low, x_low, low[t]);
                        mma_16x8x32_unsigned(high[t], of_high, x_high, high[t]);
                    }
                }
            }
            add(from, work, record, group, unit, low, high, sum);
        }
    }

    // Adds the sums of a group, times its scale and the unit of its activations.
    static GEMMTUNE_DEVICE void add(const char* from, const Work& work, int record, int group, const float (&unit)[2],
                                    const int (&low)[TILES][4], const int (&high)[TILES][4], Sums& sum) {
        const int row = lane_index() / 4, pair = lane_index() % 4;
        float total[2];
        if constexpr (QUANT::kStoredZeros) read_shared2(work.totals(record, group) + pair * 2, total);
        GEMMTUNE_UNROLL
        for (int t = 0; t < TILES; ++t) {
            GEMMTUNE_UNROLL
            for (int upper = 0; upper < 2; ++upper) {
                const char* const own = from + t * kTile;
                const int place = group * Record::kRows + upper * 8 + row;
                float scale = 1.0f, zero = 0.0f;
                if constexpr (Record::kGrouped)
                    scale = widen(reinterpret_cast<const Scale*>(own + Record::kScales)[place]);
                if constexpr (QUANT::kZero == kWords)
                    zero = static_cast<float>(reinterpret_cast<const unsigned char*>(own + Record::kZeros)[place]);
                else if constexpr (QUANT::kStoredZeros)
                    zero = widen(reinterpret_cast<const Scale*>(own + Record::kZeros)[place]);
                GEMMTUNE_UNROLL
                for (int i = 0; i < 2; ++i) {
                    const int sums = low[t][upper * 2 + i] * 16 + high[t][upper * 2 + i];
                    float found = as_float(static_cast<unsigned>(sums)) - Digits::kOfOnes;
                    if constexpr (QUANT::kZero == kWords || QUANT::kZero == kSubtracted)
                        found -= 16.0f * zero * total[i];
                    sum[t][upper * 2 + i] += found * (scale * unit[i]);
                    if constexpr (QUANT::kZero == kAdded) sum[t][upper * 2 + i] += 16.0f * zero * (total[i] * unit[i]);
                }
            }
        }
    }
    static GEMMTUNE_DEVICE void lay_out(const Sums& sum, float* part) {
        const int row = lane_index() / 4, pair = lane_index() % 4 * 2;
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4 * TILES; ++i) {
            const int column = pair + i % 2;
            if (column >= kSliced) continue;
            part[column * kPitch + i / 4 * 16 + i % 4 / 2 * 8 + row] = sum[i / 4][i % 4];
        }
    }

    // By a team: adds the sums of its warps, and stores them.
    static GEMMTUNE_DEVICE void store(const Args& all, const Work& work, Task task, int team, int own, int group,
                                      int round) {
        const GemmArgs& args = all.weights.gemm;
        constexpr int kRows = 16 * TILES;
        wait_phase(&work.met[team], static_cast<unsigned>(round) & 1u);
        const char* const tail =
            static_cast<const char*>(all.packed) + static_cast<i64>(work.tiles) * RECORDS * Record::kBytes;
        const float* const parts = work.part(round, team * WARPS_K);
        GEMMTUNE_ROLL
        for (int at = own * 32 + lane_index(); at < kRows * COLUMNS; at += kLanes) {
            const i64 row = (static_cast<i64>(group) * kOfSlot + team * TILES) * 16 + at % kRows;
            const int column = at / kRows;
            float found = 0.0f;
            GEMMTUNE_UNROLL
            for (int part = 0; part < WARPS_K; ++part) {
                GEMMTUNE_UNROLL
                for (int s = 0; s < kSlices; ++s)
                    found += parts[part * kPart + (s * COLUMNS + column) * kPitch + at % kRows];
            }
            if (!Record::kGrouped && row < args.m) found *= widen(reinterpret_cast<const Scale*>(tail)[row]);
            finish<TYPES>(args, task.batch, row, column, found);
        }
    }
    static GEMMTUNE_DEVICE void read_shared2(const float* from, float (&out)[2]) {
        struct alignas(8) Pair {
            float at[2];
        };
        const Pair found = read_shared<Pair>(from);
        out[0] = found.at[0], out[1] = found.at[1];
    }
};

}  // namespace gemmtune
