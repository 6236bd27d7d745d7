// One operand's tile on its way to mma.h's fragments: LINES rows of A (columns of B) by BK of k, copied
// from global to shared memory asynchronously and read from there by whole warps. A *row* here is a run that
// is contiguous in memory: a line, ALONG_K, else one k of every line. Rows are copied in chunks of 16 bytes.
//
// Rows that start at multiples of 16 bytes (kAt16) lie one after another, a row's chunks exchanged by an XOR
// with some bits of its number (swizzle()), so that what a warp reads at once lies in different banks:
//   load_matrices() has 8 rows of one chunk; a row of 8 chunks is as wide as all banks, and 8 rows from a
//   multiple of 8 on have c ^ 0, ..., c ^ 7. Of rows of 4 chunks two share a width, and r / 2 tells pairs of
//   them apart.
//   fp32 across k is read by words, 8 lines (2 chunks) of 4 rows: c ^ 0, 2, 4, 6 are four pairs of chunks.
// A copy writes whole rows, 8 chunks of one (or 4 of two neighbours) at a time: any XOR permutes those.
//
// fp32 that starts at multiples of 4 only (kAt4) is copied word by word into the same places.
//
// 16-bit elements that start anywhere (kAnywhere), as in a matrix of 2049 columns: a row is copied in the
// 16-byte words that it lies in, one more than its own length, and so keeps in shared memory the shift of
// its start, which is the same for every row with the same number modulo 8. Fragments are put together when
// they are read: two words and a funnel shift where the shift is odd. What a lane reads begins q = shift / 2
// words later than it would, so:
//   along k (DEEP, see read()) lane (group, member) reads word 4 member + q. The eight rows of a group lie
//   in an order (place_of()) in which four neighbours have different q, an odd number of chunks apart: their
//   lanes meet in the same four banks four at a time, and then each at its own q.
//   across k it reads elements group + shift of a row a member: the four rows are made neighbours, 8 banks
//   apart, and 8 elements at any shift lie in 5 of those.
#pragma once

#include "device/args.h"
#include "device/mma.h"

namespace gemmtune {

// Where rows start: at multiples of 16 or 4 bytes, or of an element.
enum Start { kAt16 = 0, kAt4 = 1, kAnywhere = 2 };

GEMMTUNE_DEVICE constexpr int least(int x, int y) { return x < y ? x : y; }

// The lower word of two, after a shift by 0 or 16 bits.
GEMMTUNE_DEVICE unsigned funnel(unsigned low, unsigned high, unsigned bits) {
    return static_cast<unsigned>((static_cast<u64>(high) << 32 | low) >> bits);
}

// In which of eight places a row lies that starts anywhere, an odd number of chunks apart: four neighbours
// have starts in different words. `shift` is row 0's start within 16 bytes, `ld` the way from row to row, in
// elements of 16 bits. (Even rows in order; an odd one four on from the even one whose shift has the same
// half. ld is its own inverse modulo 8.)
GEMMTUNE_DEVICE constexpr int order_of(int row, int shift, int ld) {
    if (ld % 2 == 0) return row;
    const int even = (row - (shift % 2 ? -ld : ld)) & 7;
    return row / 8 * 8 + (row % 2 ? 4 + even / 2 : row % 8 / 2);
}

// DEEP: where one of the operands starts anywhere, both have the order along k that it is read in. OF_B: the
// tile is B's; the two operands differ in the order of an instruction's words alone.
template <typename T, bool OF_B, bool ALONG_K, int START, bool DEEP, int LINES, int BK, int THREADS>
struct OperandTile {
    static constexpr int kSize = static_cast<int>(sizeof(T));
    static constexpr bool kShifted = START == kAnywhere, kWide = kSize == 4;
    static constexpr int kRows = ALONG_K ? LINES : BK, kRowBytes = (ALONG_K ? BK : LINES) * kSize;
    static constexpr int kChunks = kRowBytes / 16;
    // Along k an odd number of chunks, across k 8 words beyond whole widths of the banks (or half of one).
    static constexpr int kPitch = kRowBytes + (kShifted ? ALONG_K ? 16 : 32 : 0);
    static constexpr int kBytes = kRows * kPitch;
    static constexpr int kStep = 32 / kSize;  // of k: an instruction's
    // Threads are lanes of a row by rows of a pass.
    static constexpr int kUnit = START == kAt4 ? 4 : 16, kUnits = kRowBytes / kUnit;
    static constexpr int kLanes = least(kUnits, START == kAt4 ? 32 : 8), kPass = THREADS / kLanes;
    static constexpr int kTurns = kPass < kRows ? kRows / kPass : 1;  // passes to the last row
    static constexpr int kSides = kPass > kRows ? kPass / kRows : 1;  // groups of lanes beside each other
    static constexpr int kCopies = kRows * kUnits / THREADS;
    // Whether a row of every pass has its chunks exchanged as the first one's has.
    static constexpr bool kAlike = kPass % 8 == 0 && (kShifted || ALONG_K || !DEEP);
    static_assert(kWide ? !kShifted && !DEEP : START != kAt4, "how rows of a type may start");
    static_assert(kTurns * kPass == kRows * kSides && kCopies % kTurns == 0, "a tile is whole passes");
    static_assert(kCopies * THREADS == kRows * kUnits && THREADS % 64 == 0, "a tile is whole passes");
    static_assert(kChunks % least(kChunks, 8) == 0 && kChunks >= 4, "4 chunks, or 8s of them");

