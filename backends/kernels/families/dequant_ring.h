// Quantised weights times few columns of 16-bit activations on tensor cores (mma.sync, sm_80 and later). The
// weights are read once, as they are stored, and dequantised in registers, so that a product is as fast as its
// few bytes. Data in flight is in shared memory, as in skinny_ring.h: each warp has its own ring of SLOTS chunks
// of BK elements along k: ROWS rows of weights, their scales and zero points, and COLUMNS columns of activations.
// A block's warps take chunks round-robin; their sums are added at the end.
//
// The weights are the sixteen rows of mma_16x8x16, the activations its eight columns. An instruction sums over k
// in any order, as long as both operands agree. So a lane reads 16 contiguous bytes of a row of weights, kWide
// integers, which lie in one group, and the activations of the same k. The four lanes of a row read 64 contiguous
// bytes: a *step* of 4 kWide elements of k. Their activations lie 2 kWide bytes apart; copies store them so that
// four lanes read 64 contiguous bytes of them, too.
//
// Scales: if a group covers whole steps, the sums of a group are multiplied by its scale in fp32, and weights are
// exact integers until then (kAfter). Otherwise, and with a zero point that is added, every weight is multiplied
// by its scale and thereby rounded once to the activations' type. A row's only scale multiplies its sum.
//
// Converting an integer takes a mask and a subtraction (dequantise.h). With few columns, whose products leave the
// tensor cores idle, the subtraction is left out where sums are scaled: an instruction whose weights are all one
// adds up the activations, and their sum times what was to be subtracted is subtracted from the group's (kFolded).
// That is exact but for fp32's rounding of sums of numbers of 128 to 143.
#pragma once

#include "device/dequantise.h"
#include "device/epilogue.h"
#include "device/mma.h"

namespace gemmtune {

// The largest divisor of `whole` that is at most `most`.
GEMMTUNE_DEVICE constexpr int divisor(int whole, int most) {
    return most >= whole ? whole : whole % most ? divisor(whole, most - 1) : most;
}

template <typename TYPES, typename QUANT, int COLUMNS, int ROWS, int BK, int SLOTS, int WARPS>
struct DequantRing {
    using Args = WeightArgs;
    using T = typename TYPES::Input;
    using Scale = typename QUANT::Scale;
    static constexpr int kThreads = 32 * WARPS, kMinBlocks = 0;
    static constexpr int kStep = 4 * QUANT::kWide, kSteps = BK / kStep;       // elements of k; steps of a chunk
    static constexpr int kEights = QUANT::kWide / 8;                          // of a lane's elements in a step
    static constexpr int kTiles = ROWS / 16, kHalves = (COLUMNS + 7) / 8;     // accumulators down and across
    static constexpr int kGroup = QUANT::kGroup == 0 ? BK : QUANT::kGroup;
    static constexpr bool kGrouped = QUANT::kGroup != 0;
    static constexpr bool kAfter = kGrouped && kGroup % kStep == 0 && QUANT::kZero != kAdded;
    static constexpr bool kFolded = kAfter && QUANT::kBits == 4 && kHalves <= 2 && kSame<T, Bf16>;
    static constexpr int kRun = kAfter ? kGroup / kStep : 1;  // steps that are summed before they are scaled
    // Tiles whose weights are dequantised before activations are read again.
    static constexpr int kAtOnce = divisor(kTiles, kHalves >= 8 ? 1 : 8 / kHalves);
    static constexpr int kWeightBytes = BK * QUANT::kBits / 8, kInputBytes = BK * 2;  // of a line of a chunk
    static constexpr int kScales = kGrouped ? BK / kGroup : 0;                        // of a row of a chunk
    static constexpr int kScaleBytes = kScales * static_cast<int>(sizeof(Scale));
    static constexpr bool kFloatZeros = QUANT::kZero == kSubtracted || QUANT::kZero == kAdded;
    // Where the parts of a slot begin.
    static constexpr int kX = ROWS * kWeightBytes, kS = kX + COLUMNS * kInputBytes, kZ = kS + ROWS * kScaleBytes;
    static constexpr int kZeroBytes = kFloatZeros ? ROWS * kScaleBytes
                                      : QUANT::kZero == kWords ? ROWS / 8 * kScales * 4 : 0;
    static constexpr int kSlot = (kZ + kZeroBytes + 15) / 16 * 16;
    static constexpr int kSumsPitch = ROWS + 8, kPart = COLUMNS * kSumsPitch;  // of a warp's sums, in floats
    static constexpr int kRings = WARPS * SLOTS * kSlot, kParts = WARPS * kPart * 4;
    static constexpr int kSharedBytes = kRings > kParts ? kRings : kParts;
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert(ROWS % 16 == 0 && BK % kStep == 0 && SLOTS >= 2, "whole tiles and steps");
    static_assert(COLUMNS <= 8 || COLUMNS % 8 == 0, "whole halves of tiles");
    static_assert(!kGrouped || (BK % kGroup == 0 && kScaleBytes % 4 == 0), "copies are of 4 bytes");
    static_assert(kGrouped || !QUANT::kStoredZeros, "a row's zero point is constant");

    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.gemm;
        const Task task(args);
        const int warp = warp_index();
        const int first = static_cast<int>(block_x()) * ROWS;
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        const Copies copies(all, first);
        const Reads reads;
        char* const ring = opaque_shared(shared + warp * SLOTS * kSlot);
        Sums sum = {};
        // The first SLOTS - 1 iterations only copy.
        const int end = opaque(mine.end);
        int next = opaque(mine.begin + warp), to = 0, from = 0;
        wait_for_launches();
        if (task.beyond(args)) return;
        GEMMTUNE_ROLL
        for (int ahead = 1 - SLOTS; next < end + (SLOTS - 1) * WARPS; ++ahead) {
            if (next < end) copies.chunk(ring + to, next);
            commit_copies();  // also an empty group: groups are counted
            next += WARPS, to = to + kSlot == SLOTS * kSlot ? 0 : to + kSlot;
            if (ahead < 0) continue;
            wait_copies<SLOTS - 1>();
            warp_barrier();  // every lane's copies of this chunk have arrived
            GEMMTUNE_UNROLL
            for (int tile = 0; tile < kTiles; tile += kAtOnce) multiply(opaque_shared(ring + from), reads, tile, sum);
            warp_barrier();  // every lane has read it: the next copies may replace it
            from = from + kSlot == SLOTS * kSlot ? 0 : from + kSlot;
        }
        wait_copies<0>();
        release_reduce(args);
        block_barrier();  // sums take the rings' place
        store(all, task, first, sum, reinterpret_cast<float*>(shared), warp);
    }

private:
    using Sums = float[kTiles][kHalves][4];

