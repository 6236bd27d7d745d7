// GEMMs with at most eight columns of B and a short k on tensor cores (mma.sync, sm_80 and later), both
// operands contiguous along k, rows of any alignment: as skinny_shifted.h, but all of k is in registers at once
// and there is no loop.
//
// Such a launch takes little longer than its first loads, so every instruction before them, and between them
// and the last store, costs time. Therefore addresses are computed in 32 bits where that suffices, work that
// needs no memory precedes the wait for the previous launch (as far as the compiler leaves it there), and one
// control path handles words within lines and at their ends.
//
// A block has eight lines of one class (every eighth line starts at the same offset within 16 bytes), which are
// an instruction's columns. Its WARPS warps have UNROLL steps of 32 elements of k each. At each step lane
// (group, member) loads the aligned word of line `group` that begins at element 8 member - shift of the step.
// The columns of B, the instruction's rows, pass through registers to shared memory as the aligned words that
// contain them, and are read from there at the class's shift.
//
// An operand's first word may begin before the operand, and its last may end after it: the elements of a line
// in such words are read one by one.
#pragma once

#include "device/epilogue.h"
#include "device/mma.h"
#include "device/operand_tile.h"

namespace gemmtune {

template <typename TYPES, int COLUMNS, int UNROLL, int WARPS>
struct SkinnyShort {
    using T = typename TYPES::Input;
    static constexpr int kThreads = 32 * WARPS, kMinBlocks = 0;
    static constexpr int kDeep = 32, kStep = kDeep * 2;  // a step along k, in elements and in bytes
    // A column in shared memory: its words and one before them; the pitch in bytes, such that columns that are
    // read together lie in different banks (operand_tile.h: along k).
    static constexpr int kWords = WARPS * UNROLL * 4 + 1, kPitch = (kWords * 16 + 79) / 128 * 128 + 64;
    static constexpr int kBringers = kThreads / COLUMNS, kBring = (kWords + kBringers - 1) / kBringers;
    static constexpr int kSums = COLUMNS * kPitch, kPart = 64;  // offset of the sums; floats of a warp's sums
    static constexpr int kSharedBytes = kSums + WARPS * kPart * 4;
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert(COLUMNS <= 8 && kThreads >= 8 * COLUMNS, "an instruction's rows; a thread an element of D");

    // Addresses are computed while the previous launch ends.
    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Task task(args);
        const int t = static_cast<int>(thread_index()), warp = warp_index();
        const int group = lane_index() / 4, member = lane_index() % 4;
        const unsigned first = block_x() / 8 * 64 + block_x() % 8, lda = static_cast<unsigned>(args.lda);
        const char* const a = static_cast<const char*>(args.a) +
                              (task.batch * args.stride_a + static_cast<i64>(static_cast<u64>(first) * lda)) * 2;
        const int shift = shift_of(a), step = warp * UNROLL, own = step * kDeep + member * 8 - shift;
        const unsigned on = 8 * group;  // lines beyond the last: read the first, not stored
        const unsigned beyond = first + on < static_cast<unsigned>(args.m) ? on * lda * 2 : 0;
        const char* const line = a + beyond + own * 2;
        const Inside of_a(line, args.a, args.a_bytes);
        // The column that the lane reads, from an address that is the same for both shifts of a pair (2 i and 2
        // i + 1), so the funnel shift may be by a whole word; and the part of a column that the thread copies
        // to shared memory.
        const int place = 8 + shift_of(column(args, task, least(group, COLUMNS - 1))) + own;
        const int near_word = (place - shift % 2) / 2;
        const unsigned bits = static_cast<unsigned>(place - 2 * near_word) * 16;
        const char* const near = opaque_shared(shared + least(group, COLUMNS - 1) * kPitch + near_word * 4);
        const int j = t / kBringers, word = t % kBringers;
        const char* const start = column(args, task, least(j, COLUMNS - 1));
        const char* const from = start - shift_of(start) * 2 + word * 16;
        const int e = word * 8 - shift_of(start);
        const Inside of_b(from, args.b, args.b_bytes);
        char* const to = opaque_shared(shared + j * kPitch + word * 16 + 16);
        const Finish<TYPES, 0> here(args, task.batch, first + t % 8 * 8, t / 8);
        wait_for_launches();
        if (task.beyond(args)) return;
        Words words[kBring], lines[UNROLL];
        const auto wanted = [&](int x) {
            return (j < COLUMNS) & (e + x * kBringers * 8 < args.k);
        };
        GEMMTUNE_UNROLL
        for (int x = 0; x < kBring; ++x)
            words[x] = read16_if(wanted(x) & of_b.has(x * kBringers * 16), from + x * kBringers * 16);
        GEMMTUNE_UNROLL
        for (int u = 0; u < UNROLL; ++u)
            lines[u] = stream16_part(line + u * kStep, (own + u * kDeep < args.k) & of_a.has(u * kStep));
        GEMMTUNE_UNROLL
        for (int x = 0; x < kBring; ++x) {
            const int bytes = x * kBringers * 16;
            write_shared16_if(wanted(x) & of_b.has(bytes), to + bytes, words[x]);
            if (GEMMTUNE_RARELY(wanted(x) && !of_b.has(bytes)))
                copy_elements(to + bytes, from + bytes, e + x * kBringers * 8, args.k);
        }
        block_barrier();
        float sum[4] = {};
        GEMMTUNE_UNROLL
        for (int u = 0; u < UNROLL; ++u) {
            unsigned row[4];
            unsigned low = read_shared<unsigned>(near + u * kStep);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) {
                const unsigned high = read_shared<unsigned>(near + u * kStep + 4 * i + 4);
                row[i] = funnel(low, high, bits);
                low = high;
            }
            if (step + u == 0 || (step + u + 1) * kDeep > args.k)
                clean(own + u * kDeep, args.k, line + u * kStep, of_a.has(u * kStep), lines[u], row);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; i += 2) {
                const unsigned rows[4] = {row[i], 0, row[i + 1], 0};
                const unsigned columns[2] = {lines[u].at[i], lines[u].at[i + 1]};
                mma_16x8x16<T>(sum, rows, columns);
            }
        }
        float* const parts = reinterpret_cast<float*>(shared + kSums);
        parts[t * 2] = sum[0], parts[t * 2 + 1] = sum[1];
        block_barrier();
        if (t >= 8 * COLUMNS) return;
        float whole = 0.0f;
        GEMMTUNE_UNROLL
        for (int part = 0; part < WARPS; ++part) whole += parts[part * kPart + t];
        here.store(0, 0, whole);
    }

