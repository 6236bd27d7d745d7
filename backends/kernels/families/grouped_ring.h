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
//
// 8-bit floats are converted to fp16 in registers and multiplied by the same instruction (byte_tiles.h). Scales of
// blocks are copied with their chunk; scales of rows multiply a tile's finished sums.
//
// Quantised weights are read as they are stored and dequantised in registers, by the chunks and products of
// dequant_ring.h (grouped_weights.h).
#pragma once

#include "device/byte_tiles.h"
#include "device/gated_rows.h"
#include "device/grouped.h"
#include "device/grouped_weights.h"
#include "device/mma.h"

namespace gemmtune {

// Lines of 16-bit or 8-bit elements: a team's chunk of them, its copies and its products. GATED: gated_rows.h.
template <typename TYPES, int COLUMNS, int ROWS, int BK, int WARPS_M, GroupedScales SCALES, bool GATED>
struct GroupedLines {
    using Of = GroupedOf<TYPES>;
    using Args = typename Of::Args;
    using T = typename Of::T;
    using D = typename Of::D;
    static constexpr bool kBytes = sizeof(T) == 1, kFinished = SCALES == kRowScales, kGated = GATED;
    static constexpr int kPlace = 16;                                            // where a slot begins, in bytes
    static constexpr int kTeam = 32 * WARPS_M, kAll = ROWS * WARPS_M;            // threads; rows of a block
    static constexpr int kChunk = BK;                                            // elements of k
    static constexpr int kSize = static_cast<int>(sizeof(T)), kOfUnit = 16 / kSize;
    static constexpr int kLine = BK * kSize, kUnits = kLine / 16;                // of a line: bytes, 16-byte words
    static constexpr int kOn = kTeam / kUnits;                                   // lines that a team copies at once
    static constexpr int kTiles = ROWS / 16, kHalves = COLUMNS / 8;              // accumulators down and across
    // Scales of a chunk of a tile's rows or of a column, and where they begin: those of kAll / 16 tiles, of COLUMNS.
    static constexpr int kScales = SCALES == kBlockScales ? BK / kScaleBlock : 0;
    static constexpr int kS = (kAll + COLUMNS) * kLine, kT = kS + kAll / 16 * kScales * 4;
    static constexpr int kSlot = (kT + COLUMNS * kScales * 4 + 15) / 16 * 16;
    using Sums = float[kTiles][kHalves][4];
    static_assert(kSize <= 2 && kWarp == 32, "8-bit or 16-bit elements in fragments of 32 lanes");
    static_assert(kBytes == (SCALES != kUnscaled), "8-bit floats have scales");
    static_assert(ROWS % 16 == 0 && COLUMNS % 8 == 0 && kLine % 128 == 0, "whole tiles, whole banks");
    static_assert(SCALES != kBlockScales || BK % kScaleBlock == 0, "whole blocks");
    static_assert(kOn >= 1 && kAll % kOn == 0, "a team copies whole lines of weights at a time");
    static_assert(!GATED || (kOn % 2 == 0 && !kBytes), "a team copies pairs of lines of 16-bit weights at a time");

    // A warp of the team.
    struct Member {
        int member;
        GEMMTUNE_DEVICE Member(const Args&, int warp) : member(warp) {}
    };

    // Where a word of a line lies in a slot.
    static GEMMTUNE_DEVICE int place(int line, int unit) { return line * kLine + (unit ^ line % 2 * 4) * 16; }

    // This thread's copies: the same word of every kOn-th line of a tile's weights and columns.
    struct Copies {
        const char *a, *b;
        const float *of_rows, *of_columns;  // kBlockScales: of the tile's first rows, and of its first column
        i64 step_a, step_b;
        int line, unit, rows, columns, k;
        int mine, blocks, offset, all_rows, all_columns;  // kBlockScales: along k; the first row's place in its block

