// Lines of an operand on their way through a warp's ring in shared memory (skinny_ring.h): LINES lines that
// are contiguous along k, BK elements of each (a chunk) at a time, copied by the warp's 32 lanes and read as
// mma.h's fragments.
//
// WHOLE: lines start at multiples of 16 bytes and are whole numbers of them; neighbouring lines have their
// halves of 128 bytes exchanged, so that the lines that are read at once lie in different banks. Else a line
// is copied in the 16-byte words that it lies in, one more than its own length, and keeps in shared memory
// the shift of its start, which is the same for every eighth line; words are put together when they are read.
// (operand_tile.h: in an order in which what a warp reads lies in different banks, too, where their leading
// dimension is odd.)
//
// A lane's copies of one *turn* are of the same words of every eighth line: their places in a slot are so many
// bytes apart, and so are their sources. What differs from turn to turn is worked out once, and kept.
#pragma once

#include "device/operand_tile.h"

namespace gemmtune {

template <bool WHOLE, int LINES, int BK>
struct RingLines {
    static constexpr int kPiece = BK * 2, kPitch = kPiece + (WHOLE ? 0 : 16);  // bytes of a line in a slot
    static constexpr int kLanes = BK / 8, kOn = 32 / kLanes;  // lanes of a line, lines of a copy
    static constexpr int kTurns = (least(LINES, 8) + kOn - 1) / kOn;
    static_assert(BK % 64 == 0 && BK <= 256, "whole widths of the banks; a line's copies are a warp's at most");
    static_assert(LINES <= 8 || LINES % 8 == 0, "every turn has its eighth lines");

    // From line `first` of `lines` on; those beyond the last are neither copied nor zero: what is read of them
    // must come to nothing (lines are multiplied one by one).
    GEMMTUNE_DEVICE RingLines(const void* operand, i64 batch, i64 ld, i64 first, int lines, int k) : k_(k) {
        const char* const base = static_cast<const char*>(operand) + (batch + first * ld) * 2;
        const i64 left = lines - first;
        lines_ = opaque(static_cast<int>(left < LINES ? left : LINES)), eight_ = opaque(ld * 16);
        start_ = static_cast<int>(reinterpret_cast<u64>(base) % 16) / 2, ld_ = static_cast<int>(ld & 7);
        GEMMTUNE_UNROLL
        for (int turn = 0; turn < kTurns; ++turn) {
            const int line = line_of(turn);
            from_[turn] = opaque(base + (line * ld * 2 - shift_of(line) + unit() * 16));
            to_[turn] = opaque(place_of(line) * kPitch + (unit() ^ exchanged(line)) * 16);
        }
        left_ = opaque(lines_ - lane_index() / kLanes);
        const int mine = lane_index() / 4 % LINES, member = lane_index() % 4;
        read_ = opaque(place_of(mine) * kPitch + shift_of(mine) / 4 * 4 + (member ^ exchanged(mine)) * 16);
        if (WHOLE) return;
        bits_ = opaque(shift_of(mine) % 4 * 8);
        const int last = lane_index();
        from_last_ = opaque(base + (last * ld * 2 - shift_of(last) + kPiece));
        to_last_ = opaque(place_of(last) * kPitch + kPiece), left_last_ = opaque(lines_ - last);
    }

    // Starts this lane's copies of a chunk of an operand that ends at `end`; what lies beyond a line's end is
    // zero. (What a word has before its line is read as well: that lies in the operand's allocation, which
    // begins at 16 bytes.)
    GEMMTUNE_DEVICE void copy(char* to, int chunk, const char* end) const {
        const int elements = k_ - chunk * BK;  // left; a line may have more bytes than an int counts
        const i64 at = static_cast<i64>(chunk) * kPiece;
        if (elements < kPitch / 2) copy_some(to, elements * 2, at, end);
        else copy_whole(to, at);
    }

    // The lane's eight elements at a step along k, 8 member on, of its line of the eight from `first` on.
    GEMMTUNE_DEVICE void read(const char* tile, int first, int step, unsigned (&out)[4]) const {
        if constexpr (WHOLE) {
            const char* const at = tile + (read_ ^ step % 2 * 64) + (first * kPitch + step / 2 * 128);
            const Words all = read_shared<Words>(at);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) out[i] = all.at[i];
        } else {
            const char* const word = tile + read_ + (first * kPitch + step * 64);
            unsigned low = read_shared<unsigned>(word);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) {
                const unsigned high = read_shared<unsigned>(word + 4 * i + 4);
                out[i] = funnel(low, high, static_cast<unsigned>(bits_));
                low = high;
            }
        }
    }