private:
    // Elements from the preceding multiple of 16 bytes to a line's start.
    static GEMMTUNE_DEVICE int shift_of(const char* line) {
        return static_cast<int>(reinterpret_cast<u64>(line) & 15) / 2;
    }
    // Whether the words from `word` on lie in an operand; only the first may begin before it.
    struct Inside {
        int left;  // bytes to its end, as far as they matter
        bool early;
        GEMMTUNE_DEVICE Inside(const char* word, const void* operand, i64 bytes) {
            const i64 after = word - static_cast<const char*>(operand);
            left = bytes - after < (1 << 30) ? static_cast<int>(bytes - after) : 1 << 30, early = after < 0;
        }
        GEMMTUNE_DEVICE bool has(int on) const { return (left - on >= 16) & ((on > 0) | !early); }
    };
    static GEMMTUNE_DEVICE const char* column(const GemmArgs& args, Task task, int j) {
        return static_cast<const char*>(args.b) + (task.batch * args.stride_b + j * args.ldb) * 2;
    }

    // Copies those of a word's eight elements that belong to the column; the word begins at the column's
    // element e.
    static GEMMTUNE_DEVICE void copy_elements(char* to, const char* from, int e, int k) {
        GEMMTUNE_ROLL
        for (int i = e < 0 ? -e : 0; i < 8 && e + i < k; ++i)
            *reinterpret_cast<unsigned short*>(to + i * 2) = read2_if(true, from + i * 2);
    }

    // A step at the ends of lines. Elements that are not of the line may be anything, also NaN: they are set to
    // zero in both operands. A word that extends beyond its operand was not loaded before; it is read here.
    static GEMMTUNE_DEVICE void clean(int e, int k, const char* word, bool within, Words& line,
                                      unsigned (&row)[4]) {
        if (GEMMTUNE_RARELY(!within && e < k)) {
            u64 half[2] = {};
            GEMMTUNE_ROLL
            for (int i = e < 0 ? -e : 0; i < 8 && e + i < k; ++i) {
                const u64 bits = static_cast<u64>(read2_if(true, word + i * 2)) << i % 4 * 16;
                half[0] |= i < 4 ? bits : 0, half[1] |= i < 4 ? 0 : bits;
            }
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) line.at[i] = static_cast<unsigned>(half[i / 2] >> i % 2 * 32);
        }
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) {
            const unsigned at = static_cast<unsigned>(e + 2 * i), end = static_cast<unsigned>(k);
            const unsigned mask = (at < end ? 0xffffu : 0u) | (at + 1 < end ? 0xffff0000u : 0u);
            line.at[i] &= mask, row[i] &= mask;
        }
    }
};

}  // namespace gemmtune
