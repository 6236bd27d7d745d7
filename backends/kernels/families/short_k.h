// GEMMs with a short k on tensor cores (mma.sync, sm_80 and later), both operands contiguous along k, rows of
// any alignment: a block computes BM rows by BN columns of D and has all of k of both operands in shared memory
// at once.
//
// There is no loop along k and no pipeline: every thread issues all its loads before it uses one, so a block
// waits for memory once. The limits are then the time until the first words arrive, the number of instructions
// that bring them to shared memory, and the stores of D.
//
// In shared memory a line has kPitch bytes: k rounded up to an instruction's sixteen elements, plus 16 bytes.
// That is an odd number of 16-byte words, so the eight rows of load_matrices() lie in different banks.
//
// Columns of B are the instruction's sixteen rows, and rows of A its eight columns: a lane's two neighbouring
// sums are then neighbours in a column of D, where D is contiguous.
#pragma once

#include "device/epilogue.h"
#include "device/mma.h"
#include "device/unaligned_loads.h"
#include "device/tile_order.h"

namespace gemmtune {

// LINES lines of K 16-bit elements on their way to shared memory, through the registers of THREADS threads.
//
// LANES threads go along a line, a *piece* of 16 bytes each, and kAtOnce lines are loaded at a time. kAtOnce is
// a multiple of eight, so all of a thread's pieces have the same offset within 16 bytes, whatever the leading
// dimension: the shift is computed once, and addresses advance by a constant.
//
// ALIGNED: lines start at multiples of 16 bytes. Otherwise a piece is assembled from the two aligned words that
// contain it. The operand's first such word may begin before the operand and its last may end after it, so the
// first line's first piece and the last line's last piece are read by eight lanes, an element each.
//
// The rest of a line beyond whole pieces is read by elements as well, by eight threads for each line.
template <bool ALIGNED, int K, int LINES, int LANES, int THREADS>
struct ShortLines {
    static constexpr int kPieces = K / 8, kRest = K % 8;
    static constexpr int kSteps = (K + 15) / 16, kPitch = kSteps * 32 + 16;
    static constexpr int kAtOnce = THREADS / LANES / 8 * 8, kRestAtOnce = THREADS / 8;
    static constexpr int kSides = (kPieces + LANES - 1) / LANES, kTurns = (LINES + kAtOnce - 1) / kAtOnce;
    static constexpr int kRestTurns = kRest ? (LINES + kRestAtOnce - 1) / kRestAtOnce : 0;
    static_assert(K > 0 && kAtOnce >= 8 && kRestAtOnce >= 16, "multiples of 8 lines at a time");

    // Starts at line `first` of `lines`. Lines beyond the last are not read; what shared memory holds in their
    // place contributes only to sums that are not stored.
    GEMMTUNE_DEVICE ShortLines(const void* operand, i64 batch, i64 ld, unsigned first, int lines) {
        const unsigned t = thread_index(), line = t / LANES, lane = t % LANES, element = t % 8;
        line_bytes_ = static_cast<unsigned>(ld) * 2;  // a tile's lines lie within 2^31 bytes
        const u64 before = static_cast<u64>(first) * static_cast<unsigned>(ld);
        base_ = static_cast<const char*>(operand) + (batch + static_cast<i64>(before)) * 2;
        const int here = lines - static_cast<int>(first);
        there_ = here < LINES ? here : LINES;
        begins_ = first == 0, ends_ = here <= LINES;
        if (kRest) {
            const unsigned at = (kPieces * 8 + element) * 2;
            from_rest_ = base_ + (t / 8 * line_bytes_ + at), to_rest_ = static_cast<int>(t / 8 * kPitch + at);
            left_rest_ = element < kRest ? there_ - static_cast<int>(t / 8) : 0;
        }
        if (kPieces == 0) return;
        const u64 from = reinterpret_cast<u64>(base_ + (line * line_bytes_ + lane * 16));
        from_ = reinterpret_cast<const char*>(ALIGNED ? from : from & ~static_cast<u64>(15));
        shift_ = static_cast<unsigned>(from) & 15, to_ = static_cast<int>(line * kPitch + lane * 16);
        room_ = kBusy || line < kAtOnce ? LINES - static_cast<int>(line) : 0, room_last_ = last_side(room_);
        left_first_ = left_ = room_ - (LINES - there_), left_last_ = last_side(left_);
        if (ALIGNED) return;
        if (begins_ && t == 0) left_first_ = 0;
        if (ends_ && lane == (kPieces - 1) % LANES) --left_last_;
        if (kTurns * kSides == 1 && left_first_ == 0) left_last_ = 0;  // the first piece is also the last
    }