private:
    const char *from_[kTurns], *from_last_;  // a turn's first source in the first chunk, and of a line's last
    int to_[kTurns], to_last_;               // word; and where in a slot they go
    i64 eight_;                              // bytes from a line to the eighth after it
    int lines_, k_, start_, ld_;             // lines there are; elements of a line, from 16 bytes to the first
    int left_, left_last_;                   // one's start, and from line to line, modulo 8; lines from the
    int read_, bits_;                        // lane's first on, of either kind of copies; where the lane's
                                             // reading begins, and its shift within 4 bytes

    static GEMMTUNE_DEVICE int unit() { return lane_index() % kLanes; }
    static GEMMTUNE_DEVICE int line_of(int turn) { return lane_index() / kLanes + turn * kOn; }
    // What the numbers of a line's words are changed by.
    static GEMMTUNE_DEVICE int exchanged(int line) { return WHOLE ? line % 2 * 4 : 0; }
    GEMMTUNE_DEVICE int shift_of(int line) const { return WHOLE ? 0 : ((start_ + line * ld_) & 7) * 2; }
    // (order_of() does the same from a line's number; the shift is known here.)
    GEMMTUNE_DEVICE int place_of(int line) const {
        const int shift = shift_of(line) / 2;
        return WHOLE || LINES < 8 || ld_ % 2 == 0 ? line : line / 8 * 8 + shift / 2 + shift % 2 * 4;
    }

    // Of pieces that go on to the chunk's end, and beyond it where words do.
    GEMMTUNE_DEVICE void copy_whole(char* to, i64 at) const {
        GEMMTUNE_UNROLL
        for (int turn = 0; turn < kTurns; ++turn) {
            const char* source = from_[turn] + at;
            char* const target = to + to_[turn];
            GEMMTUNE_UNROLL
            for (int on = 0; on < LINES; on += 8) {
                copy_async16_if(on + turn * kOn < left_, target + on * kPitch, source);
                source += eight_;
            }
        }
        if (WHOLE) return;
        const char* source = from_last_ + at;
        GEMMTUNE_UNROLL
        for (int on = 0; on < LINES; on += 32) {
            copy_async16_if(on < left_last_, to + to_last_ + on * kPitch, source);
            source += 4 * eight_;
        }
    }

    // The last chunks of lines, `left` bytes of each.
    GEMMTUNE_DEVICE void copy_some(char* to, int left, i64 at, const char* end) const {
        GEMMTUNE_UNROLL
        for (int turn = 0; turn < kTurns; ++turn) {
            const int words = unit() * 16, here = left + shift_of(line_of(turn)) - words;
            copy_words<8>(to + to_[turn], left_ - turn * kOn, from_[turn], words, here, at, end);
        }
        const int here = left + shift_of(lane_index()) - kPiece;
        if (!WHOLE) copy_words<32>(to + to_last_, left_last_, from_last_, kPiece, here, at, end);
    }

    // A word of every STEP-th of so many lines, `on` bytes from the first of its line's piece, of which there
    // are `here` bytes left.
    template <int STEP>
    GEMMTUNE_DEVICE void copy_words(char* to, int lines, const char* from, int on, int here, i64 at,
                                    const char* end) const {
        const int bytes = here < 0 ? 0 : least(here, 16);
        const char* source = here > 0 ? from + at : from - on;  // of no bytes: from the operand nonetheless
        const i64 step = STEP / 8 * eight_;
        if (!WHOLE && bytes % 16 != 0) {  // the operand's last words, which are not all its own
            GEMMTUNE_ROLL
            for (int line = (lines - 1) / STEP; lines > 0; --line) {
                const char* const last = source + line * step;
                if (last + 16 <= end) break;
                copy_part(to + line * STEP * kPitch, last, bytes);
                lines = line * STEP;
            }
        }
        GEMMTUNE_UNROLL
        for (int line = 0; line < LINES; line += STEP) {
            copy_async16_if(line < lines, to + line * kPitch, source, bytes);
            source += step;
        }
    }
};

}  // namespace gemmtune
