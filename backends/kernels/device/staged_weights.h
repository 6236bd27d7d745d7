// Quantised weights on their way from global memory through registers to shared memory, as they are stored, and from
// there to the lanes of matrix instructions; and their scales and zero points, which lanes read from global memory.
//
// A lane multiplies eight neighbours along k at a time: one 32-bit word of 4-bit weights, or two of 8-bit ones, and a
// 16-byte chunk of activations. It reads four words of weights at once.
//
// 4 bits: the lanes of a row take words in turn, as staged_operand.h: Read takes chunks. The 16 words of 128 elements
// of a row are moved on their way to shared memory so that a lane's lie side by side.
// 8 bits: the lanes of a row take 16-byte chunks in turn, so weights stay where they are. A chunk is 16 elements, those
// of one step or two, for which the lane takes neighbouring chunks of activations (kTurns).
#pragma once

#include "device/paired_weights.h"
#include "device/staged_operand.h"

namespace gemmtune {

// LINES rows by BK elements of k, of BITS each, as they are loaded.
template <int BITS, typename INSTRUCTION, bool WHOLE, bool FAR, int LINES, int BK, int THREADS>
struct StoredWeights {
    using I = INSTRUCTION;
    static constexpr int kPerByte = 8 / BITS;
    using Raw = StagedOperand<Int8, true, WHOLE, FAR, LINES, BK / kPerByte, THREADS>;
    static constexpr int kBytes = Raw::kBytes;
    static constexpr int kRead = I::kWords > 4 ? 2 : 1;   // eights of neighbours of a lane and step
    static constexpr int kDeep = 8 * kRead * I::kGroups;  // elements of k of a step
    static constexpr int kSteps = BK / kDeep, kOfFour = 2 * kPerByte / kRead;  // steps; those of four words
    static_assert(BK % 128 == 0, "whole turns of a row's lanes");

    Raw raw;

    // From row `row` of `rows` on, and from element p of k on, the first of a byte; `ld` is in bytes.
    GEMMTUNE_DEVICE StoredWeights(const void* weights, i64 ld, i64 row, i64 rows, i64 p, i64 k)
        : raw(weights, 0, ld, row, rows, p / kPerByte, k / kPerByte) {}

