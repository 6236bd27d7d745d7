// Stream-K on tensor cores (mma.sync, sm_80 and later): GEMMs of any size without a last wave that leaves
// multiprocessors idle (Osama et al., "Stream-K: work-centric parallel decomposition for dense matrix-matrix
// multiplication on the GPU", PPoPP 2023). The grid has as many blocks as run at once, each with the same
// amount of work:
//
//   whole tiles   The first args.whole tiles are assigned round-robin, as whole waves of blocks would process
//                 them.
//   streamed      The remaining tiles, fewer than two for each block, are cut into units: the steps of a tile
//                 along k, BK each. Units are numbered tile by tile, and a block has a contiguous range of
//                 args.share of them, or of one more. So a tile may consist of pieces of several blocks, and a
//                 block may have pieces of several tiles; only its first and its last piece can be less than a
//                 whole tile.
//
// A block that computes a whole tile also finishes it. The partial sums of any other piece are stored in the
// workspace, in one of the block's own two slots: one for a piece that begins within a tile, one for a piece
// that begins at a tile's start. A second launch, FixUp, adds the pieces of a tile in the order of k and
// finishes it. So no block waits for another, the workspace need not be cleared, and the order of summation is
// the same every time, on every GPU with the same number of multiprocessors.
//
// Streamed tiles are computed last, so that their partial sums are still in L2 when FixUp reads them.
#pragma once

#include "device/tile_product.h"

namespace gemmtune {

// The distribution of units: those of a block are [begin(block), begin(block + 1)); all of them end at
// begin(args.blocks).
struct Stream {
    unsigned share, extra;

    GEMMTUNE_DEVICE explicit Stream(const GemmArgs& args)
        : share(static_cast<unsigned>(args.share)), extra(static_cast<unsigned>(args.extra)) {}

    GEMMTUNE_DEVICE unsigned begin(unsigned block) const {
        return block * share + (block < extra ? block : extra);
    }
    // The block that has a unit. (If share is 0, only the first `extra` blocks have units.)
    GEMMTUNE_DEVICE unsigned owner(unsigned unit) const {
        const unsigned longer = extra * (share + 1);
        return unit < longer ? unit / (share + 1) : extra + (unit - longer) / share;
    }
};

// BLOCKS: resident blocks of a multiprocessor.
template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int START_A, int START_B, int BM, int BN, int BK,
          int WM, int WN, int STAGES, int GROUP, int BLOCKS>
struct StreamK {
    using Product = TileProduct<TYPES, A_ALONG_K, B_ALONG_K, START_A, START_B, BM, BN, BK, WM, WN, STAGES>;
    using Part = typename Product::Part;
    using SumsOfColumns = typename Product::SumsOfColumns;
    static constexpr int kThreads = Product::kThreads, kMinBlocks = BLOCKS;
    static constexpr int kSharedBytes = Product::kSharedBytes;
    static_assert(BLOCKS >= 1, "some block is there");

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Tiles tiles(args);
        const Stream stream(args);
        const unsigned whole = static_cast<unsigned>(args.whole);
        unsigned turn = block_x(), unit = stream.begin(turn);
        const unsigned end = stream.begin(turn + 1);
        while (turn < whole || unit < end) {
            Piece piece{turn, 0, tiles.steps};
            if (turn < whole) {
                turn += static_cast<unsigned>(args.blocks);
            } else {
                const unsigned tile = unit / tiles.steps, from = unit % tiles.steps;
                const unsigned left = tiles.steps - from, mine = end - unit;
                piece = {whole + tile, from, from + (left < mine ? left : mine)};
                unit += piece.end - piece.begin;
            }
            compute(args, tiles, piece, turn >= whole && unit >= end, shared);
        }
    }

private:
    struct Tiles {
        TileOrder<BM, BN, GROUP> order;
        unsigned each, steps;  // tiles of a GEMM; units of a tile

        GEMMTUNE_DEVICE explicit Tiles(const GemmArgs& args)
            : order(args), each(order.tiles_m * order.tiles_n),
              steps((static_cast<unsigned>(args.k) - 1) / BK + 1) {}