    // What chunk numbers of a row are changed by.
    static GEMMTUNE_DEVICE constexpr int swizzle(int row) {
        if (kShifted) return 0;
        if (kWide && !ALONG_K) return row % 4 * 2;
        if (DEEP && ALONG_K) return kChunks >= 8 ? row % 2 * 4 : 0;
        if (DEEP) return kChunks >= 8 ? row % 2 + row / 8 % 4 * 2 : row / 8 % 4;
        return kChunks >= 8 ? row % 8 : row / 2 % 4;
    }
    // Where a row lies of kShifted operands: along k by its shift, across k beside those 8 and 16 and 24 on.
    // `shift` is row 0's, `ld` the elements from row to row.
    static GEMMTUNE_DEVICE constexpr int place_of(int row, int shift, int ld) {
        if (!kShifted) return row;
        if (!ALONG_K) return row / 32 * 32 + row % 8 * 4 + row / 8 % 4;
        return order_of(row, shift, ld);
    }
    static GEMMTUNE_DEVICE constexpr int offset_of(int place, int row, int unit) {
        constexpr int kParts = 16 / kUnit;
        return place * kPitch + (unit / kParts ^ swizzle(row)) * 16 + unit % kParts * kUnit;
    }

private:
    int shift_, ld_;    // elements from a chunk's start to row 0's; ld modulo 8
    int row_, unit_;    // this thread's first copy
    int to_;            // where in the tile it goes
    int own_, last_;    // bytes from the first chunk of its row, and of copy_last()'s, to the row's start
    int lines_, left_;  // lines there are, as far as they matter; k from the next tile on
    i64 pass_, tile_;   // bytes from a pass's rows to the next one's, and from tile to tile
    const char *from_, *from_last_;

    GEMMTUNE_DEVICE int shift_of(int row) const { return (shift_ + row * ld_) & 7; }

public:
    // From line `line` of `lines` and p (whole tiles) of k on; `ld` steps the index that is not contiguous.
    GEMMTUNE_DEVICE OperandTile(const void* operand, i64 batch, i64 ld, i64 line, i64 lines, i64 p, i64 k) {
        const int t = static_cast<int>(thread_index());
        const char* first = static_cast<const char*>(operand);
        first += (batch + (ALONG_K ? line * ld + p : p * ld + line)) * kSize;
        shift_ = kShifted ? static_cast<int>(reinterpret_cast<u64>(first) % 16) / kSize : 0;
        ld_ = static_cast<int>(ld & 7);
        row_ = t / kLanes % kRows, unit_ = t % kLanes + t / kLanes / kRows * kLanes;
        to_ = offset_of(place_of(row_, shift_, ld_), row_, unit_);
        own_ = kShifted ? shift_of(row_) * kSize : 0, last_ = kShifted ? shift_of(t % kRows) * kSize : 0;
        const i64 there = lines - line;
        lines_ = there > LINES ? LINES + 1 : static_cast<int>(there), left_ = static_cast<int>(k - p);
        const i64 row_bytes = ld * kSize;
        pass_ = kPass * row_bytes, tile_ = ALONG_K ? BK * kSize : BK * row_bytes;
        from_ = first + row_ * row_bytes - own_ + unit_ * kUnit;
        from_last_ = first + t % kRows * row_bytes - last_ + kRowBytes;
    }

    // Whether all of the next tile is there, and a row after it: shifted rows end in another's words.
    GEMMTUNE_DEVICE bool whole() const {
        return lines_ >= LINES + (kShifted && ALONG_K) && left_ >= BK + (kShifted && !ALONG_K);
    }
    // Whether all of the next tile's k is there, and enough after it that every chunk with an element of the
    // tile is the operand's: what is missing are lines, as it is for all tiles of a block but the last ones.
    GEMMTUNE_DEVICE bool deep() const { return left_ >= BK + 8; }
    GEMMTUNE_DEVICE void advance() { from_ += tile_, from_last_ += tile_, left_ -= BK; }

