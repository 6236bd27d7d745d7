// A tile of a grouped product as AMD's kernels compute it: a product of its own, by the group's weights.
#pragma once

#include "device/grouped.h"
#include "device/matrix_core.h"
#include "device/matrix_epilogue.h"

namespace gemmtune {

// What was read from shared memory, in scalar registers: the main loop's addresses and branches are.
GEMMTUNE_DEVICE GroupedTilePlace same_for_all(const GroupedTilePlace& at) {
    return {uniform(at.group), uniform(at.start), uniform(at.row), uniform(at.column), uniform(at.columns)};
}

// The product of the tile's columns: B and D begin at the first, and end behind the last. Grouped products have no
// epilogue. SIZE_A, SIZE_B: bytes that the operands' strides count.
template <int SIZE_A, int SIZE_B, typename D>
GEMMTUNE_DEVICE ScaledArgs of_group(const GemmArgs& args, const GroupedTilePlace& at) {
    const i64 first = static_cast<i64>(at.start) + at.column;
    ScaledArgs own = {};
    own.a = static_cast<const char*>(args.a) + at.group * args.stride_a * SIZE_A;
    own.b = static_cast<const char*>(args.b) + first * args.ldb * SIZE_B;
    own.d = static_cast<D*>(args.d) + first * args.d_column;
    own.lda = args.lda, own.ldb = args.ldb, own.d_row = args.d_row, own.d_column = args.d_column;
    own.m = args.m, own.n = at.columns, own.k = args.k;
    own.alpha = 1.0f;
    return own;
}

}  // namespace gemmtune
