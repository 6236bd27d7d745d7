// A pipeline of quantised weights and activations in shared memory, filled by asynchronous copies of a whole block
// (dequant_tile_mma.h, which has the overview): a stage of BK elements of k, pages of scales and zero points, where a
// lane reads in them, and its rows of weights, converted.
//
// A stage has BN lines of activations and BM lines of weights as they are stored. A *step* is 32 elements of k: a lane
// has eight neighbouring ones of its rows and of its columns, member * 8 and more. An instruction sums over k in any
// order, as long as both operands agree.
//
// A page has kScales groups of every row. Stages are too short for them: a row's scales of a stage may be two bytes,
// and asynchronous copies have four or more.
#pragma once

#include "device/dequantise.h"
#include "device/line_copies.h"
#include "device/mma.h"

namespace gemmtune {

// Lines of WORDS 16-byte words in shared memory. A warp reads READ words of neighbouring lines at once: the numbers of
// a line's words are XORed with order(line), so that these lie in different banks.
template <int WORDS, int READ>
struct BankedLines {
    static constexpr int kBytes = WORDS * 16, kOfBanks = WORDS < 8 ? 8 / WORDS : 1;  // lines in 128 bytes
    static constexpr int kOrders = 8 / READ > kOfBanks ? 8 / READ / kOfBanks : 1;
    static_assert(WORDS % READ == 0 && (WORDS & (WORDS - 1)) == 0, "whole reads of a power of two");

    static GEMMTUNE_DEVICE int order(int line) { return line / kOfBanks % kOrders * READ; }
    // Where the words of read number 0 of a line begin; at(place, number): of another one.
    static GEMMTUNE_DEVICE int place(int line) { return line * kBytes + order(line) * 16; }
    static GEMMTUNE_DEVICE int at(int place, int number) { return place ^ number * READ * 16; }
};

// The copies of a thread of a block of THREADS: LINES lines that are contiguous along k and start at multiples of 16
// bytes, a stage at a time. Threads lie side by side along a line, and on as many lines as they suffice for.
template <typename BANKED, int LINES, int THREADS>
struct StageCopies {
    static constexpr int kWords = BANKED::kBytes / 16, kSide = THREADS / kWords;  // lines side by side
    static_assert(THREADS % kWords == 0 && kSide % 8 == 0, "a thread's lines have one order");

    const char* from;  // this thread's word of its first line
    i64 step;          // bytes from a thread's line to its next one
    int to, left;      // where the word goes in a stage; lines that exist from the first on

    // From `begin` bytes on of the first of `lines` lines, `ld` bytes apart.
    GEMMTUNE_DEVICE StageCopies(const void* first, i64 ld, i64 lines, i64 begin) {
        const int line = static_cast<int>(thread_index() / kWords), word = own_word();
        from = opaque(static_cast<const char*>(first) + line * ld + begin + word * 16);
        step = opaque(ld * kSide);
        to = opaque(line * BANKED::kBytes + (word ^ BANKED::order(line)) * 16);
        left = opaque(static_cast<int>(lines < LINES ? lines : LINES) - line);
    }

