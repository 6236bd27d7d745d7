// What follows a library's int8 product: D = activation(alpha scale_a[i] scale_b[j] sum + beta C + bias) from sums of
// int32 in one pass, as a framework's compiler fuses it. A thread has four neighbouring rows of a column.
//
// OF_C, OF_D, OF_BIAS: element types (small_types.h). `partial` holds the sums, [n][m]; m is a multiple of four.
#pragma once

#include "device/matrix_epilogue.h"

namespace gemmtune {

struct Rescale {
    using Args = ScaledArgs;
    static constexpr int kThreads = 256, kMinBlocks = 0, kSharedBytes = 0;

    static GEMMTUNE_DEVICE void run(const ScaledArgs& args, char*) {
        using Finish = MatrixFinish<MatrixTypes<Int8, Int8, OF_C, OF_D, OF_BIAS>>;
        const u64 at = static_cast<u64>(block_x()) * kThreads + thread_index();
        const unsigned fours = static_cast<unsigned>(args.m) / 4;
        const u64 column = at / fours;
        if (column >= static_cast<unsigned>(args.n)) return;
        const i64 row = static_cast<i64>(at % fours) * 4, j = static_cast<i64>(column);
        const Words words = read16(args.partial + (j * args.m + row));
        int sum[4];
        GEMMTUNE_UNROLL
        for (int e = 0; e < 4; ++e) sum[e] = static_cast<int>(words.at[e]);
        Finish(args, 0, row, j).store4(0, 0, sum);
    }
};

}  // namespace gemmtune

GEMMTUNE_KERNEL(rescale, gemmtune::Rescale)
