// Grouped products with few columns a group, on tensor cores (mma.sync, sm_80 and later): as many blocks as run at
// once read every active group's weights once, and never stop reading. Data in flight is in shared memory, in rings
// of SLOTS chunks of BK elements along k, as in dequant_ring.h. A ring continues from tile to tile: while the last
// chunks of a tile are multiplied and its sums are stored, the first chunks of the next one arrive.
//
// WARPS_M warps are a team with one ring: a chunk of it has ROWS rows of weights of each of them, and COLUMNS columns,
// which the team shares. A block's WARPS_K teams have the same rows and take chunks round-robin; their sums are added
// at a tile's end. One barrier of the team a chunk says that all of its copies have arrived and that the previous
// chunk has been read.
//
// The weights are the sixteen rows of mma_16x8x16, the columns its eight columns. An instruction sums over k in any
// order, as long as both agree: a lane reads 16 contiguous bytes of a line, eight elements, for two instructions.
// Every second line has the halves of each 128 bytes exchanged, so that lines that are read together lie in different
// banks (ring_lines.h).
#pragma once

#include "device/epilogue.h"
#include "device/grouped.h"
#include "device/mma.h"

namespace gemmtune {

// BLOCKS: resident blocks of a multiprocessor.
template <typename TYPES, int GROUPS, int COLUMNS, int ROWS, int BK, int SLOTS, int WARPS_M, int WARPS_K, int BLOCKS>
struct GroupedRing {
    using Args = GroupedArgs;
    using T = typename TYPES::Input;
    using D = typename TYPES::D;
    static constexpr int kTeam = 32 * WARPS_M, kThreads = kTeam * WARPS_K, kMinBlocks = BLOCKS;
    static constexpr int kAll = ROWS * WARPS_M;                             // rows of a block
    static constexpr int kLine = BK * 2, kUnits = BK / 8;                   // of a line: bytes, 16-byte words
    static constexpr int kOn = kTeam / kUnits;                              // lines that a team copies side by side
    static constexpr int kTiles = ROWS / 16, kHalves = COLUMNS / 8;         // accumulators down and across
    static constexpr int kSlot = (kAll + COLUMNS) * kLine, kRings = WARPS_K * SLOTS * kSlot;
    static constexpr int kPitch = kAll + 8, kPart = COLUMNS * kPitch;       // of a team's sums, in floats
    using Tiles = GroupedTiles<GROUPS, COLUMNS, kAll>;
    static constexpr int kTable = kRings + WARPS_K * kPart * 4, kSharedBytes = kTable + Tiles::kBytes;
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert(ROWS % 16 == 0 && COLUMNS % 8 == 0 && BK % 64 == 0 && SLOTS >= 2, "whole tiles, whole banks");
    static_assert(kOn >= 1 && kAll % kOn == 0, "a team copies whole lines of weights at a time");
    static_assert(WARPS_M == 1 || WARPS_K <= 15, "a named barrier a team");

    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.gemm;
        const int team = warp_index() / WARPS_M, member = warp_index() % WARPS_M;
        const int chunks = (args.k - 1) / BK + 1, turns = (chunks - 1) / WARPS_K + 1;
        char* const ring = opaque_shared(shared + team * SLOTS * kSlot);
        wait_for_launches();
        const Tiles tiles(all, shared + kTable);
        const unsigned step = static_cast<unsigned>(args.blocks);
        if (block_x() >= tiles.tiles) return;
        const int total = static_cast<int>((tiles.tiles - 1 - block_x()) / step + 1) * turns;
        Copies copies(args);
        unsigned next = block_x(), tile = next;  // tiles: whose chunks are copied, and multiplied
        int copied = 0, copy_turn = 0, turn = 0, to = 0, from = 0;
        Sums sum = {};
        // The first SLOTS - 1 iterations only copy. Every team has the same iterations, the last of a tile maybe
        // without a chunk.
        GEMMTUNE_ROLL
        for (int ahead = 1 - SLOTS; ahead < total; ++ahead) {
            if (ahead >= 0) {
                wait_copies<SLOTS - 2>();
                team_barrier(team);  // this chunk has arrived; the previous one's place is free
            }
            if (copied < total) {
                if (copy_turn == 0) copies.start(args, tiles.place(next));
                const int chunk = copy_turn * WARPS_K + team;
                if (chunk < chunks) copies.chunk(ring + to, chunk);
                ++copied;
                if (++copy_turn == turns) copy_turn = 0, next += step;
            }
            commit_copies();  // also an empty group: groups are counted
            to = to + kSlot == SLOTS * kSlot ? 0 : to + kSlot;
            if (ahead < 0) continue;
            if (turn * WARPS_K + team < chunks) multiply(ring + from, member, sum);
            from = from + kSlot == SLOTS * kSlot ? 0 : from + kSlot;
            if (++turn < turns) continue;
            store(args, tiles.place(tile), sum, reinterpret_cast<float*>(shared + kRings), team, member);
            GEMMTUNE_UNROLL
            for (auto& down : sum)
                for (auto& across : down)
                    for (float& one : across) one = 0.0f;
            turn = 0, tile += step;
        }
        wait_copies<0>();
    }

private:
    using Sums = float[kTiles][kHalves][4];

    static GEMMTUNE_DEVICE void team_barrier(int team) {
        if constexpr (WARPS_M == 1) warp_barrier();
        else if constexpr (WARPS_K == 1) block_barrier();
        else named_barrier_sync<kTeam>(1 + team);
    }

