// Asynchronous copies of lines that are contiguous along k, BYTES bytes of each, into a slot of a ring in shared
// memory, by LANES threads (dequant_ring.h). Threads lie side by side along a line, 16 bytes each, and on as many
// lines as they suffice for. Lines start at multiples of 16 bytes.
//
// If lines are at least as wide as the banks, every second one has the halves of each 128 bytes exchanged, so that
// lines that are read together lie in different banks. SPREAD: every line of eight has its words elsewhere, so that
// eight lanes may read the same word of eight lines. EIGHTS: words are stored in the order in which four lanes
// read them that each take EIGHTS neighbouring words of a line; 1 keeps their order.
#pragma once

#include "device/types.h"

namespace gemmtune {

// The value that is XORed into the numbers of a line's 16-byte words.
template <int BYTES>
GEMMTUNE_DEVICE int exchanged(int line) { return BYTES >= 128 ? line % 2 * 4 : 0; }

// The same for SPREAD.
template <int BYTES>
GEMMTUNE_DEVICE int spread(int line) { return BYTES >= 128 ? line % 8 : line / 2 % 4; }

template <int BYTES, int LINES, int LANES, int EIGHTS, bool SPREAD = false>
struct LineCopies {
    static constexpr int kWords = BYTES / 16, kSide = kWords < LANES ? LANES / kWords : 1;  // lines side by side
    static constexpr int kPasses = kWords < LANES ? 1 : kWords / LANES;                     // of the same lines
    static_assert(BYTES % 64 == 0 && (kWords < LANES || kWords % LANES == 0), "whole words of every lane");
    static_assert(!SPREAD || (kWords < LANES && EIGHTS == 1), "lanes side by side");

    const char* from;  // this lane's first word in the operand
    i64 step;          // bytes from a lane's line to its next one
    int to, flip;      // where that word goes in a slot; the way to it from a line with the other order
    int left, word;    // lines that exist from the lane's first on; number of its word in the line

    // `lane` of LANES copies from the first of `lines` lines on, `ld` bytes apart.
    GEMMTUNE_DEVICE LineCopies(const void* first, i64 ld, int lines, int lane) : word(lane % kWords) {
        const int line = kWords < LANES ? lane / kWords : 0, place = placed(word);
        from = opaque(static_cast<const char*>(first) + line * ld + word * 16);
        step = opaque(ld * kSide);
        to = opaque(line * BYTES + (place ^ (SPREAD ? spread<BYTES>(line) : exchanged<BYTES>(line))) * 16);
        flip = (place ^ exchanged<BYTES>(line)) & 4 ? -64 : 64;
        left = opaque(line < kSide ? (lines < LINES ? lines : LINES) - line : 0);
    }

    // Starts this lane's copies of the bytes from `at` on, of which `there` exist (FULL: all). Lines beyond the last
    // are not copied: their values reach only sums that are dropped. Bytes beyond a line's last are zero.
    template <bool FULL>
    GEMMTUNE_DEVICE void run(char* slot, i64 at, int there) const {
        GEMMTUNE_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
            const bool inside = FULL || (word + pass * LANES) * 16 < there;
            // Zero bytes are read from the line's first word, which exists.
            const char* source = inside ? from + at + pass * LANES * 16 : from - word * 16;
            GEMMTUNE_UNROLL
            for (int on = 0; on < LINES; on += kSide) {
                const bool other = BYTES >= 128 && on % 2 == 1;
                const int place = SPREAD ? to ^ spread<BYTES>(on) * 16 : to + (other ? flip : 0);
                char* const target = slot + place + on * BYTES + pass * LANES * 16;
                if constexpr (FULL) copy_async16_if(on < left, target, source);
                else copy_async16_if(on < left, target, source, inside ? 16 : 0);
                source += step;
            }
        }
    }

private:
    static GEMMTUNE_DEVICE int placed(int word) {
        const int of = word / (4 * EIGHTS), in = word % (4 * EIGHTS);
        return of * (4 * EIGHTS) + in % EIGHTS * 4 + in / EIGHTS;
    }
};

// Copies `there` of BYTES bytes of `count` of LINES lines, `ld` bytes apart, by 4-byte words; the others are zero. SIDE
// neighbouring lines, of which the first is number `phase`, are copies of one, and these lie `ld` bytes apart.
template <int BYTES, int LINES, int SIDE = 1>
GEMMTUNE_DEVICE void copy_line_words(char* to, const char* from, i64 ld, i64 at, int count, int there, int phase = 0) {
    constexpr int kWords = BYTES / 4;
    GEMMTUNE_UNROLL
    for (int i = 0; i < LINES * kWords; i += 32) {
        const int index = i + lane_index(), line = index / kWords, word = index % kWords;
        if (line >= count) continue;
        const bool inside = word * 4 < there;
        const char* const source = from + (SIDE == 1 ? line : (phase + line) / SIDE) * ld;
        copy_async4(to + index * 4, inside ? source + at + word * 4 : source, inside ? 4 : 0);
    }
}

// The same of lines of bytes that start anywhere, at multiples of `ld` from an address that is a multiple of 4: in
// shared memory a line has the word that its first byte is in, and BYTES / 4 more. `at` is a multiple of 4. The
// operand's last word may end beyond its last byte, at `end`: that one is read byte by byte. Bytes of a line's last
// word that are the next line's are zero.
template <int BYTES, int LINES>
GEMMTUNE_DEVICE void copy_line_bytes(char* to, const char* from, i64 ld, i64 at, int count, int there,
                                     const char* end) {
    constexpr int kWords = BYTES / 4 + 1;
    GEMMTUNE_UNROLL
    for (int i = 0; i < LINES * kWords; i += 32) {
        const int index = i + lane_index(), line = index / kWords, word = index % kWords;
        if (line >= count) continue;
        const i64 begin = line * ld, whole = begin & ~i64(3);
        const bool inside = word * 4 < static_cast<int>(begin - whole) + there;
        const char* const source = inside ? from + whole + at + word * 4 : from;
        if (GEMMTUNE_RARELY(source + 4 > end)) {
            unsigned bytes = 0;
            for (int i = 0; inside && source + i < end; ++i) bytes |= static_cast<unsigned char>(source[i]) << 8 * i;
            *reinterpret_cast<unsigned*>(to + index * 4) = bytes;
        } else {
            const int left = there - word * 4 + static_cast<int>(begin - whole);
            copy_async4(to + index * 4, source, left <= 0 ? 0 : left < 4 ? left : 4);
        }
    }
}

// Where a lane reads 16-byte word 4 `of` + member of a line of BYTES bytes, from the line's own place `at` on
// (line_place()).
template <int BYTES>
GEMMTUNE_DEVICE int line_place(int line, int member) { return line * BYTES + (member ^ exchanged<BYTES>(line)) * 16; }
template <int BYTES>
GEMMTUNE_DEVICE int line_word(int at, int of) {
    return BYTES >= 128 ? (at ^ of % 2 * 64) + of / 2 * 128 : at + of * 64;
}

}  // namespace gemmtune
