// A thread computes COLUMNS neighbouring elements of one row of D. It loads an element of A once and uses it for
// COLUMNS FMAs, where naive and coalesced use it for one. Neighbouring threads have neighbouring rows, so a warp's
// accesses to D are coalesced.
#pragma once

#include "device/epilogue.h"

namespace gemmtune {

template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int THREADS, int COLUMNS>
struct RowStrip {
    using T = typename TYPES::Input;
    static constexpr int kThreads = THREADS, kMinBlocks = 0, kSharedBytes = 0;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char*) {
        // The block's rows and columns of D. Tiles of one column of tiles are neighbours in the grid.
        const int tiles_m = (args.m - 1) / THREADS + 1;
        const i64 i = static_cast<i64>(block_x() % tiles_m) * THREADS + thread_index();
        const i64 j = static_cast<i64>(block_x() / tiles_m) * COLUMNS;
        const Task task(args);  // the product of the batch
        if (i >= args.m || task.beyond(args)) return;

        const i64 a_step = A_ALONG_K ? 1 : args.lda, a_first = A_ALONG_K ? i * args.lda : i;
        const i64 b_step = B_ALONG_K ? 1 : args.ldb, b_column = B_ALONG_K ? args.ldb : 1;
        const T* a = static_cast<const T*>(args.a) + task.batch * args.stride_a + a_first;
        const T* b = static_cast<const T*>(args.b) + task.batch * args.stride_b + j * b_column;
        // A strip that ends beyond D loads its first column again: store() drops those sums.
        i64 at[COLUMNS];
        GEMMTUNE_UNROLL
        for (int c = 0; c < COLUMNS; ++c) at[c] = j + c < args.n ? c * b_column : 0;

        float sum[COLUMNS] = {};
        for (int p = 0; p < args.k; ++p, a += a_step, b += b_step) {
            const float value = widen(*a);
            GEMMTUNE_UNROLL
            for (int c = 0; c < COLUMNS; ++c) sum[c] += value * widen(b[at[c]]);
        }

        // alpha, beta, bias, activation and the conversion to D's type.
        const Finish<TYPES, 0> finish(args, task.batch, i, j);
        GEMMTUNE_UNROLL
        for (int c = 0; c < COLUMNS; ++c) finish.store(0, c, sum[c]);
    }
};

}  // namespace gemmtune