        GEMMTUNE_DEVICE explicit Copies(const Args& all)
            : a(nullptr), b(nullptr), of_rows(nullptr), of_columns(nullptr), rows(0), columns(0) {
            const GemmArgs& args = all.gemm;
            mine = static_cast<int>(thread_index()) % kTeam;
            line = mine / kUnits, unit = mine % kUnits;
            step_a = opaque(args.lda * (kSize * (GATED ? kOn / 2 : kOn))), step_b = opaque(args.ldb * (kSize * kOn));
            k = args.k - unit * kOfUnit, blocks = (args.k - 1) / kScaleBlock + 1;
        }

        GEMMTUNE_DEVICE void start(const Args& all, const GroupedTilePlace& at) {
            const GemmArgs& args = all.gemm;
            const i64 half = args.m / 2 * args.lda;
            const i64 row = at.group * args.stride_a + (GATED ? gated_line(at.row + line, args.lda, half)
                                                              : (at.row + line) * args.lda);
            const i64 column = (static_cast<i64>(at.start) + at.column + line) * args.ldb;
            a = static_cast<const char*>(args.a) + (row + unit * kOfUnit) * kSize;
            b = static_cast<const char*>(args.b) + (column + unit * kOfUnit) * kSize;
            rows = args.m - at.row - line, columns = at.columns - line;
            if constexpr (SCALES == kBlockScales) {
                const i64 down = (args.m - 1) / kScaleBlock + 1;
                offset = at.row % kScaleBlock, all_rows = args.m - at.row, all_columns = at.columns;
                of_rows = all.scale_a + (at.group * down + at.row / kScaleBlock) * blocks;
                of_columns = all.scale_b + (static_cast<i64>(at.start) + at.column) * blocks;
            }
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
            if constexpr (SCALES == kBlockScales) copy_scales(slot, number * kScales);
        }

    private:
        // Scales of the chunk's blocks, from block `from` on. Those that do not exist are zero.
        GEMMTUNE_DEVICE void copy_scales(char* slot, int from) const {
            for (int i = mine; i < kAll / 16 * kScales; i += kTeam) {
                const int row = i / kScales * 16, block = from + i % kScales;
                const bool there = row < all_rows && block < blocks;
                const int on = there ? (offset + row) / kScaleBlock * blocks + block : 0;
                copy_async4(slot + kS + i * 4, of_rows + on, there ? 4 : 0);
            }
            for (int i = mine; i < COLUMNS * kScales; i += kTeam) {
                const int column = i / kScales, block = from + i % kScales;
                const bool there = column < all_columns && block < blocks;
                copy_async4(slot + kT + i * 4, of_columns + (there ? column * blocks + block : 0), there ? 4 : 0);
            }
        }
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

    static GEMMTUNE_DEVICE void multiply(const char* slot, const Member& warp, Sums& sum) {
        if constexpr (kBytes)
            ByteTiles<ByteProducts<T, T>, kTiles, kHalves, BK / 64, SCALES == kBlockScales>::multiply(
                slot, Reads(warp.member), sum);
        else multiply_shorts(slot, warp.member, sum);
    }
    static GEMMTUNE_DEVICE void show() {}
    // The scale of a finished sum.
    static GEMMTUNE_DEVICE float finished(const Args& all, const GroupedTilePlace& at, int row, int column) {
        if constexpr (kFinished)
            return all.scale_a[static_cast<i64>(at.group) * all.gemm.m + at.row + row] *
                   all.scale_b[at.start + at.column + column];
        else return 1.0f;
    }

private:
    // Where a lane reads (byte_tiles.h).
    struct Reads {
        int row, first, word;  // the warp's first row in the block; the lane's row of every eight, and its word
        GEMMTUNE_DEVICE explicit Reads(int member)
            : row(member * ROWS), first(lane_index() / 4), word(lane_index() % 4) {}
        GEMMTUNE_DEVICE Words weights(const char* slot, int from, int step) const {
            return read_shared<Words>(slot + place(row + from + first, step * 4 + word));
        }
        GEMMTUNE_DEVICE Words inputs(const char* slot, int half, int step) const {
            return read_shared<Words>(slot + place(kAll + half * 8 + first, step * 4 + word));
        }
        GEMMTUNE_DEVICE float of_rows(const char* slot, int tile, int of) const {
            return reinterpret_cast<const float*>(slot + kS)[(row / 16 + tile) * kScales + of];
        }
        GEMMTUNE_DEVICE float of_column(const char* slot, int column, int of) const {
            return reinterpret_cast<const float*>(slot + kT)[column * kScales + of];
        }
    };

