// Each thread computes one element of D and reads its row of A and its column of B from global memory. D is
// column-major. With neighbouring threads along a row (naive), each touches a different cache line; with
// neighbouring threads along a column (coalesced), a warp's accesses to D, and to an A that is contiguous along
// m, are coalesced.
#pragma once

#include "device/epilogue.h"

namespace gemmtune {

template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int TILE_M, int TILE_N, bool COALESCED>
struct ElementPerThread {
    using T = typename TYPES::Input;
    static constexpr int kThreads = TILE_M * TILE_N, kMinBlocks = 0, kSharedBytes = 0;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char*) {
        const int t = static_cast<int>(thread_index());
        const int row = COALESCED ? t % TILE_M : t / TILE_N, column = COALESCED ? t / TILE_M : t % TILE_N;
        const int tiles_m = (args.m - 1) / TILE_M + 1;
        const i64 i = static_cast<i64>(block_x() % tiles_m) * TILE_M + row;
        const i64 j = static_cast<i64>(block_x() / tiles_m) * TILE_N + column;
        const Task task(args);
        if (i >= args.m || j >= args.n || task.beyond(args)) return;
        const i64 a_step = A_ALONG_K ? 1 : args.lda, b_step = B_ALONG_K ? 1 : args.ldb;
        const i64 a_first = A_ALONG_K ? i * args.lda : i, b_first = B_ALONG_K ? j * args.ldb : j;
        const T* a = static_cast<const T*>(args.a) + task.batch * args.stride_a + a_first;
        const T* b = static_cast<const T*>(args.b) + task.batch * args.stride_b + b_first;
        float sum = 0.0f;
        for (int p = 0; p < args.k; ++p) {
            sum += widen(*a) * widen(*b);
            a += a_step, b += b_step;
        }
        finish<TYPES>(args, task.batch, i, j, sum);
    }
};

}  // namespace gemmtune