    // Issues all of this thread's loads.
    GEMMTUNE_DEVICE void load() {
        const char* source = from_;
        GEMMTUNE_UNROLL
        for (int turn = 0; turn < kTurns * kSides; ++turn) {
            if (turn > 0 && turn % kSides == 0) source = opaque(source + kAtOnce * line_bytes_);
            const char* const from = source + turn % kSides * LANES * 16;
            const int left = turn % kSides == kSides - 1 ? left_last_ : left_;
            const bool wanted = turn / kSides * kAtOnce < left && (turn > 0 || ALIGNED || left_first_ > 0);
            low_[turn] = read16_if(wanted, from);
            if (!ALIGNED) high_[turn] = read16_if(wanted, from + 16);
        }
        GEMMTUNE_UNROLL
        for (int turn = 0; turn < kRestTurns; ++turn)
            rest_[turn] = read2_if(turn * kRestAtOnce < left_rest_,
                                   from_rest_ + static_cast<unsigned>(turn) * (kRestAtOnce * line_bytes_));
    }
    // Loads the elements of the operand's first piece (lanes 0-7) and last piece (lanes 8-15), by the warp that
    // stores the piece; store_ends() overwrites it.
    GEMMTUNE_DEVICE void load_ends() {
        if (ALIGNED || kPieces == 0) return;
        const unsigned warp = thread_index() / 32, lane = thread_index() % 32;
        const unsigned last = static_cast<unsigned>(there_) - 1;
        const unsigned owner = (last % kAtOnce * LANES + (kPieces - 1) % LANES) / 32;
        if (warp == 0 && begins_ && lane < 8) {
            to_end_ = static_cast<int>(lane * 2), end_ = read2_if(true, base_ + lane * 2);
        } else if (warp == owner && ends_ && lane / 8 == 1) {
            const unsigned at = (kPieces - 1) * 16 + lane % 8 * 2;
            to_end_ = static_cast<int>(last * kPitch + at);
            end_ = read2_if(true, base_ + (last * line_bytes_ + at));
        }
    }

    // Stores the pieces and elements to shared memory, and zeros beyond k.
    GEMMTUNE_DEVICE void store(char* tile) const {
        constexpr bool kFull = LINES % kAtOnce == 0 && kBusy && kPieces % LANES == 0;
        GEMMTUNE_UNROLL
        for (int turn = 0; turn < kTurns * kSides; ++turn) {
            char* const to = tile + to_ + (turn / kSides * kAtOnce * kPitch + turn % kSides * LANES * 16);
            const Words piece = ALIGNED ? low_[turn] : joined(low_[turn], high_[turn], shift_);
            const int room = turn % kSides == kSides - 1 ? room_last_ : room_;
            write_shared16_if(kFull || turn / kSides * kAtOnce < room, to, piece);
        }
        const int t = static_cast<int>(thread_index());
        GEMMTUNE_UNROLL
        for (int turn = 0; turn < kRestTurns; ++turn)
            if (LINES % kRestAtOnce == 0 || turn * kRestAtOnce + t / 8 < LINES)
                put(tile + to_rest_ + turn * kRestAtOnce * kPitch, rest_[turn]);
        if (kPieces + (kRest > 0) == 2 * kSteps) return;
        GEMMTUNE_UNROLL
        for (int line = 0; line < LINES; line += THREADS)
            if (line + t < LINES)
                write16(tile + (line + t) * kPitch + (2 * kSteps - 1) * 16, Words{{0, 0, 0, 0}});
    }
    // Stores a warp's elements of the operand's ends, after all of the warp has been through store().
    GEMMTUNE_DEVICE void store_ends(char* tile) const {
        if (!ALIGNED && kPieces > 0 && to_end_ >= 0) put(tile + to_end_, end_);
    }

private:
    static constexpr bool kBusy = kAtOnce * LANES == THREADS;  // all threads have pieces
    static constexpr int kHeld = kTurns * kSides ? kTurns * kSides : 1, kRests = kRestTurns ? kRestTurns : 1;
    Words low_[kHeld], high_[kHeld];
    unsigned short rest_[kRests], end_ = 0;
    const char *base_, *from_ = nullptr, *from_rest_ = nullptr;
    unsigned line_bytes_, shift_ = 0;
    int to_ = 0, to_rest_ = 0, to_end_ = -1;
    int there_;           // lines that exist
    bool begins_, ends_;  // whether the operand begins or ends in this tile
    // Lines from this thread's first on. left_: lines that exist, for its pieces; left_first_ for its first
    // piece, left_last_ for the last pieces of lines, left_rest_ for elements. room_: lines of the tile.
    int left_first_ = 0, left_ = 0, left_last_ = 0, left_rest_ = 0, room_ = 0, room_last_ = 0;

