// Products with few columns of B by tensor cores, both operands contiguous along k and A read once: as
// skinny_mma.h, but what is in flight lies in shared memory, which holds several times what registers do, and
// is asked for in long runs of a row, which the memory answers sooner than 64 bytes of many.
//
// A block has ROWS rows of A and all columns; its WARPS warps share k, BK elements (a chunk) at a time by
// turns. A warp has a ring of SLOTS chunks of its own, of A's rows and of B's columns, filled by copies that
// nobody waits for until their turn: no warp waits for another before the sums are added.
//
// A's rows are the instruction's columns (eight at a time), B's columns its rows (sixteen). An instruction
// adds products over k in any order, as long as A and B agree: so a lane reads 16 contiguous bytes of a line,
// eight elements, and hands them to two instructions, two elements at each of their places along k.
//
// WHOLE: lines start at multiples of 16 bytes and are whole numbers of them; neighbouring lines have their
// halves of 128 bytes exchanged, so that the lines that are read at once lie in different banks. Else a line
// is copied in the 16-byte words that it lies in, one more than its own length, and keeps in shared memory
// the shift of its start, which is the same for every eighth line; words are put together when they are read.
// (operand_tile.h: in an order in which what a warp reads lies in different banks, too, where their leading
// dimension is odd.)
#pragma once

#include "epilogue.h"
#include "operand_tile.h"

namespace gemmtune {

template <typename TYPES, bool WHOLE, int COLUMNS, int ROWS, int BK, int SLOTS, int WARPS>
struct SkinnyRing {
    using T = typename TYPES::Input;
    static constexpr int kThreads = 32 * WARPS, kMinBlocks = 0;
    static constexpr int kGroups = ROWS / 8, kTiles = (COLUMNS + 15) / 16, kDeep = 32;  // of a step along k
    static constexpr int kUnits = BK / 8 + (WHOLE ? 0 : 1);           // 16 bytes, of a line in a slot
    static constexpr int kPitch = BK * 2 + (WHOLE ? 0 : 16);          // from a line to the next
    static constexpr int kSlot = (ROWS + COLUMNS) * kPitch;
    static constexpr int kSumsPitch = ROWS + 8, kPart = COLUMNS * kSumsPitch;  // floats; of a warp's sums
    static constexpr int kRings = WARPS * SLOTS * kSlot, kParts = WARPS * kPart * 4;
    static constexpr int kSharedBytes = kRings > kParts ? kRings : kParts;
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert(ROWS % 8 == 0 && BK % 64 == 0 && SLOTS >= 2, "whole groups, whole widths of the banks");
    static_assert(BK <= 256, "a line's copies are a warp's at most");
    static_assert(COLUMNS <= 8 || COLUMNS % 8 == 0, "whole halves of tiles");

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Task task(args);
        if (task.beyond(args)) return;
        const int warp = warp_index();
        const i64 first = static_cast<i64>(block_x()) * ROWS;
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        const Lines<ROWS> a(args.a, task.batch * args.stride_a, args.lda, first, args.m, args.k);
        const Lines<COLUMNS> b(args.b, task.batch * args.stride_b, args.ldb, 0, args.n, args.k);
        char* const ring = shared + warp * SLOTS * kSlot;
        int next = mine.begin + warp, to = 0;
        const auto copy = [&] {
            if (next < mine.end) {
                a.copy(ring + to * kSlot, next, static_cast<const char*>(args.a) + args.a_bytes);
                b.copy(ring + to * kSlot + kA, next, static_cast<const char*>(args.b) + args.b_bytes);
            }
            commit_copies();  // an empty group too: they are counted
            next += WARPS, to = to + 1 == SLOTS ? 0 : to + 1;
        };
        GEMMTUNE_UNROLL
        for (int slot = 0; slot < SLOTS - 1; ++slot) copy();
        Sums sum = {};
        int from = 0;
        for (int chunk = mine.begin + warp; chunk < mine.end; chunk += WARPS) {
            copy();
            wait_copies<SLOTS - 1>();
            warp_barrier();  // every lane's copies of this chunk are there
            multiply(ring + from * kSlot, a, b, sum);
            warp_barrier();  // every lane has read it: the next turn's copies take its place
            from = from + 1 == SLOTS ? 0 : from + 1;
        }
        wait_copies<0>();
        release_reduce(args);
        block_barrier();  // sums take the rings' place
        store(args, task, first, sum, reinterpret_cast<float*>(shared), warp);
    }

private:
    static constexpr int kA = ROWS * kPitch;  // where B's lines begin in a slot
    using Sums = float[kTiles][kGroups][4];

