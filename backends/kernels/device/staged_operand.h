// One operand's tile on its way from global memory through registers to shared memory, and from there to the
// operands of matrix instructions: LINES rows of A (columns of B) by BK elements of k.
//
// Shared memory holds a tile line by line, BK elements each, without gaps. The 16-byte chunks of a line are
// permuted by an XOR with bits of its number (swizzle()): shared memory serves 8 lanes of a 16-byte access at
// a time, of which reads take lanes 0-3 and 20-23, 4-7 and 16-19, ... together on CDNA (AMD, "Avoiding LDS
// Bank Conflicts on AMD GPUs Using CK-Tile") and eight neighbours elsewhere. Either eight access eight
// different chunks of 128 bytes:
//
//   writes along k   whole lines
//   writes across k  lines that are 4 or 8 apart
//   reads            8 neighbouring lines at one chunk, or 4 at one chunk and 4 at its neighbour
//
// An operand that is contiguous along k (ALONG_K) is loaded in chunks of 16 bytes, which are stored as they
// are. Otherwise a thread loads the same kWide lines of four neighbours along k, and transposes them in its
// registers: it stores four elements of each line at once.
//
// WHOLE: runs that are contiguous in memory begin at multiples of 16 bytes and are whole numbers of them, so
// that a load lies within a run or beyond it. Otherwise loads begin at any element (matrix_core.h:
// load_words), and one that would cross the end of its run is moved to end there and shifted back. Runs that
// are shorter than a load are loaded by elements.
//
// Elements beyond k are zero in shared memory. Lines beyond the operand hold other lines' elements, or zeros:
// only sums that are never stored depend on them.
//
// GATED: lines are rows of two halves in turn (gated_rows.h).
#pragma once

#include "device/args.h"
#include "device/gated_rows.h"
#include "device/matrix_core.h"

namespace gemmtune {

template <typename T, bool ALONG_K, bool WHOLE, bool FAR, int LINES, int BK, int THREADS, bool GATED = false>
struct StagedOperand {
    static constexpr int kSize = static_cast<int>(sizeof(T));
    static constexpr int kLineBytes = BK * kSize, kChunks = kLineBytes / 16, kBytes = LINES * kLineBytes;
    static constexpr int kDown = 4;  // neighbours along k that a thread loads of one line, across k

    // Elements of a load: 16 bytes; across k fewer where threads would be idle.
    static constexpr int wide() {
        int found = 16 / kSize;
        if (!ALONG_K)
            while (found > 4 && LINES * BK / (kDown * found) < THREADS) found /= 2;
        return found;
    }
    static constexpr int kWide = wide(), kWords = kWide * kSize / 4;
    static constexpr int kLoads = ALONG_K ? 1 : kDown;  // of a unit, the part that a thread handles at once
    static constexpr int kUnits = LINES * BK / (kWide * kLoads);
    static constexpr int kMine = kUnits > THREADS ? kUnits / THREADS : 1;  // units of a thread
    // Across k: units side by side along lines, and units that share a chunk. Lanes are first across eight
    // units, then along a chunk, then across the rest.
    static constexpr int kAside = LINES / kWide, kAcross = kAside < 8 ? kAside : 8;
    static constexpr int kParts = 16 / (kDown * kSize), kGroup = kAcross * kParts;
    static constexpr int kRows = kAside / kAcross;
    static_assert(is_power_of_two(LINES) && is_power_of_two(BK) && is_power_of_two(THREADS), "tiles");
    static_assert(kLineBytes >= 64 && kLineBytes <= 1024 && LINES >= 16, "lines of 4 to 64 chunks");
    static_assert(THREADS >= 32 && kUnits % kMine == 0, "whole units");
    static_assert(!GATED || (ALONG_K && (kMine == 1 || THREADS / kChunks % 2 == 0)), "whole pairs of lines");
    static_assert(!ALONG_K || THREADS >= kChunks, "a thread has the same chunk of every line that it loads");