    // Starts the copies of a stage, of which `there` bytes of a line exist (FULL: all; others are zero), and goes on to
    // the next one. Lines beyond the last are not copied: their values reach only sums that are dropped.
    template <bool FULL>
    GEMMTUNE_DEVICE void run(char* stage, int there) {
        const bool inside = FULL || own_word() * 16 < there;
        const char* source = inside ? from : from - own_word() * 16;  // zero bytes are read from a word that exists
        GEMMTUNE_UNROLL
        for (int line = 0; line < LINES; line += kSide) {
            char* const target = stage + to + line * BANKED::kBytes;
            if constexpr (FULL) copy_async16_if(line < left, target, source);
            else copy_async16_if(line < left, target, source, inside ? 16 : 0);
            source += step;
        }
        from += BANKED::kBytes;
    }

private:
    // The number of the word in its line.
    static GEMMTUNE_DEVICE int own_word() { return static_cast<int>(thread_index() % kWords); }
};

template <typename TYPES, typename QUANT, int BM, int BN, int BK, int WARPS>
struct DequantStages {
    using T = typename TYPES::Input;
    using Scale = typename QUANT::Scale;
    static constexpr int kStep = 32, kSteps = BK / kStep, kThreads = 32 * WARPS;
    static constexpr int kWordsX = BK / 8, kWordsW = BK * QUANT::kBits / 128, kReadW = QUANT::kBits / 4;
    using LinesX = BankedLines<kWordsX, 4>;
    using LinesW = BankedLines<kWordsW, kReadW>;
    static constexpr int kX = 0, kW = BN * LinesX::kBytes, kStage = kW + BM * LinesW::kBytes;
    static constexpr bool kGrouped = QUANT::kGroup != 0;
    static constexpr float kUnshrunk = kShrunkOf<T, QUANT>;  // dequantise.h
    static constexpr int kRaw = QUANT::kBits / 4;            // a lane's words of a row and step
    // Pages.
    static constexpr int kScales = kGrouped ? 8 : 0, kGroup = kGrouped ? QUANT::kGroup : BK;
    static constexpr int kPageK = kGrouped ? kScales * kGroup : BK;        // elements of k
    static constexpr int kScaleBytes = kScales * static_cast<int>(sizeof(Scale));
    static constexpr int kScalePitch = QUANT::kFloat ? kScaleBytes + 4 : kScaleBytes;  // from a row to the next
    static constexpr bool kFloatZeros = QUANT::kZero == kSubtracted || QUANT::kZero == kAdded;
    static constexpr int kZ = BM * kScalePitch;                            // where zero points begin
    static constexpr int kZeroBytes = kFloatZeros ? BM * kScaleBytes
                                      : QUANT::kZero == kWords ? BM / 8 * kScales * 4 : 0;
    static constexpr int kPage = (kZ + kZeroBytes + 15) / 16 * 16;
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert(BK % kStep == 0 && kPageK % BK == 0, "whole steps of a stage, whole stages of a page");
    static_assert(kGrouped || !QUANT::kStoredZeros, "a row's zero point is constant");

    // A warp's copies of the scales and zero points of its rows.
    struct PageCopies {
        static constexpr int kRows = BM / WARPS < 8 ? 8 : BM / WARPS;  // of a warp; of the last ones maybe none
        static constexpr int kSize = static_cast<int>(sizeof(Scale));
        const WeightArgs& all;
        int first;  // the block's first row

        GEMMTUNE_DEVICE PageCopies(const WeightArgs& all, i64 first) : all(all), first(static_cast<int>(first)) {}

        // Of a page with `left` elements of k from its first on. Those of groups beyond the last are zero. (A page is
        // rare: nothing that only its copies need is in registers meanwhile, and eight rows at a time take few.)
        GEMMTUNE_DEVICE void run(char* to, int page, int left) const {
            const int there = left < kPageK ? left / kGroup : kScales, bytes = there * kSize;  // groups
            const int block = opaque(first), row = warp_index() * kRows;
            const i64 groups = all.scale_row, ld = groups * kSize, at = static_cast<i64>(page) * kScaleBytes;
            GEMMTUNE_ROLL
            for (int on = row; on < row + kRows && on < BM && block + on < all.gemm.m; on += 8) {
                const i64 begin = block + on;
                const int exist = all.gemm.m - block - on, rows = exist < 8 ? exist : 8;
                const char* const scales = static_cast<const char*>(all.scales) + begin / QUANT::kSide * ld;
                if constexpr (QUANT::kFloat)
                    copy_line_bytes<kScaleBytes, 8>(to + on * kScalePitch, scales, ld, at, rows, bytes,
                                                    static_cast<const char*>(all.scales) + all.scale_bytes);
                else copy_line_words<kScaleBytes, 8, QUANT::kSide>(to + on * kScalePitch, scales, ld, at, rows, bytes);
                const char* const zeros = static_cast<const char*>(all.zeros);
                if constexpr (kFloatZeros)
                    copy_line_words<kScaleBytes, 8>(to + kZ + on * kScaleBytes, zeros + begin * ld, ld, at, rows,
                                                    bytes);
                if constexpr (QUANT::kZero == kWords)
                    copy_line_words<kScales * 4, 1>(to + kZ + on / 8 * kScales * 4, zeros + begin / 8 * groups * 4,
                                                    groups * 4, static_cast<i64>(page) * kScales * 4, 1, there * 4);
            }
        }
    };