    // LINES lines of an operand from line `first` of `lines` on; those beyond the last are read as it.
    template <int LINES>
    struct Lines {
        const char* base;
        i64 pitch;
        int last, k, shift;  // from the first line on: the last line's number; a line's elements; where
                             // within 16 bytes the line starts that the lane reads, of eight,
        int place;           // and in which place it lies

        GEMMTUNE_DEVICE Lines(const void* operand, i64 batch, i64 ld, i64 first, int lines, int k) : k(k) {
            const i64 left = lines - 1 - first;
            base = static_cast<const char*>(operand) + (batch + first * ld) * 2;
            pitch = ld * 2, last = static_cast<int>(left < LINES ? left : LINES);
            shift = WHOLE ? 0 : shift_of(lane_index() / 4 % LINES);
            place = place_of(lane_index() / 4 % LINES);
        }

        GEMMTUNE_DEVICE int place_of(int line) const {
            if (WHOLE || LINES < 8) return line;
            const int start = static_cast<int>(reinterpret_cast<u64>(base) & 15) / 2;
            return order_of(line, start, static_cast<int>(pitch / 2 & 7));
        }

        GEMMTUNE_DEVICE int shift_of(int line) const {
            const u64 at = reinterpret_cast<u64>(base + (line < last ? line : last) * pitch);
            return static_cast<int>(at & 15);
        }

        // Starts this lane's copies of a chunk of an operand that ends at `end`; what lies beyond a line's end
        // is zero. (Places are worked out on the way: a chunk's are too many to be kept.)
        GEMMTUNE_DEVICE void copy(char* to, int chunk, const char* end) const {
            constexpr int kBytes = BK * 2, kLanes = BK / 8, kAll = LINES * kLanes, kOn = 32 / kLanes;
            constexpr int kTurns = 8 / kOn;  // copies of eight lines
            const int elements = k - chunk * BK;  // left; a line may have more bytes than an int counts
            const int left = (elements < 2 * BK ? elements : 2 * BK) * 2, unit = lane_index() % kLanes;
            const i64 at = static_cast<i64>(chunk) * kBytes;
            if (!WHOLE && left < kBytes + 16) return copy_some(to, left, at, end);
            int line = lane_index() / kLanes;
            const char* source = base + (line < last ? line : last) * pitch + at + unit * 16;
            const int there = !WHOLE || left > unit * 16 ? 16 : 0;
            if (!there) source = base;  // nothing is read of it
            int places[kTurns];
            GEMMTUNE_UNROLL
            for (int turn = 0; turn < kTurns; ++turn) places[turn] = place_of(line + turn * kOn);
            GEMMTUNE_UNROLL
            for (int begin = 0; begin < kAll; begin += 32) {
                if (kAll % 32 && begin + lane_index() >= kAll) break;
                const int turn = begin / 32, at_line = places[turn % kTurns] + turn / kTurns * 8;
                const int at_unit = WHOLE ? unit ^ line % 2 * 4 : unit;
                copy_async16(to + at_line * kPitch + at_unit * 16, WHOLE ? source : down(source), there);
                line += kOn;
                if (line <= last && there) source += kOn * pitch;
            }
            if (WHOLE) return;
            GEMMTUNE_UNROLL
            for (int begin = 0; begin < LINES; begin += 32) {  // what a line's shift makes it longer by
                const int i = begin + lane_index();
                if (LINES % 32 && i >= LINES) break;
                const char* const start = down(base + (i < last ? i : last) * pitch);
                copy_async16(to + place_of(i) * kPitch + kBytes, start + at + kBytes, 16);
            }
        }

    private:
        static GEMMTUNE_DEVICE const char* down(const char* p) {
            return p - static_cast<int>(reinterpret_cast<u64>(p) & 15);
        }