    // What a line's chunk numbers are changed by: swizzle(a ^ b) is swizzle(a) ^ swizzle(b).
    static GEMMTUNE_DEVICE constexpr int swizzle(int line) {
        return kChunks == 4 ? (line >> 1 ^ line >> 3) & 3 : (line ^ line >> 3) & 7;
    }
    // Where a chunk lies, in bytes.
    static GEMMTUNE_DEVICE constexpr int place(int line, int chunk) {
        return line * kLineBytes + (chunk ^ swizzle(line)) * 16;
    }
    // place(line + lines, chunk + chunks) from place(line, chunk), where the constants that are added share no
    // bits with what they are added to. Few of the XOR's operands differ, so addresses need few registers.
    static GEMMTUNE_DEVICE constexpr int moved(int place, int lines, int chunks) {
        const int low = kChunks > 8 ? chunks % 8 : chunks, beyond = kChunks > 8 ? chunks / 8 * 128 : 0;
        return (place ^ (swizzle(lines) ^ low) * 16) + lines * kLineBytes + beyond;
    }

private:
    // A thread's loads begin `own_` bytes from the block's first: a scalar address and, where lines are not FAR
    // apart, one register.
    template <bool IS_FAR, typename = void>
    struct OffsetOf {
        using Type = unsigned;
    };
    template <typename ALWAYS>
    struct OffsetOf<true, ALWAYS> {
        using Type = u64;
    };
    using Offset = typename OffsetOf<FAR>::Type;

    const char* base_;    // of the next tile's first element
    Offset own_;
    i64 step_;            // bytes from an element to the next one of the index that is not contiguous
    int line_, depth_;    // the thread's first unit: line and k, from the tile's first on
    int to_;              // where its first line lies in shared memory
    int lines_, length_;  // lines from the tile's first on; elements of a contiguous run, kWide at most
    unsigned kept_[kMine][kLoads][kWords];

    // Where unit n of a thread begins: lines and k from the thread's first unit on.
    static GEMMTUNE_DEVICE constexpr int unit_line(int n) {
        if (ALONG_K) return n * (THREADS / kChunks);
        constexpr int kTurn = THREADS / kGroup;
        return kTurn < kRows ? n % (kRows / kTurn) * kTurn * kAcross * kWide : 0;
    }
    static GEMMTUNE_DEVICE constexpr int unit_depth(int n) {
        if (ALONG_K) return 0;
        constexpr int kTurn = THREADS / kGroup;
        return (kTurn < kRows ? n / (kRows / kTurn) : n * (kTurn / kRows)) * kParts * kDown;
    }
    static GEMMTUNE_DEVICE bool busy() {
        return kUnits >= THREADS || static_cast<int>(thread_index()) < kUnits;
    }

public:
    // From line `line` of `lines` and element p of k on; `ld` steps the index that is not contiguous.
    GEMMTUNE_DEVICE StagedOperand(const void* operand, i64 batch, i64 ld, i64 line, i64 lines, i64 p, i64 k)
        : step_(ld * kSize) {
        const int t = static_cast<int>(thread_index());
        if (ALONG_K) {
            line_ = t / kChunks, depth_ = t % kChunks * kWide;
        } else {
            const int rest = t / kGroup;
            line_ = (t % kAcross + rest % kRows * kAcross) * kWide;
            depth_ = (t / kAcross % kParts + rest / kRows * kParts) * kDown;
        }
        to_ = place(line_, depth_ * kSize / 16) + depth_ * kSize % 16;
        base_ = static_cast<const char*>(operand) + batch * kSize;
        base_ += ALONG_K ? (GATED ? line / 2 : line) * step_ + p * kSize : p * step_ + line * kSize;
        const Offset step = static_cast<Offset>(step_);
        own_ = static_cast<Offset>(ALONG_K ? (GATED ? line_ / 2 : line_) : depth_) * step;
        if (GATED) own_ += static_cast<Offset>(line_ % 2) * static_cast<Offset>(lines / 2) * step;
        own_ += static_cast<Offset>((ALONG_K ? depth_ : line_) * kSize);
        lines_ = lines - line > LINES ? LINES : static_cast<int>(lines - line);
        const i64 length = ALONG_K ? k : lines;
        length_ = length > kWide ? kWide : static_cast<int>(length);
    }

