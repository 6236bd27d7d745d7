// Products with at most eight columns of B and a short k by tensor cores, both operands contiguous along k,
// wherever lines start: as skinny_shifted.h, but all of k is in registers at once, and there is no loop.
//
// Such a launch takes little longer than its first loads do: every instruction between its start and them, and
// between them and its last store, is time. So places are worked out in 32 bits where that will do, what needs
// no memory before the launch's turn as far as compilers have it so, and there is one way through the program,
// for words within lines and at their ends.
//
// A block has eight lines of one class (every eighth line starts at the same place within 16 bytes), which are
// an instruction's columns; its WARPS warps have UNROLL steps of 32 elements of k each. Lane (group, member)
// loads the aligned word of line `group` that its eight elements of k lie in, 8 member - shift on. The columns
// of B, the instruction's rows, come through registers to shared memory, in the words that they lie in, and
// are read at the class's shift.
//
// An operand's first word may begin before it, and its last may end after it: what they have of a line is read
// by elements.
#pragma once

#include "device/epilogue.h"
#include "device/mma.h"
#include "device/operand_tile.h"

namespace gemmtune {

template <typename TYPES, int COLUMNS, int UNROLL, int WARPS>
struct SkinnyShort {
    using T = typename TYPES::Input;
    static constexpr int kThreads = 32 * WARPS, kMinBlocks = 0;
    static constexpr int kDeep = 32, kStep = kDeep * 2;  // of k, of a step: elements, bytes
    // Of a column in shared memory: its words and one before them; bytes, such that columns that are read at
    // once lie in different banks (operand_tile.h: along k).
    static constexpr int kWords = WARPS * UNROLL * 4 + 1, kPitch = (kWords * 16 + 79) / 128 * 128 + 64;
    static constexpr int kBringers = kThreads / COLUMNS, kBring = (kWords + kBringers - 1) / kBringers;
    static constexpr int kSums = COLUMNS * kPitch, kPart = 64;  // where sums lie; of a warp, floats
    static constexpr int kSharedBytes = kSums + WARPS * kPart * 4;
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert(COLUMNS <= 8 && kThreads >= 8 * COLUMNS, "an instruction's rows; a thread an element of D");

    // Where lines lie is worked out while the launch before this one ends.
    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Task task(args);
        const int t = static_cast<int>(thread_index()), warp = warp_index();
        const int group = lane_index() / 4, member = lane_index() % 4;
        const unsigned first = block_x() / 8 * 64 + block_x() % 8, lda = static_cast<unsigned>(args.lda);
        const char* const a = static_cast<const char*>(args.a) +
                              (task.batch * args.stride_a + static_cast<i64>(static_cast<u64>(first) * lda)) * 2;
        const int shift = shift_of(a), step = warp * UNROLL, own = step * kDeep + member * 8 - shift;
        const unsigned on = 8 * group;  // lines beyond the last: read as the first, not stored
        const unsigned beyond = first + on < static_cast<unsigned>(args.m) ? on * lda * 2 : 0;
        const char* const line = a + beyond + own * 2;
        const Inside of_a(line, args.a, args.a_bytes);
        // The column that the lane reads, from a place that is in the same words for both of two shifts (the
        // funnel shift may be by a whole word), and what the thread brings of one.
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
    // Elements from 16 bytes' start on.
    static GEMMTUNE_DEVICE int shift_of(const char* line) {
        return static_cast<int>(reinterpret_cast<u64>(line) & 15) / 2;
    }
    // Whether words from `word` on lie in an operand, of which only the first may begin before it.
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

    // Of a word's eight elements, from a column's e-th on, those that it has.
    static GEMMTUNE_DEVICE void copy_elements(char* to, const char* from, int e, int k) {
        GEMMTUNE_ROLL
        for (int i = e < 0 ? -e : 0; i < 8 && e + i < k; ++i)
            *reinterpret_cast<unsigned short*>(to + i * 2) = read2_if(true, from + i * 2);
    }

    // A step with the ends of lines: elements that are not of k are made zero in both, as they may be anything,
    // NaN too; and a word that sticks out of its operand, which has not been read, is.
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
