// GEMMs with few columns of B on tensor cores (mma.sync, sm_80 and later), both operands contiguous along k and
// A read once: as skinny_mma.h, but data in flight is in shared memory, which holds several times what
// registers do, and is requested in long runs of a row, which DRAM delivers faster than 64 bytes of each of
// many rows.
//
// A block has ROWS rows of A and all columns. Its WARPS warps take chunks of BK elements along k round-robin.
// Each warp has its own ring of SLOTS chunks, of A's rows and of B's columns, filled by asynchronous copies: no
// warp waits for another before the sums are added.
//
// Either A's rows or B's columns are the instruction's sixteen rows, and the others its eight columns,
// whichever takes fewer instructions (kRowsFirst). An instruction sums over k in any order, as long as A and B
// agree. So a lane reads 16 contiguous bytes of a line, eight elements, and feeds them to two instructions, two
// elements at each of the instruction's positions along k.
//
// ring_lines.h describes how lines are copied and read.
#pragma once

#include "device/epilogue.h"
#include "device/mma.h"
#include "device/ring_lines.h"

namespace gemmtune {

template <typename TYPES, bool WHOLE, int COLUMNS, int ROWS, int BK, int SLOTS, int WARPS>
struct SkinnyRing {
    using T = typename TYPES::Input;
    static constexpr int kThreads = 32 * WARPS, kMinBlocks = 0;
    static constexpr int kDeep = 32;                                       // k of one step
    static constexpr int kGroups = ROWS / 8, kHalves = (COLUMNS + 7) / 8;  // groups of 8 rows, of 8 columns
    static constexpr bool kRowsFirst = (kGroups + 1) / 2 * kHalves < kGroups * ((kHalves + 1) / 2);
    template <int LINES>
    using Lines = RingLines<WHOLE, LINES, BK>;
    static constexpr int kPitch = Lines<ROWS>::kPitch, kSlot = (ROWS + COLUMNS) * kPitch;
    static constexpr int kSumsPitch = ROWS + 8, kPart = COLUMNS * kSumsPitch;  // of a warp's sums, in floats
    static constexpr int kRings = WARPS * SLOTS * kSlot, kParts = WARPS * kPart * 4;
    static constexpr int kSharedBytes = kRings > kParts ? kRings : kParts;
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert(ROWS % 8 == 0 && BK % 64 == 0 && SLOTS >= 2, "whole groups, whole widths of the banks");
    static_assert(BK <= 256, "a line's copies are a warp's at most");
    static_assert(COLUMNS <= 8 || COLUMNS % 8 == 0, "whole halves of tiles");

    // Addresses are computed while the previous launch ends.
    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Task task(args);
        const int warp = warp_index();
        const i64 first = static_cast<i64>(block_x()) * ROWS;
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        const Lines<ROWS> a(args.a, task.batch * args.stride_a, args.lda, first, args.m, args.k);
        const Lines<COLUMNS> b(args.b, task.batch * args.stride_b, args.ldb, 0, args.n, args.k);
        char* const ring = opaque_shared(shared + warp * SLOTS * kSlot);
        Sums sum = {};
        // The first SLOTS - 1 iterations only copy. (They share the loop with the others because copies are
        // most of the code.)
        const int end = opaque(mine.end);
        int next = opaque(mine.begin + warp), to = 0, from = 0;
        wait_for_launches();
        if (task.beyond(args)) return;
        GEMMTUNE_ROLL
        for (int ahead = 1 - SLOTS; next < end + (SLOTS - 1) * WARPS; ++ahead) {
            if (next < end) {
                a.copy(ring + to, next, static_cast<const char*>(args.a) + args.a_bytes);
                b.copy(ring + to + kA, next, static_cast<const char*>(args.b) + args.b_bytes);
            }
            commit_copies();  // also an empty group: groups are counted
            next += WARPS, to = to + kSlot == SLOTS * kSlot ? 0 : to + kSlot;
            if (ahead < 0) continue;
            wait_copies<SLOTS - 1>();
            warp_barrier();  // every lane's copies of this chunk have arrived
            multiply(ring + from, a, b, sum);
            warp_barrier();  // every lane has read it: the next copies may replace it
            from = from + kSlot == SLOTS * kSlot ? 0 : from + kSlot;
        }
        wait_copies<0>();
        release_reduce(args);
        block_barrier();  // sums take the rings' place
        store(args, task, first, sum, reinterpret_cast<float*>(shared), warp);
    }

private:
    static constexpr int kA = ROWS * kPitch;  // where B's lines begin in a slot
    // Groups of eight that are an instruction's rows, two at a time, and that are its columns.
    static constexpr int kTall = kRowsFirst ? kGroups : kHalves, kWide = kRowsFirst ? kHalves : kGroups;
    static constexpr int kTiles = (kTall + 1) / 2;
    using Sums = float[kTiles][kWide][4];

    // One step along k of one accumulator: `low` and `high` are the instruction's sixteen rows (the upper half
    // of the last may be unused), `across` its columns.
    static GEMMTUNE_DEVICE void multiply(const unsigned (&low)[4], const unsigned (&high)[4],
                                         const unsigned (&across)[4], float (&sum)[4]) {
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; i += 2) {
            const unsigned of_a[4] = {low[i], high[i], low[i + 1], high[i + 1]};
            const unsigned of_b[2] = {across[i], across[i + 1]};
            mma_16x8x16<T>(sum, of_a, of_b);
        }
    }

    static GEMMTUNE_DEVICE void multiply(const char* slot, const Lines<ROWS>& a,
                                         const Lines<COLUMNS>& b, Sums& sum) {
        GEMMTUNE_UNROLL
        for (int step = 0; step < BK / kDeep; ++step) {
            unsigned column[kHalves + 1][4] = {};  // with fewer than eight columns, the lanes of the missing
            GEMMTUNE_UNROLL                        // ones read an existing one
            for (int half = 0; half < kHalves; ++half) b.read(slot + kA, half * 8, step, column[half]);
            GEMMTUNE_UNROLL
            for (int g = 0; g < kGroups; g += kRowsFirst ? 2 : 1) {
                unsigned row[2][4] = {};
                a.read(slot, g * 8, step, row[0]);
                if (kRowsFirst && g + 1 < kGroups) a.read(slot, g * 8 + 8, step, row[1]);
                GEMMTUNE_UNROLL
                for (int half = 0; half < kHalves; half += kRowsFirst ? 1 : 2) {
                    if (kRowsFirst) multiply(row[0], row[1], column[half], sum[g / 2][half]);
                    else multiply(column[half], column[half + 1], row[0], sum[half / 2][g]);
                }
            }
        }
    }

    // Adds the warps' sums and stores them; neighbouring threads store neighbours in D's columns.
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, Task task, i64 first, const Sums& sum,
                                      float* parts, int warp) {
        const int group = lane_index() / 4, pair = lane_index() % 4 * 2;
        GEMMTUNE_UNROLL
        for (int tall = 0; tall < kTall; ++tall) {
            GEMMTUNE_UNROLL
            for (int wide = 0; wide < kWide; ++wide) {
                GEMMTUNE_UNROLL
                for (int i = 0; i < 2; ++i) {
                    const int down = tall * 8 + group, across = wide * 8 + pair + i;
                    const int row = kRowsFirst ? down : across, j = kRowsFirst ? across : down;
                    if (COLUMNS % 8 && j >= COLUMNS) continue;
                    parts[warp * kPart + j * kSumsPitch + row] = sum[tall / 2][wide][tall % 2 * 2 + i];
                }
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