    // Where a word of a line lies in a slot.
    static GEMMTUNE_DEVICE int place(int line, int unit) { return line * kLine + (unit ^ line % 2 * 4) * 16; }

    // This thread's copies: the same word of every kOn-th line of a tile's weights and columns.
    struct Copies {
        const char *a, *b;
        i64 step_a, step_b;
        int line, unit, rows, columns, k;

        GEMMTUNE_DEVICE explicit Copies(const GemmArgs& args) : a(nullptr), b(nullptr), rows(0), columns(0) {
            const int mine = static_cast<int>(thread_index()) % kTeam;
            line = mine / kUnits, unit = mine % kUnits;
            step_a = opaque(args.lda * (2 * kOn)), step_b = opaque(args.ldb * (2 * kOn));
            k = args.k - unit * 8;
        }

        GEMMTUNE_DEVICE void start(const GemmArgs& args, const GroupedTilePlace& at) {
            const i64 row = at.group * args.stride_a + (at.row + line) * args.lda;
            const i64 column = (static_cast<i64>(at.start) + at.column + line) * args.ldb;
            a = static_cast<const char*>(args.a) + (row + unit * 8) * 2;
            b = static_cast<const char*>(args.b) + (column + unit * 8) * 2;
            rows = args.m - at.row - line, columns = at.columns - line;
        }

        // Lines that do not exist are neither copied nor set to zero: each line contributes to its own sums alone,
        // which are dropped. Beyond k both operands are zero.
        GEMMTUNE_DEVICE void chunk(char* slot, int number) const {
            const i64 at = static_cast<i64>(number) * kLine;
            if (k - number * BK > 0) {
                copy<kAll>(slot, 0, a + at, step_a, rows);
                copy<COLUMNS>(slot, kAll, b + at, step_b, columns);
            } else {
                clear<kAll + COLUMNS>(slot);
            }
        }

    private:
        template <int LINES>
        GEMMTUNE_DEVICE void copy(char* slot, int first, const char* source, i64 step, int left) const {
            GEMMTUNE_UNROLL
            for (int on = 0; on < LINES; on += kOn) {
                const bool there = on < left && (LINES % kOn == 0 || on + line < LINES);
                copy_async16_if(there, slot + place(first + on + line, unit), source);
                source += step;
            }
        }
        template <int LINES>
        GEMMTUNE_DEVICE void clear(char* slot) const {
            GEMMTUNE_ROLL
            for (int on = line; on < LINES; on += kOn) write16(slot + place(on, unit), Words{{0, 0, 0, 0}});
        }
    };

    static GEMMTUNE_DEVICE void multiply(const char* slot, int member, Sums& sum) {
        const int group = lane_index() / 4, word = lane_index() % 4;
        GEMMTUNE_UNROLL_BY(2)
        for (int step = 0; step < BK / 32; ++step) {
            unsigned x[kHalves][4];
            GEMMTUNE_UNROLL
            for (int half = 0; half < kHalves; ++half) read(slot, kAll + half * 8 + group, step * 4 + word, x[half]);
            GEMMTUNE_UNROLL
            for (int tile = 0; tile < kTiles; ++tile) {
                unsigned low[4], high[4];
                const int row = member * ROWS + tile * 16 + group;
                read(slot, row, step * 4 + word, low);
                read(slot, row + 8, step * 4 + word, high);
                GEMMTUNE_UNROLL
                for (int half = 0; half < kHalves; ++half) {
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; i += 2) {
                        const unsigned of_a[4] = {low[i], high[i], low[i + 1], high[i + 1]};
                        const unsigned of_b[2] = {x[half][i], x[half][i + 1]};
                        mma_16x8x16<T>(sum[tile][half], of_a, of_b);
                    }
                }
            }
        }
    }
    static GEMMTUNE_DEVICE void read(const char* slot, int line, int unit, unsigned (&out)[4]) {
        const Words all = read_shared<Words>(slot + place(line, unit));
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) out[i] = all.at[i];
    }

    // Adds the teams' sums and stores them; neighbouring threads store neighbours in D's columns.
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, const GroupedTilePlace& at, const Sums& sum, float* parts,
                                      int team, int member) {
        const int group = lane_index() / 4, pair = lane_index() % 4 * 2;
        block_barrier();  // the previous tile's sums have been read
        GEMMTUNE_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
            GEMMTUNE_UNROLL
            for (int half = 0; half < kHalves; ++half) {
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const int row = member * ROWS + tile * 16 + i / 2 * 8 + group, column = half * 8 + pair + i % 2;
                    parts[team * kPart + column * kPitch + row] = sum[tile][half][i];
                }
            }
        }
        block_barrier();
        D* const d = static_cast<D*>(args.d) + (static_cast<i64>(at.start) + at.column) * args.d_column + at.row;
        const int rows = args.m - at.row;
        GEMMTUNE_ROLL
        for (int i = static_cast<int>(thread_index()); i < kAll * at.columns; i += kThreads) {
            const int row = i % kAll, column = i / kAll;
            float whole = 0.0f;
            GEMMTUNE_UNROLL
            for (int part = 0; part < WARPS_K; ++part) whole += parts[part * kPart + column * kPitch + row];
            if (row < rows) d[column * args.d_column + row] = narrow<D>(whole);
        }
    }
};

}  // namespace gemmtune