    // Where a lane reads: its row of every eight from `row` on, its column of every eight from `column` on.
    struct Reads {
        int group, member;
        int weights_at, inputs_at, scales_at, zeros_at;  // the last two in a page
        unsigned mask;
        GEMMTUNE_DEVICE Reads(int row, int column, const WeightArgs& all)
            : group(lane_index() / 4), member(lane_index() % 4), mask(kept(kConvertMask, all.gemm.k)) {
            weights_at = opaque(kW + LinesW::place(row + group) + member * kRaw * 4);
            inputs_at = opaque(kX + LinesX::place(column + group) + member * 16);
            scales_at = opaque((row + group) * kScalePitch +
                               (QUANT::kFloat ? static_cast<int>(group * all.scale_row & 3) : 0));
            zeros_at = opaque(kZ + (kFloatZeros ? (row + group) * kScaleBytes : row / 8 * kScales * 4));
        }

        // A lane's activations of eight columns and a step.
        GEMMTUNE_DEVICE void inputs(const char* stage, int half, int step, unsigned (&out)[4]) const {
            const Words all = read_shared<Words>(stage + LinesX::at(inputs_at, step) + half * 8 * LinesX::kBytes);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) out[i] = all.at[i];
        }
        GEMMTUNE_DEVICE void weights(const char* stage, int from, int step, unsigned (&out)[kRaw]) const {
            const char* const at = stage + LinesW::at(weights_at, step) + from * LinesW::kBytes;
            if constexpr (kRaw == 1) {
                out[0] = read_shared<unsigned>(at);
            } else {
                const u64 both = read_shared<u64>(at);
                out[0] = static_cast<unsigned>(both), out[kRaw - 1] = static_cast<unsigned>(both >> 32);
            }
        }
    };

    // A lane's COUNT rows of weights in a step, eight rows apart: raw, with what converts them.
    template <int COUNT>
    struct Rows {
        static_assert(COUNT <= 8, "their zero points are a word");
        unsigned raw[COUNT][kRaw];
        unsigned zero[COUNT];  // pairs
        PairScale<T, QUANT> scale[COUNT];
        unsigned whole;        // zero points of four bits

        GEMMTUNE_DEVICE void read(const char* stage, const Reads& reads, int step) {
            GEMMTUNE_UNROLL
            for (int r = 0; r < COUNT; ++r) reads.weights(stage, 8 * r, step, raw[r]);
        }
        // Of the page's group number `of`.
        GEMMTUNE_DEVICE void read_scales(const char* page, const Reads& reads, int of) {
            constexpr int kSize = static_cast<int>(sizeof(Scale));
            const char *const scales = page + reads.scales_at + of * kSize, *const zeros = page + reads.zeros_at;
            whole = 0;
            GEMMTUNE_UNROLL
            for (int r = 0; r < COUNT; ++r) {
                if constexpr (kGrouped) {
                    scale[r].set(widen(read_shared<Scale>(scales + 8 * r * kScalePitch)) * kUnshrunk);
                }
                if constexpr (QUANT::kZero == kWords)
                    whole |= (read_shared<unsigned>(zeros + (r * kScales + of) * 4) >> 4 * reads.group & 15u) << 4 * r;
                if constexpr (kFloatZeros) {
                    const float z = widen(read_shared<Scale>(zeros + 8 * r * kScaleBytes + of * kSize));
                    zero[r] = both(narrow<T>(QUANT::kZero == kSubtracted ? -z / kUnshrunk : z).bits);
                }
            }
        }

        // Eight weights of row number r as four pairs in the order of memory.
        GEMMTUNE_DEVICE void convert(int r, unsigned mask, unsigned (&out)[4]) const {
            if constexpr (QUANT::kFloat) {
                eight_floats<T>(raw[r][0], out);
            } else {
                const unsigned words[4] = {raw[r][0], raw[r][kRaw - 1], 0, 0};
                const unsigned z = QUANT::kZero == kWords ? whole >> 4 * r & 15u : kConstantZero<QUANT>;
                ConvertOf<T, QUANT>::template run<QUANT::kSigned>(words, mask, 0, z, out);
            }
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) {
                if constexpr (QUANT::kZero == kSubtracted) out[i] = fma_pair<T>(out[i], PairBits<T>::kOne, zero[r]);
                if constexpr (kGrouped)
                    out[i] = scale[r].times(out[i], QUANT::kZero == kAdded ? zero[r] : PairBits<T>::kMinusZero);
            }
        }
    };
};

}  // namespace gemmtune