    static GEMMTUNE_DEVICE void multiply_shorts(const char* slot, int member, Sums& sum) {
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
};

// LINES: what a chunk has. BLOCKS: resident blocks of a multiprocessor.
template <typename LINES, int GROUPS, int COLUMNS, int SLOTS, int WARPS_M, int WARPS_K, int BLOCKS>
struct GroupedRings {
    using Args = typename LINES::Args;
    using D = typename LINES::D;
    static constexpr int kTeam = LINES::kTeam, kThreads = kTeam * WARPS_K, kMinBlocks = BLOCKS;
    static constexpr int kAll = LINES::kAll, kTiles = LINES::kTiles, kHalves = LINES::kHalves, BK = LINES::kChunk;
    static constexpr int kSlot = LINES::kSlot, kRings = WARPS_K * SLOTS * kSlot;
    static constexpr int kPitch = kAll + 8, kPart = COLUMNS * kPitch;            // of a team's sums, in floats
    using Tiles = GroupedTiles<GROUPS, COLUMNS, kAll>;
    static constexpr int kTable = kRings + WARPS_K * kPart * 4, kPlace = LINES::kPlace;
    static constexpr int kSharedBytes = (kTable + Tiles::kBytes + kPlace - 1) / kPlace * kPlace;
    static_assert(SLOTS >= 2, "a chunk is read while another arrives");
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
        const typename LINES::Member reads(all, member);
        Copies copies(all);
        unsigned next = block_x(), tile = next;  // tiles: whose chunks are copied, and multiplied
        int copied = 0, copy_turn = 0, turn = 0, to = 0, from = 0;
        Sums sum = {};
        // The first SLOTS - 1 iterations only copy. Every team has the same iterations, the last of a tile maybe
        // without a chunk.
        GEMMTUNE_ROLL
        for (int ahead = 1 - SLOTS; ahead < total; ++ahead) {
            if (ahead >= 0) {
                wait_copies<SLOTS - 2>();
                LINES::show();
                team_barrier(team);  // this chunk has arrived; the previous one's place is free
            }
            if (copied < total) {
                if (copy_turn == 0) copies.start(all, tiles.place(next));
                const int chunk = copy_turn * WARPS_K + team;
                if (chunk < chunks) copies.chunk(ring + to, chunk);
                ++copied;
                if (++copy_turn == turns) copy_turn = 0, next += step;
            }
            commit_copies();  // also an empty group: groups are counted
            to = to + kSlot == SLOTS * kSlot ? 0 : to + kSlot;
            if (ahead < 0) continue;
            if (turn * WARPS_K + team < chunks) LINES::multiply(ring + from, reads, sum);
            from = from + kSlot == SLOTS * kSlot ? 0 : from + kSlot;
            if (++turn < turns) continue;
            store(all, tiles.place(tile), sum, reinterpret_cast<float*>(shared + kRings), team, member);
            GEMMTUNE_UNROLL
            for (auto& down : sum)
                for (auto& across : down)
                    for (float& one : across) one = 0.0f;
            turn = 0, tile += step;
        }
        wait_copies<0>();
    }

private:
    using Sums = typename LINES::Sums;
    using Copies = typename LINES::Copies;

    static GEMMTUNE_DEVICE void team_barrier(int team) {
        if constexpr (WARPS_M == 1) warp_barrier();
        else if constexpr (WARPS_K == 1) block_barrier();
        else named_barrier_sync<kTeam>(1 + team);
    }

