// The argument of every kernel: one GEMM problem of a batch, laid out as in oriented_gemm.py: GemmArgs.
//
// D[i, j] = activation(alpha sum_p A[i, p] B[p, j] + beta C[i, j] + bias), i < m, j < n, p < k, for each GEMM
// of the `batch`. Which index of A and of B is contiguous is a template argument of the kernel; lda and ldb are
// the strides of the other index. C, D and the bias have a stride for each index, so that a family may compute
// the transposed GEMM.
#pragma once

#include "device/types.h"

namespace gemmtune {

enum Activation { kNone = 0, kRelu = 1, kGelu = 2, kSilu = 3 };

struct GemmArgs {
    const void *a, *b, *c, *bias;  // c, bias: null if absent
    void* d;
    float* partial;  // workspace if splits > 1: [splits][batch][n][m], the sums of each slice of k
    i64 lda, ldb, stride_a, stride_b, stride_c, stride_d;  // elements
    i64 c_row, c_column, d_row, d_column, bias_row, bias_column;
    i64 a_bytes, b_bytes;  // from an operand's first element (of batch 0) to the end of its last
    int m, n, k, batch;
    int splits;         // slices of k, one for each block along grid.y
    unsigned slice;     // elements of k in each slice
    int batch_blocks;   // grid.z: GEMMs of the batch, at most the grid's limit
    int batch_groups;   // groups of batch_blocks GEMMs; grid.y is splits * batch_groups
    int activation;
    // Stream-K (stream_k.h): the number of blocks; the number of tiles that are computed whole; the k steps
    // (units) of the remaining tiles that each block has; and the number of blocks that have one more.
    int blocks, whole, share, extra;
    float alpha, beta;
};

// The argument type of a family's kernel: GemmArgs, or FAMILY::Args, which contains them.
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

// The element types of A and B, of C, of D and of the bias.
template <typename INPUT, typename C_TYPE, typename D_TYPE, typename BIAS>
struct Types {
    using Input = INPUT;
    using C = C_TYPE;
    using D = D_TYPE;
    using Bias = BIAS;
};

// The GEMM of the batch and the slice of k that this block works on. The last group of a batch may be partial:
// its excess blocks are beyond() the batch and have nothing to do.
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