    // Numbers of the 16-byte words of a line that are stored in exchanged order, so that lines that are read
    // together lie in different banks.
    template <int BYTES>
    static GEMMTUNE_DEVICE int exchanged(int line) { return BYTES >= 128 ? line % 2 * 4 : 0; }

    // A warp's copies of lines of BYTES bytes a chunk: lane and pass -> line and 16-byte word of it.
    template <int BYTES>
    struct Walk {
        static constexpr int kWords = BYTES / 16, kLines = kWords < 32 ? 32 / kWords : 1;
        static constexpr int kPasses = kWords < 32 ? 1 : kWords / 32;  // of the same lines
        static GEMMTUNE_DEVICE int line() { return kWords < 32 ? lane_index() / kWords : 0; }
        static GEMMTUNE_DEVICE int word() { return lane_index() % kWords; }
    };

    struct Copies {
        // This lane's first word of the block's rows and of the columns; the first row's scales and zero points.
        const char *weights, *inputs, *scales, *zeros;
        i64 lda, ldb, groups;  // bytes from a lane's line to its next one; scales of a row
        int rows, columns, k;  // that exist
        int to_weights, to_inputs;  // where the lane's first words go in a slot, and from there in every second
        int flip_weights, flip_inputs;  // line

        GEMMTUNE_DEVICE Copies(const Args& all, int first) {
            const GemmArgs& args = all.gemm;
            using W = Walk<kWeightBytes>;
            using X = Walk<kInputBytes>;
            groups = kGrouped ? opaque(all.scale_row) : 0;
            weights = opaque(static_cast<const char*>(args.a) + (first + W::line()) * args.lda + W::word() * 16);
            inputs = opaque(static_cast<const char*>(args.b) + X::line() * args.ldb * 2 + X::word() * 16);
            lda = opaque(args.lda * W::kLines), ldb = opaque(args.ldb * 2 * X::kLines);
            to_weights = opaque(W::line() * kWeightBytes + (W::word() ^ exchanged<kWeightBytes>(W::line())) * 16);
            const int place = placed(X::word());
            to_inputs = opaque(X::line() * kInputBytes + (place ^ exchanged<kInputBytes>(X::line())) * 16);
            flip_weights = W::word() & 4 ? -64 : 64, flip_inputs = place & 4 ? -64 : 64;
            scales = kGrouped ? static_cast<const char*>(all.scales) + first * groups * i64(sizeof(Scale)) : nullptr;
            zeros = static_cast<const char*>(all.zeros);
            if (QUANT::kZero == kWords) zeros += first / 8 * groups * 4;
            if (kFloatZeros) zeros += first * groups * i64(sizeof(Scale));
            const int left = args.m - first;
            rows = opaque(left < ROWS ? left : ROWS), columns = args.n < COLUMNS ? args.n : COLUMNS, k = args.k;
        }