    // `lines` if the thread has a piece among lines' last ones, else 0.
    static GEMMTUNE_DEVICE int last_side(int lines) {
        const int lane = static_cast<int>(thread_index() % LANES);
        return kPieces % LANES == 0 || lane < kPieces % LANES ? lines : 0;
    }
    static GEMMTUNE_DEVICE void put(char* to, unsigned short element) {
        *reinterpret_cast<unsigned short*>(to) = element;
    }
};

template <typename TYPES, bool ALIGNED_A, bool ALIGNED_B, int K, int BM, int BN, int WM, int WN, int LANES,
          int WARPS>
struct ShortK {
    using T = typename TYPES::Input;
    using D = typename TYPES::D;
    static constexpr int kThreads = 32 * WARPS, kMinBlocks = 0;
    using LinesA = ShortLines<ALIGNED_A, K, BM, LANES, kThreads>;
    using LinesB = ShortLines<ALIGNED_B, K, BN, LANES, kThreads>;
    static constexpr int kPitch = LinesA::kPitch, kSteps = LinesA::kSteps;
    static constexpr int kSumsPitch = BM + 8;  // elements from column to column of the sums
    static constexpr int kOperands = (BM + BN) * kPitch, kSums = BN * kSumsPitch * 4;
    static constexpr int kSharedBytes = kOperands > kSums ? kOperands : kSums;
    static constexpr int kAcross = BM / WM, kMultiply = kAcross * (BN / WN);  // warps that multiply
    static constexpr int kGroup = 8;  // rows of tiles in a band (TileOrder)
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0, "whole warps");
    static_assert(kMultiply <= WARPS, "a warp has one part of the tile");
    static_assert(BM <= kThreads && BN <= kThreads && BM * BN % kThreads == 0, "whole columns at a time");

    // Addresses are computed while the previous launch ends.
    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Task task(args);
        i64 i, j;
        if (args.n <= BN) i = static_cast<i64>(block_x()) * BM, j = 0;  // no divisions
        else TileOrder<BM, BN, kGroup>(args).place(block_x(), i, j);
        LinesA a(args.a, task.batch * args.stride_a, args.lda, static_cast<unsigned>(i), args.m);
        LinesB b(args.b, task.batch * args.stride_b, args.ldb, static_cast<unsigned>(j), args.n);
        wait_for_launches();
        if (task.beyond(args)) return;
        a.load(), b.load();
        a.load_ends(), b.load_ends();
        warp_barrier();  // keeps the compiler from delaying loads until after another's use
        a.store(shared), b.store(shared + BM * kPitch);
        warp_barrier();  // pieces that ends replace are there
        a.store_ends(shared), b.store_ends(shared + BM * kPitch);
        block_barrier();
        const Finish<TYPES, 1> here(args, task.batch, i, j);
        const int warp = warp_index(), row = warp % kAcross * WM, column = warp / kAcross * WN;
        Sums sum;  // in warps that multiply
        if (warp < kMultiply) multiply(shared, row, column, sum);
        block_barrier();  // sums take the operands' place
        if (warp < kMultiply) {
            if (here.plain) lay_out<D>(sum, args.alpha, row, column, shared);
            else lay_out<float>(sum, 1.0f, row, column, shared);
        }
        block_barrier();
        if (here.plain) {
            if (wide(here)) store_wide(here, shared);
            else store<sizeof(D)>(here, shared);
        } else {
            finish(here, reinterpret_cast<float*>(shared));
            block_barrier();
            store<4>(here, shared);
        }
    }

