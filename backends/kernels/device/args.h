// The argument of every kernel: one product of a batch, as product.py: GemmArgs lays it out.
//
// D[i, j] = activation(alpha sum_p A[i, p] B[p, j] + beta C[i, j] + bias), i < m, j < n, p < k, for each of
// `batch`. Which index of A and of B is contiguous is a kernel's template argument; lda and ldb step the
// other one. C, D and the bias have a stride for each index, so that a family may compute the transposed
// product.
#pragma once

#include "device/types.h"

namespace gemmtune {

enum Activation { kNone = 0, kRelu = 1, kGelu = 2, kSilu = 3 };

struct GemmArgs {
    const void *a, *b, *c, *bias;  // c, bias: null where there is none
    void* d;
    float* partial;  // workspace: [splits][batch][n][m] sums of a slice of k each, where splits > 1
    i64 lda, ldb, stride_a, stride_b, stride_c, stride_d;  // elements
    i64 c_row, c_column, d_row, d_column, bias_row, bias_column;
    i64 a_bytes, b_bytes;  // from an operand's first element (of the first batch) to the end of its last
    int m, n, k, batch;
    int splits;         // slices of k, each a block's (grid.y)
    unsigned slice;     // elements of k of each
    int batch_blocks;   // grid.z: products of a batch, as many as a grid has there
    int batch_groups;   // and how often that many; grid.y is splits * batch_groups
    int activation;
    // Of families whose blocks take tile after tile (stream_k.h): how many blocks there are; tiles that are
    // computed whole; units of the others that each block has, and blocks that have one more.
    int blocks, whole, share, extra;
    float alpha, beta;
};

// What a family's kernel is given: GemmArgs, or what the family says that holds them.
template <typename>
struct Always {
    using Type = void;
};
template <typename FAMILY, typename = void>
struct ArgsOfFamily {
    using Type = GemmArgs;
};
template <typename FAMILY>
struct ArgsOfFamily<FAMILY, typename Always<typename FAMILY::Args>::Type> {
    using Type = typename FAMILY::Args;
};
template <typename FAMILY>
using ArgsOf = typename ArgsOfFamily<FAMILY>::Type;

// Types of A and B, C, D, the bias.
template <typename INPUT, typename C_TYPE, typename D_TYPE, typename BIAS>
struct Types {
    using Input = INPUT;
    using C = C_TYPE;
    using D = D_TYPE;
    using Bias = BIAS;
};

// The product of a batch and the slice of k that this block works on. A batch of several groups may end
// before its last one does: blocks beyond have nothing to do.
struct Task {
    unsigned batch, slice;
    GEMMTUNE_DEVICE explicit Task(const GemmArgs& args) : batch(block_z()), slice(block_y()) {
        if (GEMMTUNE_RARELY(args.batch_groups > 1)) {
            const unsigned splits = static_cast<unsigned>(args.splits);
            batch += slice / splits * static_cast<unsigned>(args.batch_blocks);
            slice %= splits;
        }
    }
    GEMMTUNE_DEVICE bool beyond(const GemmArgs& args) const {
        return batch >= static_cast<unsigned>(args.batch);
    }
};

}  // namespace gemmtune
