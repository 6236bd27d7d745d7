// The tile of one operand on its way from global memory to mma.h's fragments: LINES rows of A (columns of B) by
// BK of k, copied asynchronously to shared memory and read from there by whole warps. A *row* here is a
// contiguous run in global memory: with ALONG_K a line, otherwise all lines at one k. Rows are copied in
// *chunks* of 16 bytes.
//
// kAt16: rows start at multiples of 16 bytes. They are stored one after another, and the chunk index of a row
// is XORed with some bits of the row's number (swizzle()), so that a warp's simultaneous reads lie in different
// banks:
//   load_matrices() reads one chunk of each of 8 rows. A row of 8 chunks spans all banks, and 8 rows from a
//   multiple of 8 on read the chunks c ^ 0, ..., c ^ 7. Two rows of 4 chunks share a span of the banks, so
//   pairs of rows are told apart by r / 2.
//   fp32 across k is read by words, 8 lines (2 chunks) of each of 4 rows: c ^ 0, 2, 4, 6 are four different
//   pairs of chunks.
// A copy writes whole rows, 8 chunks of one row (or 4 of each of two neighbours) at a time; any XOR only
// permutes these.
//
// kAt4: fp32 whose rows start at multiples of 4 bytes only is copied word by word into the same places.
//
// kAnywhere: 16-bit elements whose rows start at any element, as in a matrix of 2049 columns. A row is copied
// as the aligned 16-byte words that contain it, one more than its own length, so it keeps the shift of its
// start in shared memory. The shift is the same for all rows with the same number modulo 8. Fragments are
// assembled when they are read: from two words, by a funnel shift where the shift is odd. A lane's data begins
// q = shift / 2 words later than it would without a shift, so bank conflicts are avoided as follows:
//   Along k (DEEP, see read()) lane (group, member) reads word 4 member + q, and rows are an odd number of
//   chunks apart. The lanes fall onto eight groups of four banks, four lanes onto each group. place_of() orders
//   the eight rows of a group so that these four lanes have different q and therefore different banks.
//   Across k a lane reads element group + shift of the row that its member selects. The four rows of the four
//   members are placed next to each other, 8 banks apart, and 8 elements at any shift lie in at most 5 banks.
//
// GATED: lines of A are rows of two halves in turn (gated_rows.h).
#pragma once

#include "device/args.h"
#include "device/gated_rows.h"
#include "device/mma.h"