    GEMMTUNE_DEVICE void load(int left) {
        if (raw.full() && left >= BK) raw.load();
        else raw.load_edge(left / kPerByte);
    }
};

// How they are stored to shared memory, and read from there.
template <int BITS, typename INSTRUCTION, bool WHOLE, bool FAR, int LINES, int BK, int THREADS>
struct StagedWeights;

template <typename INSTRUCTION, bool WHOLE, bool FAR, int LINES, int BK, int THREADS>
struct StagedWeights<4, INSTRUCTION, WHOLE, FAR, LINES, BK, THREADS>
    : StoredWeights<4, INSTRUCTION, WHOLE, FAR, LINES, BK, THREADS> {
    using Stored = StoredWeights<4, INSTRUCTION, WHOLE, FAR, LINES, BK, THREADS>;
    using I = INSTRUCTION;
    using Raw = typename Stored::Raw;
    static constexpr int kRead = Stored::kRead, kRun = 4 / I::kGroups;  // kRun: words of a load that go to one lane
    static constexpr int kTurns = 1;                                    // steps of neighbouring chunks of activations

    GEMMTUNE_DEVICE StagedWeights(const void* weights, i64 ld, i64 row, i64 rows, i64 p, i64 k)
        : Stored(weights, ld, row, rows, p, k) {}

    GEMMTUNE_DEVICE void store(char* tile) const {
        const int chunk = static_cast<int>(thread_index()) % 4;  // of its 64 bytes
        this->raw.each_chunk([&](int place, const unsigned (&words)[4]) {
            GEMMTUNE_UNROLL
            for (int group = 0; group < I::kGroups; ++group) {
                unsigned run[kRun];
                GEMMTUNE_UNROLL
                for (int i = 0; i < kRun; ++i)
                    run[i] = words[i / kRead * (I::kGroups * kRead) + group * kRead + i % kRead];
                const int to = (group * kRun + chunk / I::kGroups) ^ chunk;  // the chunk, from the loaded one
                write_run(tile + (place ^ to * 16) + chunk % I::kGroups * (4 * kRun), run);
            }
        });
    }

    // The lane's words of TILES x I::kLines rows from `row` on, of steps kOfFour `number` and following.
    template <int TILES>
    static GEMMTUNE_DEVICE void read(const char* tile, int row, int number, Words (&out)[TILES]) {
        const int lane = lane_index(), group = I::kGroups > 1 ? lane / I::kLines : 0;
        const int from = any_offset(Raw::place(row + lane % I::kLines, group * kRun));
        GEMMTUNE_UNROLL
        for (int i = 0; i < TILES; ++i)
            out[i] = read_shared<Words>(tile + Raw::moved(from, i * I::kLines, number / kRun * 4 + number % kRun));
    }

private:
    static GEMMTUNE_DEVICE void write_run(char* to, const unsigned (&words)[1]) {
        *reinterpret_cast<unsigned*>(to) = words[0];
    }
    static GEMMTUNE_DEVICE void write_run(char* to, const unsigned (&words)[2]) { write8(to, words); }
    static GEMMTUNE_DEVICE void write_run(char* to, const unsigned (&words)[4]) {
        write16(to, Words{{words[0], words[1], words[2], words[3]}});
    }
};

template <typename INSTRUCTION, bool WHOLE, bool FAR, int LINES, int BK, int THREADS>
struct StagedWeights<8, INSTRUCTION, WHOLE, FAR, LINES, BK, THREADS>
    : StoredWeights<8, INSTRUCTION, WHOLE, FAR, LINES, BK, THREADS> {
    using Stored = StoredWeights<8, INSTRUCTION, WHOLE, FAR, LINES, BK, THREADS>;
    using I = INSTRUCTION;
    using Raw = typename Stored::Raw;
    static constexpr int kTurns = Stored::kOfFour;

    GEMMTUNE_DEVICE StagedWeights(const void* weights, i64 ld, i64 row, i64 rows, i64 p, i64 k)
        : Stored(weights, ld, row, rows, p, k) {}
    GEMMTUNE_DEVICE void store(char* tile) const { this->raw.store(tile); }

    // The lane's words of TILES x I::kLines rows from `row` on, of steps kOfFour `number` and following.
    template <int TILES>
    static GEMMTUNE_DEVICE void read(const char* tile, int row, int number, Words (&out)[TILES]) {
        const int lane = lane_index(), group = I::kGroups > 1 ? lane / I::kLines : 0;
        const int from = any_offset(Raw::place(row + lane % I::kLines, group));
        GEMMTUNE_UNROLL
        for (int i = 0; i < TILES; ++i)
            out[i] = read_shared<Words>(tile + Raw::moved(from, i * I::kLines, number * I::kGroups));
    }
};

// Scales and zero points of weights of `rows` rows, `each` scales a row: those of matrix `matrix`, from one of which to
// the next there are so many bytes.
struct WeightScales {
    const void *scales, *zeros;
    i64 each, scale_bytes, zero_bytes;
    int matrix, rows;
};

// Scales and zero points of a lane's rows of weights, one of each LINES of the TILES x LINES of its wavefront, and of
// BK elements of k, of which a row has at least as many. Those of the next elements are requested while these are
// used. Where a row ends, they are read up to its end, and shifted to where they belong. A whole row's (QUANT::kGroup
// 0) are the same for all elements. T: of the activations.
template <typename T, typename QUANT, int TILES, int LINES, int BK>
struct LaneScales {
    using Scale = typename QUANT::Scale;
    static constexpr bool kWholeRow = QUANT::kGroup == 0;
    static constexpr int kGroup = kWholeRow ? BK : QUANT::kGroup;  // elements of k that have one scale
    static constexpr int kScales = BK / kGroup, kSize = static_cast<int>(sizeof(Scale));
    static constexpr bool kOfRows = QUANT::kZero == kWords;  // 4-bit zero points, those of eight rows in a word
    static constexpr bool kFloats = QUANT::kZero == kSubtracted || QUANT::kZero == kAdded;
    static constexpr int kZeroSize = kOfRows ? 4 : kSize;  // bytes of a zero point, or of those of eight rows
    static constexpr int kScaleWords = (kScales * kSize + 3) / 4;
    static constexpr int kZeroWords = kOfRows ? kScales : kFloats ? kScaleWords : 1;
    static_assert(BK % kGroup == 0, "whole groups");

private:
    struct Stored {
        unsigned scales[TILES][kScaleWords], zeros[TILES][kZeroWords];
    };
    const char *scales_, *zeros_;  // of the wavefront's first row, and the next elements' first group
    unsigned scale_at_[TILES], zero_at_[TILES];  // the lane's rows, in bytes from there
    int beyond_;  // groups of the next elements beyond a row's last
    Stored next_, now_;

public:
    // Of the rows from `row` on, from element p of k on. (Of rows beyond the last, whose sums are not stored, the
    // last one's are read.)
    GEMMTUNE_DEVICE LaneScales(const WeightScales& all, int row, int p) {
        const int first = kWholeRow ? 0 : p / kGroup;
        const i64 each = all.each * kSize;
        scales_ = static_cast<const char*>(all.scales) + all.matrix * all.scale_bytes + row * each + first * kSize;
        zeros_ = static_cast<const char*>(all.zeros) + all.matrix * all.zero_bytes + first * kZeroSize;
        zeros_ += kOfRows ? row / 8 * all.each * 4 : row * each;
        const int last = all.rows - row - 1, line = lane_index() % LINES;
        GEMMTUNE_UNROLL
        for (int tile = 0; tile < TILES; ++tile) {
            const int wanted = tile * LINES + line, mine = wanted < last ? wanted : last;
            scale_at_[tile] = static_cast<unsigned>(mine) * static_cast<unsigned>(each);
            zero_at_[tile] = static_cast<unsigned>(mine / 8) * static_cast<unsigned>(all.each * 4);
        }
    }

