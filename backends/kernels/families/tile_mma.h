// GEMMs of any size on tensor cores (mma.sync, sm_80 and later): a block computes a tile of D, or with split k
// one slice's partial sums of it (tile_product.h: the main loop).
#pragma once

#include "device/tile_product.h"

namespace gemmtune {

template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int START_A, int START_B, int BM, int BN, int BK,
          int WM, int WN, int STAGES, int GROUP>
struct TileMma {
    using Product = TileProduct<TYPES, A_ALONG_K, B_ALONG_K, START_A, START_B, BM, BN, BK, WM, WN, STAGES>;
    static constexpr int kThreads = Product::kThreads, kMinBlocks = 0;
    static constexpr int kSharedBytes = Product::kSharedBytes;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Task task(args);
        if (task.beyond(args)) return;
        i64 i, j;
        TileOrder<BM, BN, GROUP>(args).place(block_x(), i, j);
        const typename Product::Part part(args, i, j);
        const Slice<BK> mine(args, task, (static_cast<unsigned>(args.k) - 1) / BK + 1);
        typename Product::Sums sum = {};
        Product::multiply(args, task.batch, part, mine.begin, mine.end, shared, sum);
        release_reduce(args);
        if (part.idle) return;
        Product::transpose_all(sum, part, shared, [&](i64 column, const float* patch) {
            if (args.splits > 1) store_partial(args, task, part, column, patch);
            else Product::finish(args, task.batch, part, column, patch);
        });
    }

private:
    // Stores a slice's partial sums of a warp's columns from j on for Reduce.
    static GEMMTUNE_DEVICE void store_partial(const GemmArgs& args, Task task,
                                              const typename Product::Part& part, i64 j, const float* patch) {
        const i64 product = static_cast<i64>(task.slice) * args.batch + task.batch;
        float* const to = args.partial + (product * args.n + j) * args.m + part.i;
        Product::store(args, part, j, patch, to, args.m, [](float sum) { return sum; });
    }
};

}  // namespace gemmtune
