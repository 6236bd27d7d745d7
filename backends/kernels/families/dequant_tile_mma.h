// Quantised weights times many columns of 16-bit activations on tensor cores (mma.sync, sm_80 and later): a block
// computes a tile of D, BM rows of weights by BN columns, or with split k one slice's partial sums of it. Each warp has
// WM x WN of the tile.
//
// Weights, as they are stored, and activations, BK elements of k at a time, pass through a pipeline of STAGES buffers
// in shared memory, which asynchronous copies of the whole block fill; scales and zero points of eight groups through
// two pages (dequant_stages.h). Synchronisation is as in tile_product.h: while a stage is multiplied, STAGES - 1 are in
// flight; the last of them replaces the one before, which every warp has read when it passes the barrier in the last
// step of that one.
//
// A warp converts its own rows of weights in registers, sixteen rows and 32 elements of k at a time, while its tensor
// core multiplies those before. So a weight is converted BN / WN times in a block, and a warp with more columns
// converts less for each product: with 64 columns two instructions for an mma.sync. The activations of a step stay in
// registers for all of a warp's rows, and are replaced by the next step's as the last rows use them.
//
// Every weight is multiplied by its scale and thereby rounded once to the activations' type: sums of a group of their
// own would take as many registers as the sums. MXFP4's scales are powers of two, so that its products are exact. A
// row's only scale multiplies its sums.
#pragma once

#include "device/dequant_stages.h"
#include "device/tile_product.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, int BM, int BN, int BK, int WM, int WN, int STAGES, int GROUP>
struct DequantTileMma {
    using Args = WeightArgs;
    using Product = TileProduct<TYPES, true, true, kAt16, kAt16, BM, BN, 64, WM, WN, 2>;  // its parts and sums alone
    using Stages = DequantStages<TYPES, QUANT, BM, BN, BK, Product::kWarps>;
    using T = typename Stages::T;
    static constexpr int kThreads = Product::kThreads, kMinBlocks = 0;
    static constexpr int kStage = Stages::kStage, kPipeline = STAGES * kStage, kPages = 2;
    static constexpr int kAll = kPipeline + kPages * Stages::kPage;
    static constexpr int kSharedBytes = kAll > Product::kPatches ? kAll : Product::kPatches;
    static constexpr int kAhead = STAGES - 1, kSteps = Stages::kSteps;
    static constexpr int kTiles = WM / 16, kHalves = WN / 8;  // of a warp
    static constexpr bool kGrouped = Stages::kGrouped;
    static constexpr int kOfPage = Stages::kPageK / BK;  // stages
    static_assert(kTiles % 2 == 0, "two tiles' converted weights take turns");
    static_assert(!kGrouped || kAhead * BK <= Stages::kPageK, "a page is read when the next but one is copied");

    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const Args& all, char* shared) {
        const GemmArgs& args = all.gemm;
        const Task task(args);
        i64 i, j;
        TileOrder<BM, BN, GROUP>(args).place(block_x(), i, j);
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        Pipeline pipeline(all, i, j, mine);
        typename Product::Sums sum = {};
        // (Of all that is known of the tile, these numbers alone take registers meanwhile.)
        const int row = opaque(static_cast<int>(i)), column = opaque(static_cast<int>(j));
        wait_for_launches();
        if (task.beyond(args)) return;
        const typename Product::Part part(args, i, j);
        if (part.idle) only_copy(pipeline, mine.end - mine.begin, shared);
        else multiply(all, pipeline, part, mine.end - mine.begin, shared, sum);
        wait_copies<0>();
        release_reduce(args);
        block_barrier();  // sums take the pipeline's place
        store(all, task, typename Product::Part(args, row, column), shared, sum);
    }