        // The last chunks of lines that start anywhere: `left` bytes from the chunk on. (What a word has
        // before its line is read as well: that lies in the operand's allocation, which begins at 16 bytes.)
        GEMMTUNE_DEVICE void copy_some(char* to, int left, i64 at, const char* end) const {
            GEMMTUNE_ROLL
            for (int i = lane_index(); i < LINES * kUnits; i += 32) {
                const int line = i / kUnits, unit = i % kUnits;
                const char* const start = base + (line < last ? line : last) * pitch;
                const char* const from = down(start);
                const int here = left + static_cast<int>(start - from) - unit * 16;
                copy_first(to + place_of(line) * kPitch + unit * 16,
                           here > 0 ? from + at + unit * 16 : from, here <= 0 ? 0 : here < 16 ? here : 16,
                           end);
            }
        }

    public:
        // The lane's eight elements at a step along k, 8 member on, of its line of the eight from `first` on.
        GEMMTUNE_DEVICE void read(const char* tile, int first, int step, unsigned (&out)[4]) const {
            const int member = lane_index() % 4;
            const char* const at = tile + (first + place) * kPitch;
            if constexpr (WHOLE) {
                const Words all = read_shared<Words>(at + ((step * 4 + member) ^ place % 2 * 4) * 16);
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) out[i] = all.at[i];
            } else {
                const char* const word = at + step * 64 + member * 16 + shift / 4 * 4;
                unsigned low = read_shared<unsigned>(word);
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const unsigned high = read_shared<unsigned>(word + 4 * i + 4);
                    out[i] = funnel(low, high, static_cast<unsigned>(shift % 4 * 8));
                    low = high;
                }
            }
        }
    };

    static GEMMTUNE_DEVICE void multiply(const char* slot, const Lines<ROWS>& a,
                                         const Lines<COLUMNS>& b, Sums& sum) {
        GEMMTUNE_UNROLL
        for (int step = 0; step < BK / kDeep; ++step) {
            unsigned column[kTiles][2][4] = {};  // of a tile: lines 0-7 and 8-15
            GEMMTUNE_UNROLL
            for (int half = 0; half < (COLUMNS + 7) / 8; ++half) {
                // Of fewer than eight: lanes of those that are not there read one that is.
                b.read(slot + kA, half * 8, step, column[half / 2][half % 2]);
            }
            GEMMTUNE_UNROLL
            for (int g = 0; g < kGroups; ++g) {
                unsigned row[4];
                a.read(slot, g * 8, step, row);
                GEMMTUNE_UNROLL
                for (int t = 0; t < kTiles; ++t) {
                    const unsigned(&low)[4] = column[t][0], (&high)[4] = column[t][1];
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; i += 2) {
                        const unsigned of_a[4] = {low[i], high[i], low[i + 1], high[i + 1]};
                        const unsigned of_b[2] = {row[i], row[i + 1]};
                        mma_16x8x16<T>(sum[t][g], of_a, of_b);
                    }
                }
            }
        }
    }

    // Adds the warps' sums and stores them, neighbours along D's columns by neighbouring threads.
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, Task task, i64 first, const Sums& sum,
                                      float* parts, int warp) {
        const int lane = lane_index();
        GEMMTUNE_UNROLL
        for (int half = 0; half < (COLUMNS + 7) / 8; ++half) {
            const int j = half * 8 + lane / 4;
            if (j >= COLUMNS) continue;
            GEMMTUNE_UNROLL
            for (int g = 0; g < kGroups; ++g) {
                const float(&of)[4] = sum[half / 2][g];
                float* const at = parts + warp * kPart + j * kSumsPitch + g * 8 + lane % 4 * 2;
                at[0] = of[half % 2 * 2], at[1] = of[half % 2 * 2 + 1];
            }
        }
        block_barrier();
        for (int i = static_cast<int>(thread_index()); i < ROWS * COLUMNS; i += kThreads) {
            const int at = i / ROWS * kSumsPitch + i % ROWS;
            float whole = 0.0f;
            GEMMTUNE_UNROLL
            for (int part = 0; part < WARPS; ++part) whole += parts[part * kPart + at];
            finish_slice<TYPES>(args, task, first + i % ROWS, i / ROWS, whole);
        }
    }
};

}  // namespace gemmtune