    // Starts the copies of the next tile: of all of it, where it is whole(); of the lines that there are,
    // where it is deep(); else of what is there, and zeros beyond k. (Near the operand's end one by one:
    // where most blocks' tiles are not whole, copy_first()'s arithmetic would double their steps.) Of lines
    // beyond the operand the buffer keeps what it had: so do sums that nobody stores. A chunk that begins
    // before its row does is read whole: it lies in the operand's own allocation, which begins at a multiple
    // of 16 bytes. The operand ends at `end`.
    GEMMTUNE_DEVICE void copy_whole(char* to) const { copy_deep<true>(to); }
    GEMMTUNE_DEVICE void copy_lines(char* to) const { copy_deep<false>(to); }
    GEMMTUNE_DEVICE void copy_some(char* to, const char* end) const {
        GEMMTUNE_UNROLL
        for (int side = 0; side < kCopies / kTurns; ++side) {
            const int beside = side * kSides * kLanes, bytes = unit_bytes(own_, unit_ + beside);
            const char* source = from_ + beside * kUnit;
            const auto size = [&](int on) { return row_ + on < rows() ? bytes : 0; };
            const auto missing = [&](int on) { return ALONG_K && row_ + on >= lines_; };
            if (!kShifted || (bytes % 16 != 0 && source + furthest() + 16 > end)) {
                GEMMTUNE_ROLL
                for (int on = 0; on < kTurns * kPass && !missing(on); on += kPass, source += pass_) {
                    if (kUnit != 16) copy_async4(place(to, on, beside), source, size(on));
                    else copy_first(place(to, on, beside), source, size(on), end);
                }
            } else {
                GEMMTUNE_UNROLL
                for (int on = 0; on < kTurns * kPass; on += kPass, source += pass_) {
                    if (!missing(on)) copy_async16(place(to, on, beside), source, size(on));
                }
            }
        }
        GEMMTUNE_ROLL
        for (int on = 0; kShifted && on < kRows; on += THREADS) {
            const int row = on + static_cast<int>(thread_index());
            if (row >= (ALONG_K ? least(lines_, kRows) : kRows)) return;
            const int bytes = row < rows() ? unit_bytes(last_, kChunks) : 0;
            copy_first(last_place(to, row), from_last_ + on / kPass * pass_, bytes, end);
        }
    }

private:
    GEMMTUNE_DEVICE int rows() const { return ALONG_K ? lines_ : least(left_, BK); }
    // Of a row from the tile's first element on; along k more than the tile has of it, where it goes on.
    GEMMTUNE_DEVICE int row_bytes() const {
        return least(ALONG_K ? left_ : lines_, ALONG_K ? BK + 16 / kSize : LINES) * kSize;
    }
    // Bytes from this thread's first row to its last one that is there.
    GEMMTUNE_DEVICE i64 furthest() const { return (least(rows(), kRows) - 1 - row_) / kPass * pass_; }
    // Bytes of a row's unit, whose first one begins `own` bytes before the row.
    GEMMTUNE_DEVICE int unit_bytes(int own, int unit) const {
        const int left = row_bytes() + own - unit * kUnit;
        return left <= 0 ? 0 : least(left, kUnit);
    }

    // Where in a tile this thread's copy of the row `on` rows on goes, `beside` units beside its first.
    GEMMTUNE_DEVICE char* place(char* to, int on, int beside) const {
        // (Across k passes are powers of two that are no part of the first row's number.)
        if (kAlike) return to + (to_ + place_of(on, 0, 0) * kPitch + beside * kUnit);
        return to + offset_of(row_ + on, row_ + on, unit_ + beside);
    }
    // And a row's last chunk, where its start is shifted.
    GEMMTUNE_DEVICE char* last_place(char* to, int row) const {
        return to + place_of(row, shift_, ld_) * kPitch + kRowBytes;
    }