        // Starts this lane's copies of a chunk. Lines beyond the last are not copied: their values reach only
        // sums that are dropped. Elements beyond the last are zero.
        GEMMTUNE_DEVICE void chunk(char* slot, int chunk) const {
            const int left = k - chunk * BK;
            const char* const a = weights + static_cast<i64>(chunk) * kWeightBytes;
            const char* const b = inputs + static_cast<i64>(chunk) * kInputBytes;
            if (left >= BK) {
                lines<true, kWeightBytes, ROWS>(slot + to_weights, flip_weights, a, lda, rows, kWeightBytes);
                lines<true, kInputBytes, COLUMNS>(slot + kX + to_inputs, flip_inputs, b, ldb, columns, kInputBytes);
            } else {
                lines<false, kWeightBytes, ROWS>(slot + to_weights, flip_weights, a, lda, rows,
                                                 left * QUANT::kBits / 8);
                lines<false, kInputBytes, COLUMNS>(slot + kX + to_inputs, flip_inputs, b, ldb, columns, left * 2);
            }
            if constexpr (kGrouped) {
                const int there = left < BK ? left / kGroup : kScales;  // groups
                const i64 from = static_cast<i64>(chunk) * kScales;
                words<kScaleBytes, ROWS>(slot + kS, scales, groups * i64(sizeof(Scale)), from * sizeof(Scale), rows,
                                         there * static_cast<int>(sizeof(Scale)));
                if constexpr (kFloatZeros)
                    words<kScaleBytes, ROWS>(slot + kZ, zeros, groups * i64(sizeof(Scale)), from * sizeof(Scale),
                                             rows, there * static_cast<int>(sizeof(Scale)));
                if constexpr (QUANT::kZero == kWords)
                    words<kScales * 4, ROWS / 8>(slot + kZ, zeros, groups * 4, from * 4, rows / 8, there * 4);
            }
        }

    private:
        // `count` of LINES lines of BYTES bytes, of which `there` exist (FULL: all), by 16-byte words. A line of more
        // than 32 words takes several passes.
        template <bool FULL, int BYTES, int LINES>
        static GEMMTUNE_DEVICE void lines(char* to, int flip, const char* from, i64 step, int count, int there) {
            using W = Walk<BYTES>;
            const int left = count - W::line();
            GEMMTUNE_UNROLL
            for (int pass = 0; pass < W::kPasses; ++pass) {
                const bool inside = FULL || (W::word() + pass * 32) * 16 < there;
                // Zero bytes are read from the line's first word, which exists.
                const char* source = inside ? from + pass * 512 : from - W::word() * 16;
                GEMMTUNE_UNROLL
                for (int on = 0; on < LINES; on += W::kLines) {
                    // A lane that copies of every line exchanges words of every second one.
                    char* const target = to + on * BYTES + pass * 512 + (W::kLines == 1 && on % 2 ? flip : 0);
                    if constexpr (FULL) copy_async16_if(on < left, target, source);
                    else copy_async16_if(on < left, target, source, inside ? 16 : 0);
                    source += step;
                }
            }
        }

        // The place of a word of activations: in the order in which four lanes read them.
        static GEMMTUNE_DEVICE int placed(int word) {
            const int step = word / (4 * kEights), in = word % (4 * kEights);
            return step * (4 * kEights) + in % kEights * 4 + in / kEights;
        }