    // Whether every line of the tile is there.
    GEMMTUNE_DEVICE bool full() const { return lines_ >= LINES; }

    // Loads the next tile, of which all lines and BK elements of k are there.
    GEMMTUNE_DEVICE void load() {
        const char* const base = advance();
        if (!busy()) return;
        GEMMTUNE_UNROLL
        for (int n = 0; n < kMine; ++n) {
            GEMMTUNE_UNROLL
            for (int r = 0; r < kLoads; ++r) load_words<WHOLE>(at(base, n, r), kept_[n][r]);
        }
    }

    // The same of a tile that lies partly beyond the operand; `left` elements of k are there from its first.
    GEMMTUNE_DEVICE void load_edge(int left) {
        const char* const base = advance();
        if (!busy()) return;
        GEMMTUNE_UNROLL
        for (int n = 0; n < kMine; ++n) {
            GEMMTUNE_UNROLL
            for (int r = 0; r < kLoads; ++r) {
                const int line = line_ + unit_line(n), depth = depth_ + unit_depth(n) + r;
                // Along the run, and whether there is a run.
                const int here = ALONG_K ? left - depth : lines_ - line;
                const bool there = ALONG_K ? line < lines_ : depth < left;
                load_part(at(base, n, r), there ? here : 0, kept_[n][r]);
            }
        }
    }

    // Stores the loaded tile to shared memory.
    GEMMTUNE_DEVICE void store(char* tile) const {
        if constexpr (ALONG_K) {
            each_chunk([&](int place, const unsigned (&words)[kWords]) {
                write16(tile + place, Words{{words[0], words[1], words[2], words[3]}});
            });
        } else {
            if (!busy()) return;
            GEMMTUNE_UNROLL
            for (int n = 0; n < kMine; ++n) {
                constexpr int kPerChunk = 16 / kSize;
                const int lines = unit_line(n), chunks = unit_depth(n) / kPerChunk;
                GEMMTUNE_UNROLL
                for (int word = 0; word < kWords; ++word)
                    store_lines(tile, lines + 4 / kSize * word, chunks, n, word);
            }
        }
    }

    // Of an operand that is contiguous along k: calls write(place, words) for every chunk that the thread has loaded.
    template <typename WRITE>
    GEMMTUNE_DEVICE void each_chunk(const WRITE& write) const {
        static_assert(ALONG_K, "a thread has whole chunks");
        if (!busy()) return;
        GEMMTUNE_UNROLL
        for (int n = 0; n < kMine; ++n) write(moved(to_, unit_line(n), 0), kept_[n][0]);
    }

    // The tile's lines as a wavefront's instructions take them: of TILES x INSTRUCTION::kLines lines from
    // `line` on, kRead 16-byte chunks of each, those of step `step`. Which elements of k a lane multiplies in
    // which instruction is free as long as it is the same for both operands. TURNS: how many steps a lane takes from
    // neighbouring chunks, as where the other operand's elements of these steps are read at once.
    template <typename INSTRUCTION, int TURNS = 1>
    struct Read {
        static constexpr int kRead = INSTRUCTION::kWords > 4 ? 2 : 1;
        static constexpr int kPerStep = 4 * kRead / INSTRUCTION::kWords;  // instructions of a step
        static constexpr int kSteps = kChunks / (kRead * INSTRUCTION::kGroups);
        static_assert(kSteps * kRead * INSTRUCTION::kGroups == kChunks, "a tile is whole steps");
        static_assert(kSteps % TURNS == 0 && is_power_of_two(TURNS), "whole turns");

