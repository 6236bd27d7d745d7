// Lines of an operand on their way through a warp's ring of slots in shared memory (skinny_ring.h): LINES
// lines, contiguous along k, BK elements of each (a chunk) at a time, copied asynchronously by the warp's 32
// lanes and read as mma.h's fragments.
//
// WHOLE: lines start at multiples of 16 bytes and are whole numbers of 16-byte words. Every second line has the
// halves of each 128 bytes exchanged, so that lines that are read together lie in different banks. Otherwise
// (unaligned lines) a line is copied as the aligned 16-byte words that contain it, one more than its own
// length, and keeps the shift of its start in shared memory; the shift is the same for every eighth line. Words
// are assembled when they are read. If the leading dimension is odd, lines are stored in an order in which
// these reads have no bank conflicts either (operand_tile.h).
//
// In one *turn* a lane copies the same word of every eighth line, so targets and sources advance by constants.
// What differs from turn to turn is computed once and kept in registers.
#pragma once

#include "device/operand_tile.h"

namespace gemmtune {

template <bool WHOLE, int LINES, int BK>
struct RingLines {
    static constexpr int kPiece = BK * 2, kPitch = kPiece + (WHOLE ? 0 : 16);  // of a line: chunk, in a slot
    static constexpr int kLanes = BK / 8, kOn = 32 / kLanes;  // lanes along a line, lines side by side
    static constexpr int kTurns = (least(LINES, 8) + kOn - 1) / kOn;
    static_assert(BK % 64 == 0 && BK <= 256, "whole widths of the banks; a line's copies are a warp's at most");
    static_assert(LINES <= 8 || LINES % 8 == 0, "every turn has its eighth lines");

    // Starts at line `first` of `lines`. Lines beyond the last are neither copied nor set to zero: their values
    // reach only sums that are dropped, because each line contributes to its own sums alone.
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

    // Starts this lane's copies of a chunk of an operand that ends at `end`; elements beyond a line's end are
    // zero. (Bytes of a word before its line are read as well: they lie in the operand's allocation, which
    // begins at a multiple of 16 bytes.)
    GEMMTUNE_DEVICE void copy(char* to, int chunk, const char* end) const {
        const int elements = k_ - chunk * BK;  // left in the line, whose bytes may exceed an int
        const i64 at = static_cast<i64>(chunk) * kPiece;
        if (elements < kPitch / 2) copy_some(to, elements * 2, at, end);
        else copy_whole(to, at);
    }

    // The lane's eight elements at step `step` along k, from 8 member on, of its line among the eight from
    // `first` on.
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
    const char *from_[kTurns], *from_last_;  // first source of each turn in chunk 0; that of lines' last words
    int to_[kTurns], to_last_;               // their offsets in a slot
    i64 eight_;                              // bytes from a line to the eighth after it
    int lines_, k_, start_, ld_;             // lines that exist; elements of a line; elements from a 16-byte
                                             // boundary to line 0's start; leading dimension modulo 8
    int left_, left_last_;                   // lines from the lane's first on, for turns and for last words
    int read_, bits_;                        // where in a slot the lane reads; its shift within a word, in bits

    static GEMMTUNE_DEVICE int unit() { return lane_index() % kLanes; }
    static GEMMTUNE_DEVICE int line_of(int turn) { return lane_index() / kLanes + turn * kOn; }
    // The value that is XORed into the numbers of a line's words.
    static GEMMTUNE_DEVICE int exchanged(int line) { return WHOLE ? line % 2 * 4 : 0; }
    GEMMTUNE_DEVICE int shift_of(int line) const { return WHOLE ? 0 : ((start_ + line * ld_) & 7) * 2; }
    // (The same as order_of(), which starts from a line's number; the shift is known here.)
    GEMMTUNE_DEVICE int place_of(int line) const {
        const int shift = shift_of(line) / 2;
        return WHOLE || LINES < 8 || ld_ % 2 == 0 ? line : line / 8 * 8 + shift / 2 + shift % 2 * 4;
    }

    // Copies a chunk of which every line exists up to the chunk's end, and beyond it as far as the words reach.
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

    // Copies the last chunks of the lines, with `left` bytes of each line left.
    GEMMTUNE_DEVICE void copy_some(char* to, int left, i64 at, const char* end) const {
        GEMMTUNE_UNROLL
        for (int turn = 0; turn < kTurns; ++turn) {
            const int words = unit() * 16, here = left + shift_of(line_of(turn)) - words;
            copy_words<8>(to + to_[turn], left_ - turn * kOn, from_[turn], words, here, at, end);
        }
        const int here = left + shift_of(lane_index()) - kPiece;
        if (!WHOLE) copy_words<32>(to + to_last_, left_last_, from_last_, kPiece, here, at, end);
    }

    // Copies a word of every STEP-th of `lines` lines, `on` bytes after the first word of its line's piece;
    // `here` bytes of the line are left from there on.
    template <int STEP>
    GEMMTUNE_DEVICE void copy_words(char* to, int lines, const char* from, int on, int here, i64 at,
                                    const char* end) const {
        const int bytes = here < 0 ? 0 : least(here, 16);
        const char* source = here > 0 ? from + at : from - on;  // zero bytes: any address in the operand
        const i64 step = STEP / 8 * eight_;
        if (!WHOLE && bytes % 16 != 0) {  // the operand's last words may extend beyond it
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
