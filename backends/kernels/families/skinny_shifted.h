// GEMMs with few columns of B on tensor cores (mma.sync, sm_80 and later), both operands contiguous along k,
// where A's lines do not start at multiples of 16 bytes: as skinny_mma.h, but no word of A is assembled from
// two loads.
//
// Every eighth line starts at the same offset within 16 bytes (the shift), whatever the leading dimension: such
// lines are a *class*. A warp takes LINES lines of one class and loads the aligned words that contain them:
// lane (group, member) loads the eight elements of k from 32 step + 8 member - shift on. An instruction sums
// over k in any order, as long as A and B agree, so B, the small operand, is read at the class's shift instead.
// Either side of the instruction may be the lines: 8 lines are its columns, 16 its rows, and 32 the rows of two
// instructions, for which B is read once. B's columns, EIGHTS groups of eight, are the other side. A block has
// CLASSES neighbouring classes of 8 LINES lines. WARPS warps of each class share k, UNROLL steps (a *window*)
// at a time, round-robin. AHEAD: two windows are in flight, and both are requested before B has arrived.
//
// SLICES blocks (2, 4 or 8: a cluster along y) each have a slice of k of the same lines. Each block reduces its
// warps' sums and sends them, column by column, to the block that owns the column (every SLICES-th), which adds
// what it receives in the order of slices: no workspace, and no second launch. If SLICES is 1, Reduce adds the
// slices, if any.
//
// B passes through shared memory, a slice of at most STEPS steps at once. Its columns are copied as the aligned
// words that contain them, keep their own shift, and are assembled when they are read. Columns are stored in an
// order in which simultaneous reads lie in different banks (operand_tile.h: along k); kPitch is 4 words more
// than a multiple of the banks. A lane's address is the same for both shifts of a pair (2 i and 2 i + 1); the
// rest is in the funnel shift, which for an odd class may be a whole word. So the order is free of bank
// conflicts for every class.
//
// Words at a line's start and end contain elements of other lines, which may be anything, also NaN. Windows
// with such words (EDGE) set these elements to zero in both operands, and read words that extend beyond an
// operand element by element; the other windows contain no comparison.
#pragma once

#include "device/hopper.h"
#include "device/mma.h"
#include "device/operand_tile.h"
#include "device/unaligned_words.h"
#include "device/unaligned_loads.h"

namespace gemmtune {

template <typename TYPES, int EIGHTS, int LINES, int CLASSES, int UNROLL, bool AHEAD, int WARPS, int STEPS,
          int SLICES>
struct SkinnyShifted {
    using T = typename TYPES::Input;
    static constexpr int kThreads = 32 * CLASSES * WARPS, kMinBlocks = 0;
    static constexpr int kDeep = 32, kStep = kDeep * 2;  // a step (four lanes' loads): k, bytes
    static constexpr int kHalves = LINES / 8, kSpan = 8 * LINES, kBeside = 8 / CLASSES;
    static constexpr bool kAcross = LINES == 8;  // lines are the instruction's columns
    static constexpr int kTiles = kAcross ? (EIGHTS + 1) / 2 : EIGHTS, kRows = kAcross ? 1 : LINES / 16;
    // A column in shared memory, in bytes: 8 elements before the slice, the slice, and the steps by which its
    // last window may exceed it (uninitialised). kChunks counts the 16-byte words that are copied.
    static constexpr int kChunks = 4 * STEPS + 2, kColumn = (16 * (STEPS + UNROLL - 1) + 8) * 4;
    static constexpr int kPitch = (kColumn + 108) / 128 * 128 + 16;
    static constexpr int kNear = 8 * EIGHTS * kPitch;
    // Strides of the sums in floats: from class to class, from column to column, and from warp to warp of a
    // class. 32 lanes access different banks, both when sums are stored, by groups of sixteen lines, and when
    // neighbours are added.
    static constexpr int kBanks = 32 / CLASSES, kOdd = (LINES + kBanks - 1) / kBanks | 1;
    static constexpr int kClass = CLASSES == 1 ? LINES : kOdd * kBanks, kSumsPitch = CLASSES * kClass + 4;
    static constexpr int kPart = 8 * EIGHTS * kSumsPitch, kParts = WARPS * kPart * 4;
    // In a cluster: the offset of the sums that a block receives, beyond everything that it may still read
    // then; and the number of columns that it owns.
    static constexpr int kSent = kNear > kParts ? kNear : kParts, kShare = 8 * EIGHTS / SLICES;
    static constexpr int kSharedBytes = kSent + (SLICES > 1 ? 8 * EIGHTS * CLASSES * LINES * 4 : 0);
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert((LINES == 8 || LINES == 16 || LINES == 32) && 8 % CLASSES == 0,
                  "instructions' lines; whole eights");
    static_assert(SLICES == 1 || SLICES == 2 || SLICES == 4 || SLICES == 8, "a cluster has eight blocks");