namespace gemmtune {

// The alignment class of rows: they start at multiples of 16 or of 4 bytes, or at any element.
enum Start { kAt16 = 0, kAt4 = 1, kAnywhere = 2 };

GEMMTUNE_DEVICE constexpr int least(int x, int y) { return x < y ? x : y; }

// The lower word of two after a right shift by 0 or 16 bits.
GEMMTUNE_DEVICE unsigned funnel(unsigned low, unsigned high, unsigned bits) {
    return static_cast<unsigned>((static_cast<u64>(high) << 32 | low) >> bits);
}

// The place of a kAnywhere row among the eight of its group, which lie an odd number of chunks apart. `shift`
// is row 0's start within 16 bytes and `ld` the stride from row to row, both in 16-bit elements. For an odd ld,
// rows in places that differ modulo 4 start in different words: even rows are in order, and an odd row lies
// four places after the even row with the same shift / 2. (An odd ld is its own inverse modulo 8.)
GEMMTUNE_DEVICE constexpr int order_of(int row, int shift, int ld) {
    if (ld % 2 == 0) return row;
    const int even = (row - (shift % 2 ? -ld : ld)) & 7;
    return row / 8 * 8 + (row % 2 ? 4 + even / 2 : row % 8 / 2);
}

// DEEP: if the rows of either operand are kAnywhere, both operands use the order along k that kAnywhere rows
// are read in. OF_B: the tile is B's; the two operands differ only in the order of an instruction's words.
template <typename T, bool OF_B, bool ALONG_K, int START, bool DEEP, int LINES, int BK, int THREADS, bool GATED = false>
struct OperandTile {
    static constexpr int kSize = static_cast<int>(sizeof(T));
    static constexpr bool kShifted = START == kAnywhere, kWide = kSize == 4;
    static constexpr int kRows = ALONG_K ? LINES : BK, kRowBytes = (ALONG_K ? BK : LINES) * kSize;
    static constexpr int kChunks = kRowBytes / 16;
    // kAnywhere: along k an odd number of chunks, across k 8 words more than a multiple of the banks (or of
    // half of them).
    static constexpr int kPitch = kRowBytes + (kShifted ? ALONG_K ? 16 : 32 : 0);
    static constexpr int kBytes = kRows * kPitch;
    static constexpr int kStep = 32 / kSize;  // k of one instruction
    // The copying threads form kLanes units of a row by kPass rows.
    static constexpr int kUnit = START == kAt4 ? 4 : 16, kUnits = kRowBytes / kUnit;
    static constexpr int kLanes = least(kUnits, START == kAt4 ? 32 : 8), kPass = THREADS / kLanes;
    static constexpr int kTurns = kPass < kRows ? kRows / kPass : 1;  // passes that cover all rows
    static constexpr int kSides = kPass > kRows ? kPass / kRows : 1;  // groups of lanes side by side in a row
    static constexpr int kCopies = kRows * kUnits / THREADS;
    // Whether a thread's rows in all passes have the same swizzle as its row in the first pass.
    static constexpr bool kAlike = kPass % 8 == 0 && (kShifted || ALONG_K || !DEEP);
    static_assert(kWide ? !kShifted && !DEEP : START != kAt4, "how rows of a type may start");
    static_assert(kTurns * kPass == kRows * kSides && kCopies % kTurns == 0, "a tile is whole passes");
    static_assert(kCopies * THREADS == kRows * kUnits && THREADS % 64 == 0, "a tile is whole passes");
    static_assert(!GATED || (ALONG_K && !kShifted && kPass % 2 == 0), "passes are whole pairs of lines");
    static_assert(kChunks % least(kChunks, 8) == 0 && kChunks >= 4, "4 chunks, or 8s of them");

    // The value that is XORed into the chunk numbers of a row.
    static GEMMTUNE_DEVICE constexpr int swizzle(int row) {
        if (kShifted) return 0;
        if (kWide && !ALONG_K) return row % 4 * 2;
        if (DEEP && ALONG_K) return kChunks >= 8 ? row % 2 * 4 : 0;
        if (DEEP) return kChunks >= 8 ? row % 2 + row / 8 % 4 * 2 : row / 8 % 4;
        return kChunks >= 8 ? row % 8 : row / 2 % 4;
    }
    // The place of a row of a kShifted operand: along k by its shift, across k next to the rows 8, 16 and 24
    // further on. `shift` is row 0's, `ld` the stride from row to row in elements.
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
    int shift_, ld_;    // elements from a chunk's start to row 0's start; ld modulo 8
    int row_, unit_;    // row and unit of this thread's first copy
    int to_;            // that copy's offset in the tile
    int own_, last_;    // bytes from a chunk's start to the row's: of row_, of the last chunk's row
    int lines_, left_;  // lines in the operand, at most LINES + 1; k from the next tile on
    i64 pass_, tile_;   // bytes from pass to pass, and from tile to tile
    const char *from_, *from_last_;

    GEMMTUNE_DEVICE int shift_of(int row) const { return (shift_ + row * ld_) & 7; }

public:
    // Starts at line `line` of `lines` and at p of k (a multiple of BK); `ld` is the stride of the other index.
    GEMMTUNE_DEVICE OperandTile(const void* operand, i64 batch, i64 ld, i64 line, i64 lines, i64 p, i64 k) {
        const int t = static_cast<int>(thread_index());
        const char* first = static_cast<const char*>(operand);
        first += (batch + (ALONG_K ? (GATED ? line / 2 : line) * ld + p : p * ld + line)) * kSize;
        shift_ = kShifted ? static_cast<int>(reinterpret_cast<u64>(first) % 16) / kSize : 0;
        ld_ = static_cast<int>(ld & 7);
        row_ = t / kLanes % kRows, unit_ = t % kLanes + t / kLanes / kRows * kLanes;
        to_ = offset_of(place_of(row_, shift_, ld_), row_, unit_);
        own_ = kShifted ? shift_of(row_) * kSize : 0, last_ = kShifted ? shift_of(t % kRows) * kSize : 0;
        const i64 there = lines - line;
        lines_ = there > LINES ? LINES + 1 : static_cast<int>(there), left_ = static_cast<int>(k - p);
        const i64 row_bytes = ld * kSize;
        pass_ = (GATED ? kPass / 2 : kPass) * row_bytes, tile_ = ALONG_K ? BK * kSize : BK * row_bytes;
        from_ = first + (GATED ? gated_line(row_, row_bytes, lines / 2 * row_bytes) : row_ * row_bytes);
        from_ += unit_ * kUnit - own_;
        from_last_ = first + t % kRows * row_bytes - last_ + kRowBytes;
    }