        // LINES lines of BYTES bytes, of which `there` exist, by 4-byte words.
        template <int BYTES, int LINES>
        static GEMMTUNE_DEVICE void words(char* to, const char* from, i64 ld, i64 at, int count, int there) {
            constexpr int kWords = BYTES / 4;
            GEMMTUNE_UNROLL
            for (int i = 0; i < LINES * kWords; i += 32) {
                const int index = i + lane_index(), line = index / kWords, word = index % kWords;
                if (line >= count) continue;
                const bool inside = word * 4 < there;
                const char* const source = from + line * ld;
                copy_async4(to + index * 4, inside ? source + at + word * 4 : source, inside ? 4 : 0);
            }
        }
    };

    // Where a lane reads in a slot: its row of every eight, its column of every eight.
    struct Reads {
        int group, member, column;
        GEMMTUNE_DEVICE Reads()
            : group(lane_index() / 4), member(lane_index() % 4),
              column(COLUMNS < 8 ? lane_index() / 4 % COLUMNS : lane_index() / 4) {}

        GEMMTUNE_DEVICE void weights(const char* slot, int row, int step, unsigned (&out)[4]) const {
            const int word = (step * 4 + member) ^ exchanged<kWeightBytes>(group);
            const Words all = read_shared<Words>(slot + (row + group) * kWeightBytes + word * 16);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) out[i] = all.at[i];
        }
        // The activations of eight elements of k, from 8 j on in the lane's step.
        GEMMTUNE_DEVICE void inputs(const char* slot, int half, int step, int j, unsigned (&out)[4]) const {
            const int word = ((step * kEights + j) * 4 + member) ^ exchanged<kInputBytes>(column);
            const Words all = read_shared<Words>(slot + kX + (half * 8 + column) * kInputBytes + word * 16);
            paired<QUANT::kBits>(all.at, out);
        }
        GEMMTUNE_DEVICE Scale scale(const char* slot, int row, int of) const {
            return reinterpret_cast<const Scale*>(slot + kS)[(row + group) * kScales + of];
        }
        GEMMTUNE_DEVICE Scale float_zero(const char* slot, int row, int of) const {
            return reinterpret_cast<const Scale*>(slot + kZ)[(row + group) * kScales + of];
        }
        GEMMTUNE_DEVICE unsigned whole_zero(const char* slot, int row, int of) const {
            return reinterpret_cast<const unsigned*>(slot + kZ)[row / 8 * kScales + of] >> 4 * group & 15u;
        }
    };

    // The group of a lane's integers in a step, among those of the chunk.
    static GEMMTUNE_DEVICE int group_of(const Reads& reads, int step) {
        return kGroup % kStep == 0 ? step * kStep / kGroup : (step * kStep + reads.member * QUANT::kWide) / kGroup;
    }

    // A lane's row of weights in a step: raw, with what converts it.
    struct Row {
        unsigned raw[4];
        unsigned whole;         // zero point
        unsigned zero, scale;   // pairs, where weights are multiplied or have floating-point zero points
        float factor, offset;   // kAfter: the scale; kFolded: what is subtracted

        GEMMTUNE_DEVICE void read(const char* slot, const Reads& reads, int row, int step) {
            reads.weights(slot, row, step, raw);
            const int of = group_of(reads, step);
            whole = kConstantZero<QUANT>;
            if constexpr (QUANT::kZero == kWords) whole = reads.whole_zero(slot, row, of);
            if constexpr (kFolded) offset = kPower + static_cast<float>(whole);
            if constexpr (kFloatZeros) {
                const float z = widen(reads.float_zero(slot, row, of));
                if constexpr (kFolded) offset += z;
                else zero = both(narrow<T>(QUANT::kZero == kSubtracted ? -z : z).bits);
            }
            if constexpr (kGrouped && !kAfter) scale = both(narrow<T>(widen(reads.scale(slot, row, of))).bits);
            if constexpr (kAfter) factor = widen(reads.scale(slot, row, of));
        }

        GEMMTUNE_DEVICE void convert(int j, unsigned (&out)[4]) const {
            if constexpr (kFolded) {
                lifted_pairs<QUANT::kSigned>(raw, j, out);
                return;
            }
            Convert<T, QUANT::kBits>::template run<QUANT::kSigned>(raw, j, whole, out);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) {
                if constexpr (QUANT::kZero == kSubtracted) out[i] = fma_pair<T>(out[i], PairBits<T>::kOne, zero);
                if constexpr (kGrouped && !kAfter)
                    out[i] = fma_pair<T>(out[i], scale, QUANT::kZero == kAdded ? zero : PairBits<T>::kMinusZero);
            }
        }
    };

    // A chunk's products of kAtOnce tiles, from `first` on. Where there are many sums, a loop keeps the compiler from
    // reading a whole chunk before it uses the first of it.
    static GEMMTUNE_DEVICE void multiply(const char* slot, const Reads& reads, int first, Sums& sum) {
        if constexpr (kTiles * kHalves >= 8) {
            GEMMTUNE_ROLL
            for (int from = 0; from < kSteps; from += kRun) multiply_run(slot, reads, first, from, sum);
        } else {
            GEMMTUNE_UNROLL
            for (int from = 0; from < kSteps; from += kRun) multiply_run(slot, reads, first, from, sum);
        }
    }

    // kRun steps, from `from` on.
    static GEMMTUNE_DEVICE void multiply_run(const char* slot, const Reads& reads, int first, int from, Sums& sum) {
        constexpr unsigned kOne = PairBits<T>::kOne;
        constexpr unsigned kOnes[2][4] = {{kOne, kOne, kOne, kOne}, {kOne, kOne, kOne, kOne}};
        float part[kAtOnce][kHalves][4] = {};
        float factor[kAtOnce][2] = {}, offset[kAtOnce][2] = {}, inputs[kHalves][4] = {};
        GEMMTUNE_UNROLL
        for (int on = 0; on < kRun; ++on) {
            const int step = from + on;
            Row row[kAtOnce][2];
            GEMMTUNE_UNROLL
            for (int t = 0; t < kAtOnce; ++t) {
                GEMMTUNE_UNROLL
                for (int upper = 0; upper < 2; ++upper) {
                    row[t][upper].read(slot, reads, (first + t) * 16 + upper * 8, step);
                    if constexpr (kAfter) factor[t][upper] = row[t][upper].factor;
                    if constexpr (kFolded) offset[t][upper] = row[t][upper].offset;
                }
            }
            GEMMTUNE_UNROLL
            for (int j = 0; j < kEights; ++j) {
                unsigned w[kAtOnce][2][4];
                GEMMTUNE_UNROLL
                for (int t = 0; t < kAtOnce; ++t) row[t][0].convert(j, w[t][0]), row[t][1].convert(j, w[t][1]);
                GEMMTUNE_UNROLL
                for (int half = 0; half < kHalves; ++half) {
                    unsigned x[4];
                    reads.inputs(slot, half, step, j, x);
                    if constexpr (kFolded) eight(inputs[half], kOnes, x);
                    GEMMTUNE_UNROLL
                    for (int t = 0; t < kAtOnce; ++t) {
                        if constexpr (kAfter) eight(part[t][half], w[t], x);
                        else eight(sum[first + t][half], w[t], x);
                    }
                }
            }
        }
        if constexpr (kAfter) {
            GEMMTUNE_UNROLL
            for (int t = 0; t < kAtOnce; ++t) {
                GEMMTUNE_UNROLL
                for (int half = 0; half < kHalves; ++half) {
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i) {
                        float own = part[t][half][i];
                        if constexpr (kFolded) own -= offset[t][i / 2] * inputs[half][i];
                        sum[first + t][half][i] += factor[t][i / 2] * own;
                    }
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

    // Adds the warps' sums and stores them; neighbouring threads store neighbours in D's columns.
    static GEMMTUNE_DEVICE void store(const Args& all, Task task, int first, const Sums& sum, float* parts,
                                      int warp) {
        const int group = lane_index() / 4, pair = lane_index() % 4 * 2;
        GEMMTUNE_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
            GEMMTUNE_UNROLL
            for (int half = 0; half < kHalves; ++half) {
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const int row = tile * 16 + i / 2 * 8 + group, column = half * 8 + pair + i % 2;
                    if (COLUMNS % 8 && column >= COLUMNS) continue;
                    parts[warp * kPart + column * kSumsPitch + row] = sum[tile][half][i];
                }
            }
        }
        block_barrier();
        for (int i = static_cast<int>(thread_index()); i < ROWS * COLUMNS; i += kThreads) {
            const int at = i / ROWS * kSumsPitch + i % ROWS, row = first + i % ROWS;
            float whole = 0.0f;
            GEMMTUNE_UNROLL
            for (int part = 0; part < WARPS; ++part) whole += parts[part * kPart + at];
            if (!kGrouped && row < all.gemm.m)
                whole *= widen(static_cast<const Scale*>(all.scales)[row * all.scale_row]);
            finish_slice<TYPES>(all.gemm, task, row, i / ROWS, whole);
        }
    }
};

}  // namespace gemmtune