    // Addresses are computed while the previous launch ends.
    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        if (SLICES > 1) arrive_at_cluster();
        const Task task(args);
        const int warp = warp_index(), part = warp / CLASSES;
        const i64 first = static_cast<i64>(block_x() / kBeside) * kSpan + block_x() % kBeside * CLASSES;
        const unsigned begin = task.slice * (args.slice / kDeep);
        Lane lane(args, task, first + warp % CLASSES, begin, part * UNROLL, shared);
        int at = opaque(static_cast<int>(begin) + part * UNROLL);
        Window window[AHEAD ? 2 : 1];
        Sums sum = {};
        wait_for_launches();
        if (task.beyond(args)) {  // all blocks of the cluster take this path
            if (SLICES > 1) wait_for_cluster();
            return;
        }
        lane.load(args, at, window[0]);
        copy(args, task, static_cast<int>(begin), shared);
        commit_copies();
        if constexpr (AHEAD) lane.load(args, at + kTurn, window[1]);  // lines come while B does
        wait_copies<0>();
        block_barrier();
        GEMMTUNE_ROLL
        while (at < lane.end) {
            if constexpr (AHEAD) {
                lane.multiply(args, at, window[0], sum);
                if (at + kTurn >= lane.end) break;
                lane.load(args, at + 2 * kTurn, window[0]);
                lane.multiply(args, at + kTurn, window[1], sum);
                at += 2 * kTurn;
                if (at < lane.end) lane.load(args, at + kTurn, window[1]);
            } else {
                lane.multiply(args, at, window[0], sum);
                if ((at += kTurn) < lane.end) lane.load(args, at, window[0]);
            }
        }
        if constexpr (SLICES == 1) release_reduce(args);
        block_barrier();  // sums take B's place
        store(args, task, first, sum, shared, warp);
    }

private:
    using Sums = float[kRows][kTiles][4];
    static constexpr int kTurn = WARPS * UNROLL;  // steps from a warp's window to its next

    // A lane's loads of its lines in one window.
    struct Window {
        Words line[UNROLL][kHalves];
    };

    struct Lane {
        const char* line[kHalves];  // the lane's words of the next window
        const char* column;         // its column's words of the current window in shared memory
        int own;                    // elements from a step's start to the lane's first one
        int end;                    // end of the warp's steps
        int inner, outer;           // steps whose words lie within lines, and need no comparison
        unsigned bits;              // the funnel shift

        // For the class whose first line is `first`, from the step `begin` of the slice on, `ahead` steps
        // later.
        GEMMTUNE_DEVICE Lane(const GemmArgs& args, Task task, i64 first, unsigned begin, int ahead,
                             char* shared) {
            const int group = lane_index() / 4, member = lane_index() % 4;
            const i64 on = (static_cast<i64>(begin) + ahead) * kStep;
            const char* const start = static_cast<const char*>(args.a) +
                                      (task.batch * args.stride_a + first * args.lda) * 2;
            const int shift = static_cast<int>(reinterpret_cast<u64>(start) % 16) / 2;
            own = member * 8 - shift;
            GEMMTUNE_UNROLL
            for (int h = 0; h < kHalves; ++h) {  // lines beyond the last: read the first, not stored
                const int i = 8 * (group + 8 * h);
                line[h] = opaque(start + ((first + i < args.m ? i * args.lda : 0) + own) * 2 + on);
            }
            const unsigned each = args.slice / kDeep, k = static_cast<unsigned>(args.k);
            const unsigned steps = (k + shift + kDeep - 1) / kDeep;
            const bool last = task.slice + 1 == static_cast<unsigned>(args.splits) || begin + each > steps;
            end = opaque(static_cast<int>(first >= args.m ? begin : last ? steps : begin + each));
            const unsigned whole = (k + shift) / kDeep;
            inner = shift ? 1 : 0, outer = opaque(least(static_cast<int>(whole), end));
            column = static_cast<const char*>(args.b) + (task.batch * args.stride_b + group * args.ldb) * 2;
            const int phase = static_cast<int>(reinterpret_cast<u64>(column) % 16) / 2;
            const int from = 8 + own + phase, word = (from - shift % 2) / 2;
            const int place = place_of(group, phase, args.ldb);
            bits = static_cast<unsigned>(from - 2 * word) * 16;
            column = opaque_shared(shared + place * kPitch + word * 4 + ahead * kStep);
        }