private:
    static constexpr int kTilesM = WM / 16, kTilesN = WN / 16;
    using Sums = float[kTilesN][2 * kTilesM][4];
    struct Fragments {
        unsigned rows[kTilesM][4], columns[kTilesN][4];
    };

    // A warp's main loop over all of k. The next step's fragments are loaded while the current step is
    // multiplied.
    static GEMMTUNE_DEVICE void multiply(const char* shared, int row, int column, Sums& sum) {
        const int lane = lane_index();
        const char* const of_a = shared + (row + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 16;
        const char* const of_b = shared + (BM + column + lane % 16) * kPitch + lane / 16 * 16;
        GEMMTUNE_UNROLL
        for (int at = 0; at < kTilesN * kTilesM * 8; ++at)
            sum[at / (kTilesM * 8)][at / 4 % (2 * kTilesM)][at % 4] = 0.0f;
        Fragments fragments[2];
        const auto read = [&](int step, Fragments& to) {
            GEMMTUNE_UNROLL
            for (int z = 0; z < kTilesM; ++z)
                load_matrices<false>(of_a + z * 16 * kPitch + step * 32, to.rows[z]);
            GEMMTUNE_UNROLL
            for (int z = 0; z < kTilesN; ++z)
                load_matrices<false>(of_b + z * 16 * kPitch + step * 32, to.columns[z]);
        };
        read(0, fragments[0]);
        GEMMTUNE_UNROLL
        for (int step = 0; step < kSteps; ++step) {
            const Fragments& now = fragments[step % 2];
            if (step + 1 < kSteps) read(step + 1, fragments[(step + 1) % 2]);
            GEMMTUNE_UNROLL
            for (int z = 0; z < kTilesN; ++z) {
                GEMMTUNE_UNROLL
                for (int h = 0; h < 2 * kTilesM; ++h) {
                    const unsigned across[2] = {now.rows[h / 2][h % 2 * 2], now.rows[h / 2][h % 2 * 2 + 1]};
                    mma_16x8x16<T>(sum[z][h], now.columns[z], across);
                }
            }
        }
    }

    // Stores a warp's sums to shared memory as E, column by column of D. (No bank conflicts: with this pitch
    // the groups of four lanes of eight columns lie in different banks.)
    template <typename E>
    static GEMMTUNE_DEVICE void lay_out(const Sums& sum, float scale, int row, int column, char* shared) {
        const int lane = lane_index();
        E* const to = reinterpret_cast<E*>(shared) + (column + lane / 4) * kSumsPitch + row + lane % 4 * 2;
        GEMMTUNE_UNROLL
        for (int at = 0; at < kTilesN * kTilesM * 4; ++at) {
            const int z = at / (kTilesM * 4), h = at / 2 % (2 * kTilesM), half = at % 2;
            const float(&pair)[4] = sum[z][h];
            const E two[2] = {narrow<E>(scale * pair[2 * half]), narrow<E>(scale * pair[2 * half + 1])};
            E* const place = to + (z * 16 + half * 8) * kSumsPitch + h * 8;
            if constexpr (sizeof(E) == 2) {
                *reinterpret_cast<unsigned*>(place) = Word<E>::pack(two);
            } else {
                const unsigned words[2] = {Word<E>::pack(two), Word<E>::pack(two + 1)};
                write8(place, words);
            }
        }
    }

    // Applies the epilogue to the sums in shared memory; an element of D replaces the first bytes of its sum.
    static GEMMTUNE_DEVICE void finish(const Finish<TYPES, 1>& here, float* sums) {
        constexpr int kApart = kThreads / BM, kEach = BN / kApart, kAtOnce = kEach < 8 ? kEach : 8;
        const int row = static_cast<int>(thread_index() % BM), first = static_cast<int>(thread_index() / BM);
        GEMMTUNE_ROLL
        for (int on = 0; on < kEach; on += kAtOnce) {
            const int column = first + on * kApart;
            float* const at = sums + column * kSumsPitch + row;
            float sum[kAtOnce];
            GEMMTUNE_UNROLL
            for (int n = 0; n < kAtOnce; ++n) sum[n] = at[n * kApart * kSumsPitch];
            here.results(row, column, kApart, sum);
            GEMMTUNE_UNROLL
            for (int n = 0; n < kAtOnce; ++n)
                *reinterpret_cast<D*>(at + n * kApart * kSumsPitch) = narrow<D>(sum[n]);
        }
    }

    static GEMMTUNE_DEVICE bool wide(const Finish<TYPES, 1>& here) {
        return ((reinterpret_cast<u64>(here.d) | static_cast<u64>(here.args.d_column) * sizeof(D)) & 15) == 0;
    }
    // How D is stored: threads along a column, UNIT elements each; columns from a thread's to its next;
    // iterations over columns; and how many of these are read before they are stored.
    template <int UNIT>
    struct Columns {
        static constexpr int kLanes = BM / UNIT, kApart = kThreads / kLanes;
        static constexpr int kTurns = kApart < BN ? BN / kApart : 1;
        static constexpr int kAtOnce = kTurns * UNIT < 32 ? kTurns : 32 / UNIT;
        static_assert(kTurns % kAtOnce == 0, "powers of two");
    };

    // For a D whose columns start at multiples of 16 bytes.
    static GEMMTUNE_DEVICE void store_wide(const Finish<TYPES, 1>& here, const char* shared) {
        constexpr int kUnit = 16 / static_cast<int>(sizeof(D));
        using Way = Columns<kUnit>;
        const int row = static_cast<int>(thread_index() % Way::kLanes) * kUnit;
        const int first = static_cast<int>(thread_index() / Way::kLanes);
        const D* from = reinterpret_cast<const D*>(shared) + first * kSumsPitch + row;
        D* to = here.d + first * here.args.d_column + row;
        const i64 apart = Way::kApart * here.args.d_column;
        const int columns = (here.columns < BN ? here.columns : BN) - first, rows = here.rows - row;
        if (columns <= 0 || rows <= 0) return;
        if (GEMMTUNE_RARELY(rows < kUnit)) {  // the last rows of D
            GEMMTUNE_ROLL
            for (int column = 0; column < columns; column += Way::kApart) {
                GEMMTUNE_ROLL
                for (int e = 0; e < rows; ++e) to[e] = from[e];
                from += Way::kApart * kSumsPitch, to += apart;
            }
            return;
        }
        GEMMTUNE_ROLL
        for (int on = 0; on < Way::kTurns; on += Way::kAtOnce) {
            Words words[Way::kAtOnce];
            GEMMTUNE_UNROLL
            for (int n = 0; n < Way::kAtOnce; ++n)
                words[n] = *reinterpret_cast<const Words*>(from + n * Way::kApart * kSumsPitch);
            GEMMTUNE_UNROLL
            for (int n = 0; n < Way::kAtOnce; ++n)
                if ((on + n) * Way::kApart < columns) write_global16(to + n * apart, words[n]);
            from += Way::kAtOnce * Way::kApart * kSumsPitch, to += Way::kAtOnce * apart;
        }
    }

    // For any other D: a thread stores 4 bytes of a column, at a multiple of 4 wherever the column starts.
    // Elements lie STRIDE bytes apart in shared memory.
    template <int STRIDE>
    static GEMMTUNE_DEVICE void store(const Finish<TYPES, 1>& here, const char* shared) {
        constexpr int kUnit = 4 / static_cast<int>(sizeof(D)), kPitchBytes = kSumsPitch * STRIDE;
        using Way = Columns<kUnit>;
        static_assert(kUnit == 1 || Way::kApart % 2 == 0, "a thread's columns start alike");
        const int t = static_cast<int>(thread_index()), first = static_cast<int>(thread_index() / Way::kLanes);
        const int rows = here.rows < BM ? here.rows : BM, columns = here.columns < BN ? here.columns : BN;
        const i64 step = here.args.d_column, apart = Way::kApart * step;
        D* to = here.d + first * step;
        const int row = static_cast<int>(thread_index() % Way::kLanes) * kUnit + odd(to);
        const char* from = shared + first * kPitchBytes + row * STRIDE;
        to += row;
        if (kUnit == 2 && t < columns && odd(here.d + t * step))  // a column's element before its first word
            here.d[t * step] = *reinterpret_cast<const D*>(shared + t * kPitchBytes);
        const int left = columns - first;
        const bool both = row + kUnit <= rows;
        if (left <= 0 || row >= rows) return;
        GEMMTUNE_ROLL
        for (int on = 0; on < Way::kTurns; on += Way::kAtOnce) {
            int words[Way::kAtOnce];
            GEMMTUNE_UNROLL
            for (int n = 0; n < Way::kAtOnce; ++n) {
                const char* const at = from + n * Way::kApart * kPitchBytes;
                D found[kUnit];
                GEMMTUNE_UNROLL
                for (int e = 0; e < kUnit; ++e) found[e] = *reinterpret_cast<const D*>(at + e * STRIDE);
                words[n] = opaque(static_cast<int>(Word<D>::pack(found)));  // read here, not when it is stored
            }
            GEMMTUNE_UNROLL
            for (int n = 0; n < Way::kAtOnce; ++n) {
                if ((on + n) * Way::kApart >= left) continue;
                D* const at = to + n * apart;
                if (kUnit == 1 || both) *reinterpret_cast<int*>(at) = words[n];
                else *reinterpret_cast<unsigned short*>(at) = static_cast<unsigned short>(words[n]);
            }
            from += Way::kAtOnce * Way::kApart * kPitchBytes, to += Way::kAtOnce * apart;
        }
    }
    static GEMMTUNE_DEVICE int odd(const D* p) {
        return sizeof(D) == 2 ? static_cast<int>(reinterpret_cast<u64>(p) / 2 & 1) : 0;
    }
};

}  // namespace gemmtune