private:
    using Reads = typename Stages::Reads;

    // The pipeline of a thread: what it copies, and where the stage that is read begins. The place of the one before is
    // free.
    struct Pipeline {
        StageCopies<typename Stages::LinesX, BN, kThreads> inputs;
        StageCopies<typename Stages::LinesW, BM, kThreads> weights;
        typename Stages::PageCopies pages;
        int left, page;  // elements of k from the next stage to be copied on; its page
        int from;

        GEMMTUNE_DEVICE Pipeline(const Args& all, i64 i, i64 j, const Slice<BK>& mine)
            : inputs(static_cast<const T*>(all.gemm.b) + j * all.gemm.ldb, all.gemm.ldb * 2, all.gemm.n - j,
                     i64(mine.begin) * BK * 2),
              weights(static_cast<const char*>(all.gemm.a) + i * all.gemm.lda, all.gemm.lda, all.gemm.m - i,
                      i64(mine.begin) * BK * QUANT::kBits / 8),
              pages(all, i), page(mine.begin / kOfPage), from(0) {
            const int end = mine.end * BK < all.gemm.k ? mine.end * BK : all.gemm.k;
            left = opaque(end - mine.begin * BK);
        }

        GEMMTUNE_DEVICE void begin(char* shared) {
            GEMMTUNE_ROLL
            for (int stage = 0; stage < kAhead; ++stage) copy(shared, stage, stage * kStage);
            arrived();
        }
        // Starts the copies of stage number `stage`, and of its page if it is the first one that needs it.
        GEMMTUNE_DEVICE void copy(char* shared, int stage, int to) {
            if (kGrouped && stage % kOfPage == 0 && left > 0) {
                pages.run(shared + kPipeline + page_place(stage), page, left);
                ++page;
            }
            if (left >= BK) {
                inputs.template run<true>(shared + to + Stages::kX, 0);
                weights.template run<true>(shared + to + Stages::kW, 0);
            } else if (left > 0) {
                inputs.template run<false>(shared + to + Stages::kX, left * 2);
                weights.template run<false>(shared + to + Stages::kW, left * QUANT::kBits / 8);
            }
            commit_copies();  // also an empty group: groups are counted
            left -= BK;
        }
        // While stage number `stage` is read.
        GEMMTUNE_DEVICE void copy(char* shared, int stage) {
            copy(shared, stage + kAhead, from == 0 ? kPipeline - kStage : from - kStage);
        }
        // Waits until the next stage is there, which is read from then on.
        GEMMTUNE_DEVICE void next() {
            arrived();
            from = from == kPipeline - kStage ? 0 : from + kStage;
        }

    private:
        static GEMMTUNE_DEVICE void arrived() {
            wait_copies<kAhead - 1>();
            named_barrier_sync<kThreads>();  // idle warps come from another place in the program
        }
    };

    // Where a stage's scales begin among the pages.
    static GEMMTUNE_DEVICE int page_place(int stage) { return stage / kOfPage % kPages * Stages::kPage; }

    // For a warp without an element of D.
    static GEMMTUNE_DEVICE void only_copy(Pipeline& pipeline, int stages, char* shared) {
        pipeline.begin(shared);
        GEMMTUNE_ROLL
        for (int stage = 0; stage < stages; ++stage) pipeline.copy(shared, stage), pipeline.next();
    }

    static GEMMTUNE_DEVICE void multiply(const Args& all, Pipeline& pipeline, const typename Product::Part& part,
                                         int stages, char* shared, typename Product::Sums& sum) {
        const Reads reads(part.row, part.column, all);
        pipeline.begin(shared);
        unsigned inputs[kHalves][4], weights[2][2][4];
        typename Stages::template Rows<2 * kTiles> rows;
        const auto read_inputs = [&](int half, int step) {
            reads.inputs(shared + pipeline.from, half, step, inputs[half]);
        };
        const auto read_rows = [&](int stage, int step) {
            rows.read(shared + pipeline.from, reads, step);
            if (step * Stages::kStep % Stages::kGroup == 0) {
                const int of = (stage % kOfPage * BK + step * Stages::kStep) / Stages::kGroup;
                rows.read_scales(shared + kPipeline + page_place(stage), reads, of);
            }
        };
        const auto convert = [&](int tile) {
            GEMMTUNE_UNROLL
            for (int upper = 0; upper < 2; ++upper)
                rows.convert(2 * tile + upper, reads.mask, weights[tile % 2][upper]);
        };
        read_rows(0, 0);
        GEMMTUNE_UNROLL
        for (int half = 0; half < kHalves; ++half) read_inputs(half, 0);
        convert(0);
        GEMMTUNE_ROLL
        for (int stage = 0; stage < stages; ++stage) {
            GEMMTUNE_UNROLL
            for (int at = 0; at < kSteps * kTiles; ++at) {
                const int tile = at % kTiles, step = at / kTiles;
                const bool last = tile == kTiles - 1;
                if (at == 0) pipeline.copy(shared, stage);
                if (last && step == kSteps - 1) pipeline.next();
                // (After the last stage: stale ones, unused.)
                if (last) read_rows(stage + (step + 1) / kSteps, (step + 1) % kSteps);
                GEMMTUNE_UNROLL
                for (int half = 0; half < kHalves; ++half) product(weights[tile % 2], 0, tile, half, inputs, sum);
                convert((tile + 1) % kTiles);
                GEMMTUNE_UNROLL
                for (int half = 0; half < kHalves; ++half) {
                    product(weights[tile % 2], 2, tile, half, inputs, sum);
                    if (last) read_inputs(half, (step + 1) % kSteps);
                }
            }
        }
    }

    // Adds the products of sixteen of a step's elements of k, those that words `at` and at + 1 of the lanes have.
    static GEMMTUNE_DEVICE void product(const unsigned (&w)[2][4], int at, int tile, int half,
                                        const unsigned (&x)[kHalves][4], typename Product::Sums& sum) {
        const unsigned of_a[4] = {w[0][at], w[1][at], w[0][at + 1], w[1][at + 1]};
        const unsigned of_b[2] = {x[half][at], x[half][at + 1]};
        mma_16x8x16<T>(sum[half / 2][tile][half % 2], of_a, of_b);
    }

    // Multiplies a warp's sums by their rows' only scales.
    static GEMMTUNE_DEVICE void scale_rows(const Args& all, const typename Product::Part& part,
                                           typename Product::Sums& sum) {
        const auto* const scales = static_cast<const typename QUANT::Scale*>(all.scales);
        GEMMTUNE_UNROLL
        for (int r = 0; r < 2 * kTiles; ++r) {
            const i64 row = part.i + 8 * r + lane_index() / 4;
            const float factor = row < all.gemm.m ? widen(scales[row * all.scale_row]) * Stages::kUnshrunk : 0.0f;
            GEMMTUNE_UNROLL
            for (int half = 0; half < kHalves; ++half) {
                sum[half / 2][r / 2][half % 2][r % 2 * 2] *= factor;
                sum[half / 2][r / 2][half % 2][r % 2 * 2 + 1] *= factor;
            }
        }
    }

    static GEMMTUNE_DEVICE void store(const Args& all, Task task, const typename Product::Part& part, char* shared,
                                      typename Product::Sums& sum) {
        if (part.idle) return;
        if constexpr (!kGrouped) scale_rows(all, part, sum);
        Product::transpose_all(sum, part, shared, [&](i64 column, const float* patch) {
            if (all.gemm.splits > 1) store_partial(all.gemm, task, part, column, patch);
            else Product::finish(all.gemm, task.batch, part, column, patch);
        });
    }

    // Stores a slice's partial sums of a warp's columns from j on for Reduce.
    static GEMMTUNE_DEVICE void store_partial(const GemmArgs& args, Task task, const typename Product::Part& part,
                                              i64 j, const float* patch) {
        const i64 product = static_cast<i64>(task.slice) * args.batch + task.batch;
        float* const to = args.partial + (product * args.n + j) * args.m + part.i;
        Product::store(args, part, j, patch, to, args.m, [](float sum) { return sum; });
    }
};

}  // namespace gemmtune