        template <int TILES>
        static GEMMTUNE_DEVICE void run(const char* tile, int line, int step,
                                        Packed<INSTRUCTION::kWords> (&out)[TILES][kPerStep]) {
            constexpr int kLines = INSTRUCTION::kLines, kGroups = INSTRUCTION::kGroups;
            constexpr int kWordsOfOne = INSTRUCTION::kWords;
            const int lane = lane_index(), group = kGroups > 1 ? lane / kLines : 0;
            const int first = place(line + lane % kLines, group * kRead * TURNS);
            const int from = kChunks > 8 ? any_offset(first) : first;
            const int turn = step / TURNS * (kGroups * TURNS) + step % TURNS;
            GEMMTUNE_UNROLL
            for (int i = 0; i < TILES; ++i) {
                unsigned words[4 * kRead];
                GEMMTUNE_UNROLL
                for (int c = 0; c < kRead; ++c) {
                    const int at = moved(from, i * kLines, turn * kRead + c);
                    const Words found = read_shared<Words>(tile + at);
                    GEMMTUNE_UNROLL
                    for (int w = 0; w < 4; ++w) words[4 * c + w] = found.at[w];
                }
                GEMMTUNE_UNROLL
                for (int w = 0; w < 4 * kRead; ++w)
                    out[i][w / kWordsOfOne].at[w % kWordsOfOne] = words[w];
            }
        }
    };

private:
    // Where the next tile begins; the one after it is next then.
    GEMMTUNE_DEVICE const char* advance() {
        const char* const base = uniform(base_);
        base_ += ALONG_K ? static_cast<i64>(BK * kSize) : BK * step_;
        return base;
    }
    // Where a load begins.
    GEMMTUNE_DEVICE const char* at(const char* base, int n, int r) const {
        const int line = unit_line(n), depth = unit_depth(n) + r;
        return base + (ALONG_K ? (GATED ? line / 2 : line) * step_ + depth * kSize : depth * step_ + line * kSize) + own_;
    }

    // The first `here` elements of a load, then zeros; none is read where `here` is not positive.
    GEMMTUNE_DEVICE void load_part(const char* from, int here, unsigned (&out)[kWords]) const {
        GEMMTUNE_UNROLL
        for (int w = 0; w < kWords; ++w) out[w] = 0;
        if (here <= 0) return;
        if (WHOLE || length_ >= kWide) {
            const int beyond = WHOLE || here >= kWide ? 0 : kWide - here;
            load_words<WHOLE>(from - beyond * kSize, out);
            if (!WHOLE) shift_right(out, static_cast<unsigned>(beyond * kSize));
            return;
        }
        GEMMTUNE_UNROLL
        for (int e = 0; e < kWide; ++e) {
            if (e >= here) continue;
            const T element = load_element(reinterpret_cast<const T*>(from) + e);
            out[e * kSize / 4] |= bits_of(element) << e * kSize % 4 * 8;
        }
    }

    // Stores four elements along k of each line that one word of a unit's loads has elements of; the first of
    // these lines is `lines` from the thread's first.
    GEMMTUNE_DEVICE void store_lines(char* tile, int lines, int chunks, int n, int word) const {
        const unsigned a = kept_[n][0][word], b = kept_[n][kLoads / 4][word];
        const unsigned c = kept_[n][kLoads / 2][word], d = kept_[n][kLoads - 1][word];
        constexpr unsigned kLow = 0x05040100, kHigh = 0x07060302;  // halves of two words
        const auto to = [&](int line) { return tile + moved(to_, lines + line, chunks); };
        if constexpr (kSize == 2) {
            const unsigned low[2] = {permute_bytes(b, a, kLow), permute_bytes(d, c, kLow)};
            const unsigned high[2] = {permute_bytes(b, a, kHigh), permute_bytes(d, c, kHigh)};
            write8(to(0), low);
            write8(to(1), high);
        } else {
            const unsigned ab[2] = {permute_bytes(b, a, 0x05010400), permute_bytes(b, a, 0x07030602)};
            const unsigned cd[2] = {permute_bytes(d, c, 0x05010400), permute_bytes(d, c, 0x07030602)};
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i)
                *reinterpret_cast<unsigned*>(to(i)) =
                    permute_bytes(cd[i / 2], ab[i / 2], i % 2 ? kHigh : kLow);
        }
    }
};

}  // namespace gemmtune