    template <bool WHOLE>
    GEMMTUNE_DEVICE void copy_deep(char* to) const {
        GEMMTUNE_UNROLL
        for (int side = 0; side < kCopies / kTurns; ++side) {
            const int beside = side * kSides * kLanes;
            const char* source = from_ + beside * kUnit;
            GEMMTUNE_UNROLL
            for (int on = 0; on < kTurns * kPass; on += kPass, source += pass_) {
                const bool there = ALONG_K ? row_ + on < lines_
                                           : (unit_ + beside) * kUnit < lines_ * kSize + own_;
                if (!WHOLE && !there) continue;
                if (kUnit == 16) copy_async16(place(to, on, beside), source);
                else copy_async4(place(to, on, beside), source);
            }
        }
        if (!kShifted || last_ == 0) return;
        GEMMTUNE_UNROLL
        for (int on = 0; on < kRows; on += THREADS) {
            const int row = on + static_cast<int>(thread_index());
            if (kRows % THREADS && row >= kRows) return;
            const bool there = ALONG_K ? row < lines_ : kRowBytes < lines_ * kSize + last_;
            if (WHOLE || there) copy_async16(last_place(to, row), from_last_ + on / kPass * pass_);
        }
    }

public:
    // A warp's fragments of step `step` along k from the tile's line `line` on: of 16 lines each, in words of
    // 4 bytes: of lines 0-7 and 8-15, at the instruction's first places along k and at its last.
    // DEEP: which elements stand at those places is free, as long as it is the same for both operands: a
    // lane's of two steps are eight neighbours, 8 member on, of which this step has a half.
    template <int TILES>
    GEMMTUNE_DEVICE void read(const char* tile, int line, int step, unsigned (&out)[TILES][4]) const {
        const int lane = lane_index(), group = lane / 4, member = lane % 4;
        const int pair = step / 2, half = step % 2;
        // A's words are lines first, B's are places first.
        constexpr int kLine = OF_B ? 2 : 1, kPlace = OF_B ? 1 : 2;
        const int matrix_line = lane / 8 / kLine % 2 * 8, matrix_place = lane / 8 / kPlace % 2;
        GEMMTUNE_UNROLL
        for (int i = 0; i < TILES; ++i) {
            if constexpr (kShifted && ALONG_K) {
                const int shift = shift_of(group);
                const int place = line + i * 16 + place_of(group, shift_, ld_);
                GEMMTUNE_UNROLL
                for (int h = 0; h < 2; ++h) {
                    const int word = pair * 16 + member * 4 + half * 2 + shift / 2;
                    const char* const at = tile + (place + 8 * h) * kPitch + word * 4;
                    const unsigned bits = static_cast<unsigned>(shift % 2) * 16;
                    const unsigned middle = read_shared<unsigned>(at + 4);
                    out[i][h * kLine] = funnel(read_shared<unsigned>(at), middle, bits);
                    out[i][h * kLine + kPlace] = funnel(middle, read_shared<unsigned>(at + 8), bits);
                }
            } else if constexpr (kShifted) {
                GEMMTUNE_UNROLL
                for (int part = 0; part < 4; ++part) {
                    unsigned both = 0;
                    GEMMTUNE_UNROLL
                    for (int e = 0; e < 2; ++e) {
                        const int row = half * 4 + part / kPlace % 2 * 2 + e;
                        const int element = line + i * 16 + part / kLine % 2 * 8 + group + shift_of(row);
                        const char* const at = tile + (pair * 32 + row * 4 + member) * kPitch + element * 2;
                        both |= static_cast<unsigned>(read_shared<unsigned short>(at)) << 16 * e;
                    }
                    out[i][part] = both;
                }
            } else if constexpr (DEEP && ALONG_K) {
                GEMMTUNE_UNROLL
                for (int h = 0; h < 2; ++h) {
                    const int row = line + i * 16 + h * 8 + group;
                    const char* const at = tile + offset_of(row, row, pair * 4 + member) + half * 8;
                    const u64 two = read_shared<u64>(at);
                    out[i][h * kLine] = static_cast<unsigned>(two);
                    out[i][h * kLine + kPlace] = static_cast<unsigned>(two >> 32);
                }
            } else if constexpr (ALONG_K) {
                const int row = line + i * 16 + matrix_line + lane % 8;
                const int chunk = (step * 2 + matrix_place) ^ swizzle(lane % 8);
                load_matrices<false>(tile + row * kPitch + chunk * 16, out[i]);
            } else if constexpr (!kWide) {
                const int r = lane % 8;
                const int row = DEEP ? r / 2 * 8 + r % 2 + matrix_place * 2 : matrix_place * 8 + r;
                const int chunk = (line + i * 16 + matrix_line) / 8;
                const int on = DEEP ? pair * 32 + half * 4 : step * 16;
                load_matrices<true>(tile + (row + on) * kPitch + (chunk ^ swizzle(row)) * 16, out[i]);
            } else {
                GEMMTUNE_UNROLL
                for (int part = 0; part < 4; ++part) {
                    const int row = step * 8 + part / kPlace % 2 * 4 + member;
                    const int at = line + i * 16 + part / kLine % 2 * 8 + group;
                    const int place = row * kPitch + (at / 4 ^ swizzle(member)) * 16 + at % 4 * 4;
                    out[i][part] = read_shared<unsigned>(tile + place);
                }
            }
        }
    }
};

}  // namespace gemmtune