    // Whether the operand has all of the next tile and, if shifted, one more row: a shifted row's last word
    // extends into the row after it.
    GEMMTUNE_DEVICE bool whole() const {
        return lines_ >= LINES + (kShifted && ALONG_K) && left_ >= BK + (kShifted && !ALONG_K);
    }
    // Whether the operand has all of the next tile's k, and enough beyond it that every chunk with an element
    // of the tile lies in the operand. Then only lines can be missing, as in all but the last tiles of a block.
    GEMMTUNE_DEVICE bool deep() const { return left_ >= BK + 8; }
    GEMMTUNE_DEVICE void advance() { from_ += tile_, from_last_ += tile_, left_ -= BK; }

    // Start the copies of the next tile: copy_whole() of all of it (whole()), copy_lines() of the lines that
    // exist (deep()), copy_some() of what exists, with zeros beyond k. For lines beyond the operand the buffer
    // keeps its old contents: sums of those lines are not stored. A chunk that begins before its row is read
    // whole: it lies in the operand's allocation, which begins at a multiple of 16 bytes. The operand ends at
    // `end`. (Shifted rows use copy_first(), in a rolled loop, only near `end`: its arithmetic would double the
    // instructions of a step in GEMMs where most tiles are partial.)
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
    // Bytes of a row from the tile's first element on: along k up to 16 more than the tile's, if the row
    // continues.
    GEMMTUNE_DEVICE int row_bytes() const {
        return least(ALONG_K ? left_ : lines_, ALONG_K ? BK + 16 / kSize : LINES) * kSize;
    }
    // Bytes from this thread's first row to its last existing row.
    GEMMTUNE_DEVICE i64 furthest() const { return (least(rows(), kRows) - 1 - row_) / kPass * pass_; }
    // Bytes that exist of a row's unit `unit`; unit 0 begins `own` bytes before the row.
    GEMMTUNE_DEVICE int unit_bytes(int own, int unit) const {
        const int left = row_bytes() + own - unit * kUnit;
        return left <= 0 ? 0 : least(left, kUnit);
    }

    // The address in a tile of this thread's copy of row row_ + on, `beside` units after its first unit.
    GEMMTUNE_DEVICE char* place(char* to, int on, int beside) const {
        // (place_of() is additive here: across k, kPass is a power of two, so `on` and the first row's number
        // share no bits.)
        if (kAlike) return to + (to_ + place_of(on, 0, 0) * kPitch + beside * kUnit);
        return to + offset_of(row_ + on, row_ + on, unit_ + beside);
    }
    // The address of the additional last chunk of a shifted row.
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
    // A warp's fragments at step `step` along k, from line `line` of the tile on: 16 lines for each of TILES,
    // in four 32-bit words: lines 0-7 and 8-15, at the first and at the second half of the instruction's k.
    // DEEP: which elements of k are at these positions is arbitrary, as long as both operands agree. A lane
    // reads eight neighbours, from 8 member on, in two steps; each step has half of them.
    template <int TILES>
    GEMMTUNE_DEVICE void read(const char* tile, int line, int step, unsigned (&out)[TILES][4]) const {
        const int lane = lane_index(), group = lane / 4, member = lane % 4;
        const int pair = step / 2, half = step % 2;
        // The order of the words: A's first by lines, B's first by k.
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