    // Adds the teams' sums and stores them; neighbouring threads store neighbours in D's columns.
    static GEMMTUNE_DEVICE void store(const Args& all, const GroupedTilePlace& at, const Sums& sum, float* parts,
                                      int team, int member) {
        const GemmArgs& args = all.gemm;
        const int group = lane_index() / 4, pair = lane_index() % 4 * 2;
        block_barrier();  // the previous tile's sums have been read
        GEMMTUNE_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
            GEMMTUNE_UNROLL
            for (int half = 0; half < kHalves; ++half) {
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const int row = member * (kTiles * 16) + tile * 16 + i / 2 * 8 + group;
                    const int column = half * 8 + pair + i % 2;
                    parts[team * kPart + column * kPitch + row] = sum[tile][half][i];
                }
            }
        }
        block_barrier();
        D* const d = static_cast<D*>(args.d) + (static_cast<i64>(at.start) + at.column) * args.d_column;
        if constexpr (LINES::kGated) store_gated(args, at, parts, d + at.row / 2);
        else store_plain(all, at, parts, d + at.row);
    }
    static GEMMTUNE_DEVICE void store_gated(const GemmArgs& args, const GroupedTilePlace& at, const float* parts,
                                            D* d) {
        constexpr int kRows = kAll / 2;
        const int rows = (args.m - at.row) / 2;
        GEMMTUNE_ROLL
        for (int i = static_cast<int>(thread_index()); i < kRows * at.columns; i += kThreads) {
            const int row = i % kRows, column = i / kRows;
            float gate = 0.0f, up = 0.0f;
            GEMMTUNE_UNROLL
            for (int part = 0; part < WARPS_K; ++part) {
                const float* const from = parts + part * kPart + column * kPitch + row * 2;
                gate += from[0], up += from[1];
            }
            if (row < rows) d[column * args.d_column + row] = narrow<D>(gated(gate, up));
        }
    }
    static GEMMTUNE_DEVICE void store_plain(const Args& all, const GroupedTilePlace& at, const float* parts, D* d) {
        const GemmArgs& args = all.gemm;
        const int rows = args.m - at.row;
        GEMMTUNE_ROLL
        for (int i = static_cast<int>(thread_index()); i < kAll * at.columns; i += kThreads) {
            const int row = i % kAll, column = i / kAll;
            float whole = 0.0f;
            GEMMTUNE_UNROLL
            for (int part = 0; part < WARPS_K; ++part) whole += parts[part * kPart + column * kPitch + row];
            if constexpr (LINES::kFinished)
                if (row < rows) whole *= LINES::finished(all, at, row, column);
            if (row < rows) d[column * args.d_column + row] = narrow<D>(whole);
        }
    }
};

// Of 16-bit floats, or of 8-bit ones with scales.
template <typename TYPES, int GROUPS, int COLUMNS, int ROWS, int BK, int SLOTS, int WARPS_M, int WARPS_K, int BLOCKS,
          GroupedScales SCALES = kUnscaled, bool GATED = false>
struct GroupedRing
    : GroupedRings<GroupedLines<TYPES, COLUMNS, ROWS, BK, WARPS_M, SCALES, GATED>, GROUPS, COLUMNS, SLOTS, WARPS_M,
                   WARPS_K, BLOCKS> {};

// Of quantised weights.
template <typename TYPES, typename QUANT, int GROUPS, int COLUMNS, int ROWS, int BK, int SLOTS, int WARPS_M,
          int WARPS_K, int BLOCKS>
struct GroupedWeightRing
    : GroupedRings<GroupedWeights<TYPES, QUANT, COLUMNS, ROWS, BK, WARPS_M>, GROUPS, COLUMNS, SLOTS, WARPS_M, WARPS_K,
                   BLOCKS> {};

}  // namespace gemmtune