        GEMMTUNE_DEVICE bool plain(int at) const { return at >= inner && at + UNROLL <= outer; }
        // Which of the lane's elements of a step belong to its lines.
        GEMMTUNE_DEVICE Within within(const GemmArgs& args, int step) const {
            return Within(static_cast<i64>(step) * kDeep + own, step < end ? args.k : 0);
        }

        GEMMTUNE_DEVICE void load(const GemmArgs& args, int at, Window& window) {
            if (plain(at)) load<false>(args, at, window);
            else load<true>(args, at, window);
        }
        GEMMTUNE_DEVICE void multiply(const GemmArgs& args, int at, Window& window, Sums& sum) {
            if (plain(at)) multiply<false>(args, at, window, sum);
            else multiply<true>(args, at, window, sum);
        }

        // Issues all loads of a window before it waits for the first.
        template <bool EDGE>
        GEMMTUNE_DEVICE void load(const GemmArgs& args, int at, Window& window) {
            const Extent a(args.a, args.a_bytes);
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) {
                GEMMTUNE_UNROLL
                for (int h = 0; h < kHalves; ++h) {
                    const char* const word = line[h] + u * kStep;
                    if (!EDGE) window.line[u][h] = stream16_part(word);
                    else window.line[u][h] = stream16_part(word, within(args, at + u).any() & a.holds(word));
                }
            }
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) {
                GEMMTUNE_UNROLL
                for (int h = 0; EDGE && h < kHalves; ++h) {
                    const char* const word = line[h] + u * kStep;
                    const Within mine = within(args, at + u);
                    if (GEMMTUNE_RARELY(mine.any() & !a.holds(word)))
                        window.line[u][h] = mine.template read<T>(word);
                }
            }
            if (EDGE) warp_barrier();  // lanes may have diverged at their loads
            GEMMTUNE_UNROLL
            for (int h = 0; h < kHalves; ++h) line[h] += kTurn * kStep;
        }

        template <bool EDGE>
        GEMMTUNE_DEVICE void multiply(const GemmArgs& args, int at, Window& window, Sums& sum) {
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) {
                const Within mine = within(args, at + u);
                auto& lines = window.line[u];
                unsigned x[EIGHTS + 1][4] = {};
                GEMMTUNE_UNROLL
                for (int e = 0; e < EIGHTS; ++e) read(column + e * 8 * kPitch + u * kStep, x[e]);
                GEMMTUNE_UNROLL
                for (int i = 0; EDGE && i < 4; ++i) {
                    const unsigned mask = mine.mask(i);
                    GEMMTUNE_UNROLL
                    for (int h = 0; h < kHalves; ++h) lines[h].at[i] &= mask;
                    GEMMTUNE_UNROLL
                    for (int e = 0; e < EIGHTS; ++e) x[e][i] &= mask;
                }
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; i += 2) {
                    GEMMTUNE_UNROLL
                    for (int each = 0; each < kRows * kTiles; ++each) {
                        const int r = each / kTiles, z = each % kTiles;
                        const auto& low = kAcross ? x[kAcross * 2 * z] : lines[!kAcross * 2 * r].at;
                        const auto& high = kAcross ? x[kAcross * 2 * z + 1] : lines[!kAcross * (2 * r + 1)].at;
                        const auto& across = kAcross ? lines[0].at : x[z];
                        const unsigned of_a[4] = {low[i], high[i], low[i + 1], high[i + 1]};
                        const unsigned of_b[2] = {across[i], across[i + 1]};
                        mma_16x8x16<T>(sum[r][z], of_a, of_b);
                    }
                }
            }
            column += kTurn * kStep;
        }

        // Reads the lane's eight elements of a step, of its column in a group of eight. (Columns beyond the
        // last read uninitialised memory: their sums are dropped.)
        GEMMTUNE_DEVICE void read(const char* word, unsigned (&out)[4]) const {
            unsigned low = read_shared<unsigned>(word);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) {
                const unsigned high = read_shared<unsigned>(word + 4 * i + 4);
                out[i] = funnel(low, high, bits);
                low = high;
            }
        }
    };

    // (The same as order_of(), which starts from a line's number; the shift is known here.)
    static GEMMTUNE_DEVICE int place_of(int column, int shift, i64 ld) {
        return ld % 2 == 0 ? column : column / 8 * 8 + shift / 2 + shift % 2 * 4;
    }

    // Copies a slice of every column, from 8 elements before its first step on: a warp for each column, a word
    // for each lane.
    static GEMMTUNE_DEVICE void copy(const GemmArgs& args, Task task, int begin, char* shared) {
        const Extent b(args.b, args.b_bytes);
        const int lane = lane_index();
        GEMMTUNE_ROLL
        for (int j = warp_index(); j < args.n; j += CLASSES * WARPS) {
            const char* const column = b.begin + (task.batch * args.stride_b + j * args.ldb) * 2;
            const int shift = static_cast<int>(reinterpret_cast<u64>(column) % 16) / 2;
            const int from = begin * kDeep - 8 - shift;  // the element that the first word begins with
            const char* const source = column + from * 2;
            char* const target = shared + place_of(j, shift, args.ldb) * kPitch;
            // The range of words with an element of the column; only the first and the last may extend beyond
            // B.
            const int low = begin ? 0 : 1, high = least(kChunks, (args.k - from + 7) / 8);
            GEMMTUNE_ROLL
            for (int word = lane; word < high; word += 4 * 32) {
                GEMMTUNE_UNROLL
                for (int i = word; i < word + 4 * 32; i += 32) {
                    const bool wanted = (i >= low) & (i < high) & b.holds(source + i * 16);
                    copy_async16_if(wanted, target + i * 16, source + i * 16);
                }
            }
            const int i = lane ? high - 1 : low;
            if (lane < 2 && GEMMTUNE_RARELY(low < high && !b.holds(source + i * 16)))
                write16(target + i * 16, Within(from + i * 8, args.k).template read<T>(source + i * 16));
        }
    }

    // Adds the warps' sums, and in a cluster the slices', and stores them; neighbouring threads store
    // neighbours in D's columns.
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, Task task, i64 first, const Sums& sum,
                                      char* shared, int warp) {
        float* const parts = reinterpret_cast<float*>(shared);
        lay_out(sum, parts + warp / CLASSES * kPart + warp % CLASSES * kClass);
        block_barrier();
        const int t = static_cast<int>(thread_index()), line = t % kLines / CLASSES, beside = t % CLASSES;
        const i64 row = first + beside + 8 * line;
        float* from = parts + t / kLines * kSumsPitch + beside * kClass + line;
        int j = t / kLines;
        if (SLICES == 1 && row >= args.m) return;  // (in a cluster all threads reach the barriers)
        if constexpr (SLICES > 1) {
            const Finish<TYPES, 0> here(args, task.batch, row, 0);
            float* const sent = reinterpret_cast<float*>(shared + kSent) + t % kLines;
            const int mine = static_cast<int>(task.slice), columns = row < args.m ? args.n : 0;
            wait_for_cluster();  // who is sent something is there
            for (; j < columns; j += kApart, from += kApart * kSumsPitch)
                write_peer(sent + (mine * kShare + j / SLICES) * kLines, j % SLICES, whole(from));
            warp_barrier();  // lanes may have diverged above
            cluster_barrier<true>();
            for (int on = t / kLines; on * SLICES + mine < columns; on += kApart) {
                float all = sent[on * kLines];
                GEMMTUNE_UNROLL
                for (int slice = 1; slice < SLICES; ++slice) all += sent[(slice * kShare + on) * kLines];
                here.store(0, on * SLICES + mine, all);
            }
        } else if (args.splits > 1) {
            const i64 slice = static_cast<i64>(task.slice) * args.batch + task.batch;
            float* to = args.partial + (slice * args.n + j) * args.m + row;
            const i64 apart = static_cast<i64>(kApart) * args.m;
            for (; j < args.n; j += kApart, to += apart, from += kApart * kSumsPitch) *to = whole(from);
        } else {
            const Finish<TYPES, 0> here(args, task.batch, row, 0);
            for (; j < args.n; j += kApart, from += kApart * kSumsPitch) here.store(0, j, whole(from));
        }
    }
    // A thread has the same line in every kApart-th column.
    static constexpr int kLines = CLASSES * LINES, kApart = kThreads / kLines;

    static GEMMTUNE_DEVICE void lay_out(const Sums& sum, float* to) {
        const int group = lane_index() / 4, pair = lane_index() % 4 * 2;
        GEMMTUNE_UNROLL
        for (int each = 0; each < kRows * kTiles; ++each) {
            const int r = each / kTiles, z = each % kTiles;
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int down = group + i / 2 * 8, across = pair + i % 2;
                const int line = kAcross ? across : r * 16 + down, j = kAcross ? z * 16 + down : z * 8 + across;
                if (kAcross && EIGHTS % 2 && z == kTiles - 1 && i >= 2) continue;
                to[j * kSumsPitch + line] = sum[r][z][i];
            }
        }
    }
    // The sum of one element over all warps.
    static GEMMTUNE_DEVICE float whole(const float* at) {
        float sum = 0.0f;
        GEMMTUNE_UNROLL
        for (int part = 0; part < WARPS; ++part) sum += at[part * kPart];
        return sum;
    }
};

}  // namespace gemmtune