    // Requests the next elements', of which `left` are there.
    GEMMTUNE_DEVICE void load(int left) {
        beyond_ = !kWholeRow && left < BK ? kScales - left / kGroup : 0;
        const char* const scales = uniform(scales_ - beyond_ * kSize);
        const char* const zeros = uniform(zeros_ - beyond_ * kZeroSize);
        GEMMTUNE_UNROLL
        for (int tile = 0; tile < TILES; ++tile) {
            read<kScales * kSize>(scales + scale_at_[tile], next_.scales[tile]);
            if constexpr (kFloats) read<kScales * kSize>(zeros + scale_at_[tile], next_.zeros[tile]);
            if constexpr (kOfRows) read<kScales * 4>(zeros + zero_at_[tile], next_.zeros[tile]);
        }
        if constexpr (!kWholeRow) scales_ += kScales * kSize, zeros_ += kScales * kZeroSize;
    }

    // What was requested is used now. Of groups beyond a row's last it is zero.
    GEMMTUNE_DEVICE void take() {
        GEMMTUNE_UNROLL
        for (int tile = 0; tile < TILES; ++tile) {
            shifted(next_.scales[tile], beyond_ * kSize, now_.scales[tile]);
            if constexpr (kOfRows || kFloats) shifted(next_.zeros[tile], beyond_ * kZeroSize, now_.zeros[tile]);
        }
    }

    // Of tile `tile` and group `of`: the scale; the whole zero point; what is to be subtracted from sums of weights,
    // for each activation, before they are scaled; and what is to be added after.
    GEMMTUNE_DEVICE float scale(int tile, int of) const { return number(now_.scales[tile], of); }
    GEMMTUNE_DEVICE unsigned zero(int tile, int of) const {
        if constexpr (kOfRows) return now_.zeros[tile][of] >> lane_index() % 8 * 4 & 15u;
        else return kConstantZero<QUANT>;
    }
    GEMMTUNE_DEVICE float offset(int tile, int of) const {
        float found = 0.0f;
        if constexpr (kSame<T, Bf16>) found = kLeft<T, QUANT> + static_cast<float>(zero(tile, of));
        if constexpr (QUANT::kZero == kSubtracted) found += number(now_.zeros[tile], of);
        return found;
    }
    GEMMTUNE_DEVICE float added(int tile, int of) const {
        if constexpr (QUANT::kZero == kAdded) return number(now_.zeros[tile], of);
        else return 0.0f;
    }

private:
    template <int WORDS>
    static GEMMTUNE_DEVICE float number(const unsigned (&words)[WORDS], int of) {
        const unsigned bits = words[of * kSize / 4] >> of * kSize % 4 * 8;
        if constexpr (kSize == 4) return as_float(bits);
        else if constexpr (kSize == 2) return widen(Scale{static_cast<unsigned short>(bits)});
        else return widen(Scale{static_cast<unsigned char>(bits)});
    }

    template <int WORDS>
    static GEMMTUNE_DEVICE void shifted(const unsigned (&words)[WORDS], int bytes, unsigned (&out)[WORDS]) {
        GEMMTUNE_UNROLL
        for (int w = 0; w < WORDS; ++w) out[w] = words[w];
        if (bytes) shift_right(out, static_cast<unsigned>(bytes));
        // Later, the next tile's loads would have to arrive before these are read: loads arrive in order.
        GEMMTUNE_UNROLL
        for (unsigned& word : out) computed_here(word);
    }

    template <int BYTES, int WORDS>
    static GEMMTUNE_DEVICE void read(const char* from, unsigned (&out)[WORDS]) {
        constexpr int kOnce = WORDS < 4 ? WORDS : 4;
        if constexpr (BYTES < 4) {
            out[0] = load_element(reinterpret_cast<const Scale*>(from)).bits;
        } else {
            GEMMTUNE_UNROLL
            for (int w = 0; w < WORDS; w += kOnce) {
                unsigned part[kOnce];
                load_words<false>(from + 4 * w, part);
                GEMMTUNE_UNROLL
                for (int i = 0; i < kOnce; ++i) out[w + i] = part[i];
            }
        }
    }
};

}  // namespace gemmtune
