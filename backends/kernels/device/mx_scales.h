// Products of two MXFP4 operands: their argument (kernels/mx_products.py), and the scales of an operand's lines. A line
// (a row of A, a column of B) is K / 2 bytes along k, the even element in the low half, with a scale of e8m0 for each
// 32 elements.
//
// Scales multiply the sums of 32 products in fp32, where every such sum is exact: neither a scaled element nor the
// product of two need be in the range of 16 bits.
#pragma once

#include "device/dequantise.h"
#include "device/global_memory.h"

namespace gemmtune {

// `gemm` counts bytes along k, of two elements each: k, slice, lda and ldb. `groups`: scales of a line.
struct MxArgs {
    GemmArgs gemm;
    const unsigned char *scales_a, *scales_b;
    i64 groups;
};

// Four groups' scales of a line, the first in the lowest byte; of groups beyond k, and of lines beyond the operand,
// zero bytes, which are numbers. WORDS: lines are whole words of scales, and begin at multiples of them.
template <bool WORDS>
GEMMTUNE_DEVICE unsigned four_scales(const unsigned char* line, int group, int groups, bool there) {
    unsigned found = 0;
    if constexpr (WORDS) {
        if (there && group < groups) found = load_global(reinterpret_cast<const unsigned*>(line + group));
    } else {
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i)
            if (there && group + i < groups) found |= static_cast<unsigned>(load_global(line + group + i)) << 8 * i;
    }
    return found;
}

// Scale number `of` of four.
GEMMTUNE_DEVICE float scale_of(unsigned four, int of) {
    return widen(E8m0{static_cast<unsigned char>(four >> 8 * of)});
}

}  // namespace gemmtune
