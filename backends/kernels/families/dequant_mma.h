// Quantised weights times 1 to 16 columns of 16-bit activations on tensor cores, from memory to registers. At these
// numbers of columns a ring of copies costs more than it hides: what a warp waits for is on its way at once, UNROLL
// steps of all its rows, and no barrier stands before the sums' own.
//
// Weights are the sixteen rows of mma.m16n8k16, activations its columns. An instruction sums over k in any order, as
// long as both agree: a lane reads 16 bytes of a row, and the four lanes of a row kStep elements of k, of one group.
// A warp has 16 ROW_TILES rows; WARPS_K warps share them and take turns of UNROLL steps.
//
// A step's sums are multiplied by its group's scale in fp32, so that no weight is rounded. Four bits beside bf16 keep
// their power of two (lifted_pairs()), which the step's sum of activations, times it, takes from the sums: an
// instruction whose weights are all one adds those up.
//
// AHEAD: the first loads of weights are prefetched to L2 before the previous launch has ended. WHOLE: the scales of a
// turn are read at once, which needs groups of kStep, slices of whole turns, and rows of scales that are whole turns.
#pragma once

#include "device/dequantise.h"
#include "device/mma.h"
#include "device/unaligned_loads.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, int COLUMN_TILES, int ROW_TILES, int UNROLL, int WARPS_M, int WARPS_K,
          bool WHOLE, bool AHEAD>
struct DequantMma {
    using Args = WeightArgs;
    using T = typename TYPES::Input;
    using Scale = typename QUANT::Scale;
    static constexpr int kThreads = kWarp * WARPS_M * WARPS_K, kMinBlocks = 0;
    static constexpr int kWarpRows = 16 * ROW_TILES, kRows = kWarpRows * WARPS_M, kColumns = 8 * COLUMN_TILES;
    static constexpr int kEach = QUANT::kWide, kEights = kEach / 8;  // elements of a lane's load
    static constexpr int kStep = 4 * kEach;
    static constexpr int kPitch = kRows + 4, kPart = kColumns * kPitch;  // floats of a column's sums, of a warp's
    static constexpr int kSharedBytes = WARPS_K * kPart * 4;
    static_assert(QUANT::kGroup % kStep == 0 && !QUANT::kFloat, "a step is of one group");
    static_assert(!WHOLE || QUANT::kGroup == kStep, "a turn has as many groups as steps");

    // Bf16 of four bits keeps its power of two. Then, and with zero points that are floats, the sums of activations
    // are needed.
    static constexpr bool kFolded = QUANT::kBits == 4 && kSame<T, Bf16>;
    static constexpr bool kInputs = kFolded || QUANT::kZero == kSubtracted || QUANT::kZero == kAdded;
    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.gemm;
        const Task task(args);
        const Rows rows(all);
        const Slice<kStep> mine(args, task, (static_cast<unsigned>(args.k) - 1) / kStep + 1);
        const bool beyond = task.beyond(args);
        const int first = mine.begin + warp_index() / WARPS_M * UNROLL;
        if (AHEAD && !beyond) rows.fetch(args, first, mine.end);
        wait_for_launches();
        if (beyond) return;
        Sums sum = {};
        const unsigned mask = kept(kFolded ? kLiftedMask : kConvertMask, args.k);
        GEMMTUNE_ROLL
        for (int at = first; at < mine.end; at += WARPS_K * UNROLL) {
            Turn now;
            now.load(all, rows, at, mine.end);
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) multiply(all, rows, now, u, at + u, mine.end, mask, sum);
        }
        release_reduce(args);
        store(args, task, sum, reinterpret_cast<float*>(shared));
    }