        // Tiles of the whole batch are numbered GEMM by GEMM. Sets the tile's first row and column; returns the
        // index of the GEMM.
        GEMMTUNE_DEVICE unsigned place(unsigned tile, i64& i, i64& j) const {
            order.place(tile % each, i, j);
            return tile / each;
        }
    };

    struct Piece {
        unsigned tile, begin, end;
    };

    // The address in the workspace of four of a thread's sums, those of one instruction. Sums are stored in the
    // order in which threads hold them, so that neighbouring threads write and read contiguous 16-byte words,
    // whatever part of the tile lies in D.
    static GEMMTUNE_DEVICE float* kept(const GemmArgs& args, unsigned block, bool from_start, int c,
                                       int of) {
        const i64 piece = static_cast<i64>(block) * 2 + from_start;
        const int four = c * (2 * Product::kTilesM) + of;
        return args.partial + piece * (BM * BN) + (four * kThreads + static_cast<int>(thread_index())) * 4;
    }

    static GEMMTUNE_DEVICE void store_partial(const GemmArgs& args, bool from_start, int c,
                                              const SumsOfColumns& sum) {
        GEMMTUNE_UNROLL
        for (int of = 0; of < 2 * Product::kTilesM; ++of) {
            Words four;
            GEMMTUNE_UNROLL
            for (int e = 0; e < 4; ++e) four.at[e] = as_unsigned(sum[of / 2][of % 2][e]);
            write16(kept(args, block_x(), from_start, c, of), four);
        }
    }

    static GEMMTUNE_DEVICE void compute(const GemmArgs& args, const Tiles& tiles, Piece piece, bool last,
                                        char* shared) {
        i64 i, j;
        const unsigned batch = tiles.place(piece.tile, i, j);
        const Part part(args, i, j);
        typename Product::Sums sum = {};
        const int begin = static_cast<int>(piece.begin), end = static_cast<int>(piece.end);
        Product::multiply(args, batch, part, begin, end, shared, sum);
        if (last && (args.share || args.extra)) launch_dependents();
        const bool all = piece.begin == 0 && piece.end == tiles.steps;
        const auto finish = [&](i64 column, const float* patch) {
            Product::finish(args, batch, part, column, patch);
        };
        if (!part.idle && all) Product::transpose_all(sum, part, shared, finish);
        if (!part.idle && !all) {
            GEMMTUNE_UNROLL
            for (int c = 0; c < Product::kTilesN; ++c) store_partial(args, piece.begin == 0, c, sum[c]);
        }
        block_barrier();  // the patches are read: the next piece's tiles are copied to where they lie
    }

public:
    // The second launch: block (tile, c) adds the pieces of a streamed tile, for column group c of every warp.
    struct FixUp {
        static constexpr int kThreads = Product::kThreads, kMinBlocks = 0;
        static constexpr int kSharedBytes = Product::kPatches;

        static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
            const Tiles tiles(args);
            const Stream stream(args);
            const unsigned first = block_x() * tiles.steps, last = first + tiles.steps;
            const int c = static_cast<int>(block_y());
            unsigned block = stream.owner(first);
            i64 i, j;
            const unsigned batch = tiles.place(static_cast<unsigned>(args.whole) + block_x(), i, j);
            const Part part(args, i, j);
            const bool finished = stream.begin(block + 1) >= last;  // by the block that computed all of it
            if (finished || part.idle) return;
            SumsOfColumns sum = {};
            for (; stream.begin(block) < last; ++block) {
                const bool from_start = stream.begin(block) <= first;
                GEMMTUNE_UNROLL
                for (int of = 0; of < 2 * Product::kTilesM; ++of) {
                    const Words four = read16(kept(args, block, from_start, c, of));
                    GEMMTUNE_UNROLL
                    for (int e = 0; e < 4; ++e) sum[of / 2][of % 2][e] += as_float(four.at[e]);
                }
            }
            Product::transpose(sum, part, c, shared, [&](i64 column, const float* patch) {
                Product::finish(args, batch, part, column, patch);
            });
        }
    };
};

}  // namespace gemmtune