private:
    using Sums = float[ROW_TILES][COLUMN_TILES][4];
    static GEMMTUNE_DEVICE int member() { return lane_index() % 4; }

    // A lane's two rows of every tile. Those beyond the last are read as the last, and not stored.
    struct Rows {
        const char* from[ROW_TILES][2];
        int index[ROW_TILES][2];

        GEMMTUNE_DEVICE explicit Rows(const Args& all) {
            const GemmArgs& args = all.gemm;
            const i64 begin = static_cast<i64>(block_x()) * kRows + warp_index() % WARPS_M * kWarpRows;
            GEMMTUNE_UNROLL
            for (int t = 0; t < 2 * ROW_TILES; ++t) {
                const i64 row = begin + t * 8 + lane_index() / 4, own = row < args.m ? row : args.m - 1;
                index[t / 2][t % 2] = static_cast<int>(own);
                from[t / 2][t % 2] = static_cast<const char*>(args.a) + own * args.lda;
            }
        }

        GEMMTUNE_DEVICE const char* at(int t, int upper, int step) const {
            return from[t][upper] + (static_cast<i64>(step) * kStep + member() * kEach) * QUANT::kBits / 8;
        }

        // The other lane of two has the same 32 bytes.
        GEMMTUNE_DEVICE void fetch(const GemmArgs& args, int first, int end) const {
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) {
                GEMMTUNE_UNROLL
                for (int t = 0; t < 2 * ROW_TILES; ++t)
                    if (member() % 2 == 0 && within(args, first + u, end)) prefetch_l2(at(t / 2, t % 2, first + u));
            }
        }
    };

    // Whether a lane's part of a step lies within k and the slice.
    static GEMMTUNE_DEVICE bool within(const GemmArgs& args, int step, int end) {
        return step < end && static_cast<i64>(step) * kStep + member() * kEach < args.k;
    }

    // UNROLL neighbours, which one instruction loads.
    template <typename VALUE>
    struct alignas(sizeof(VALUE) * UNROLL) Run {
        VALUE at[UNROLL];
    };
    // A turn's scales or zero points, from step `first` on, of the row whose own begin at `line`: all at once, or one
    // by one, and those of steps beyond the slice are its last's.
    template <typename VALUE>
    static GEMMTUNE_DEVICE void load_run(const void* values, i64 line, int first, int end, Run<VALUE>& out) {
        const VALUE* const from = static_cast<const VALUE*>(values) + line;
        if constexpr (WHOLE) {
            out = *reinterpret_cast<const Run<VALUE>*>(from + first);
        } else {
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) {
                const int step = first + u < end ? first + u : end - 1;
                out.at[u] = from[QUANT::kGroup == 0 ? 0 : static_cast<i64>(step) * kStep / kGroupSize];
            }
        }
    }

    // The weights of UNROLL steps with their scales and zero points.
    struct Turn {
        Words raw[UNROLL][ROW_TILES][2];
        Run<Scale> scale[ROW_TILES][2], zero[ROW_TILES][2];
        Run<unsigned> zeros[ROW_TILES][2];

        GEMMTUNE_DEVICE void load(const Args& all, const Rows& rows, int first, int end) {
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) {
                const bool there = within(all.gemm, first + u, end);
                GEMMTUNE_UNROLL
                for (int t = 0; t < 2 * ROW_TILES; ++t)
                    raw[u][t / 2][t % 2] = stream16(rows.at(t / 2, t % 2, first + u), there);
            }
            GEMMTUNE_UNROLL
            for (int t = 0; t < 2 * ROW_TILES; ++t) {
                const int row = rows.index[t / 2][t % 2];
                const i64 line = row / QUANT::kSide * all.scale_row;
                load_run(all.scales, line, first, end, scale[t / 2][t % 2]);
                if constexpr (QUANT::kZero == kWords)
                    load_run(all.zeros, row / 8 * all.scale_row, first, end, zeros[t / 2][t % 2]);
                if constexpr (QUANT::kZero == kSubtracted || QUANT::kZero == kAdded)
                    load_run(all.zeros, line, first, end, zero[t / 2][t % 2]);
            }
        }
    };
    static constexpr int kGroupSize = QUANT::kGroup == 0 ? 1 : QUANT::kGroup;

    static GEMMTUNE_DEVICE void multiply(const Args& all, const Rows& rows, const Turn& now, int u, int step, int end,
                                         unsigned mask, Sums& sum) {
        const GemmArgs& args = all.gemm;
        constexpr unsigned kOne = PairBits<T>::kOne;
        constexpr unsigned kOnes[2][4] = {{kOne, kOne, kOne, kOne}, {kOne, kOne, kOne, kOne}};
        const bool there = within(args, step, end);
        Sums part = {};
        float inputs[COLUMN_TILES][4] = {};
        unsigned point[ROW_TILES][2];
        GEMMTUNE_UNROLL
        for (int t = 0; t < 2 * ROW_TILES; ++t) {
            point[t / 2][t % 2] = kConstantZero<QUANT>;
            if constexpr (QUANT::kZero == kWords)
                point[t / 2][t % 2] = now.zeros[t / 2][t % 2].at[u] >> rows.index[t / 2][t % 2] % 8 * 4 & 15u;
        }
        GEMMTUNE_UNROLL
        for (int j = 0; j < kEights; ++j) {
            unsigned w[ROW_TILES][2][4];
            GEMMTUNE_UNROLL
            for (int t = 0; t < 2 * ROW_TILES; ++t) {
                const unsigned(&raw)[4] = now.raw[u][t / 2][t % 2].at;
                if constexpr (kFolded) lifted_pairs<QUANT::kSigned>(raw, mask, j, w[t / 2][t % 2]);
                else ConvertOf<T, QUANT>::template run<QUANT::kSigned>(raw, mask, j, point[t / 2][t % 2],
                                                                            w[t / 2][t % 2]);
            }
            GEMMTUNE_UNROLL
            for (int c = 0; c < COLUMN_TILES; ++c) {
                const int column = c * 8 + lane_index() / 4;
                Words read{{0, 0, 0, 0}};
                if (there && column < args.n)
                    read = read16(static_cast<const T*>(args.b) + column * args.ldb + static_cast<i64>(step) * kStep +
                                  member() * kEach + 8 * j);
                unsigned x[4];
                if constexpr (kFolded) {
                    paired(read.at, x);
                } else {
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i) x[i] = read.at[i];
                }
                if constexpr (kInputs) eight(inputs[c], kOnes, x);
                GEMMTUNE_UNROLL
                for (int t = 0; t < ROW_TILES; ++t) eight(part[t][c], w[t], x);
            }
        }
        GEMMTUNE_UNROLL
        for (int t = 0; t < 2 * ROW_TILES; ++t) {
            const int upper = t % 2;
            const float scale = widen(now.scale[t / 2][upper].at[u]) * (kFolded ? 1.0f : kShrunkOf<T, QUANT>);
            float offset = kFolded ? kPower + static_cast<float>(point[t / 2][upper]) : 0.0f, added = 0.0f;
            if constexpr (QUANT::kZero == kSubtracted)
                offset += widen(now.zero[t / 2][upper].at[u]) / (kFolded ? 1.0f : kShrunkOf<T, QUANT>);
            if constexpr (QUANT::kZero == kAdded) added = widen(now.zero[t / 2][upper].at[u]);
            GEMMTUNE_UNROLL
            for (int c = 0; c < COLUMN_TILES; ++c) {
                GEMMTUNE_UNROLL
                for (int i = 2 * upper; i < 2 * upper + 2; ++i) {
                    float own = part[t / 2][c][i];
                    if constexpr (kInputs) own -= offset * inputs[c][i];
                    sum[t / 2][c][i] += scale * own;
                    if constexpr (QUANT::kZero == kAdded) sum[t / 2][c][i] += added * inputs[c][i];
                }
            }
        }
    }

    // Adds the products of eight elements of k a lane.
    static GEMMTUNE_DEVICE void eight(float (&sum)[4], const unsigned (&w)[2][4], const unsigned (&x)[4]) {
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; i += 2) {
            const unsigned of_a[4] = {w[0][i], w[1][i], w[0][i + 1], w[1][i + 1]};
            const unsigned of_b[2] = {x[i], x[i + 1]};
            mma_16x8x16<T>(sum, of_a, of_b);
        }
    }

    // Adds the warps' sums through shared memory, and stores D along its columns.
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, Task task, const Sums& sum, float* parts) {
        const int lane = lane_index(), warp_m = warp_index() % WARPS_M, warp_k = warp_index() / WARPS_M;
        const int columns = args.n < kColumns ? static_cast<int>(args.n) : kColumns;
        GEMMTUNE_UNROLL
        for (int t = 0; t < ROW_TILES; ++t) {
            GEMMTUNE_UNROLL
            for (int c = 0; c < COLUMN_TILES; ++c) {
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const int r = warp_m * kWarpRows + t * 16 + lane / 4 + i / 2 * 8;
                    const int j = c * 8 + lane % 4 * 2 + i % 2;
                    if (j < columns) parts[warp_k * kPart + j * kPitch + r] = sum[t][c][i];
                }
            }
        }
        block_barrier();
        const i64 first = static_cast<i64>(block_x()) * kRows;
        for (int i = static_cast<int>(thread_index()); i < kRows * columns; i += kThreads) {
            const int at = i / kRows * kPitch + i % kRows;
            float whole = 0.0f;
            GEMMTUNE_UNROLL
            for (int part = 0; part < WARPS_K; ++part) whole += parts[part * kPart + at];
            finish_slice<TYPES>(args, task, first + i % kRows, i / kRows, whole);
        }
    }
};

}  // namespace gemmtune
