// The argument of a user's kernel: one GEMM in row-major terms,
//   D[m, n] = activation(alpha A[m, k] B[k, n] + beta C[m, n] + bias)
// gemm_call.py has the same fields.
#pragma once

struct GemmCall {
    long long m, n, k, batch;
    const void *a, *b, *c, *bias;  // c and bias are null if the problem has none
    void* d;
    long long lda, ldb, ldc, ldd;                      // elements from one stored row to the next
    long long stride_a, stride_b, stride_c, stride_d;  // elements from one matrix of a batch to the next
    double alpha, beta;
    int transposed_a, transposed_b;  // 1: A is stored as [k, m], B as [n, k]
    int bias_axis;                   // 0: no bias; 1: a value for each column (n); 2: for each row (m)
    int activation;                  // 0: none; 1: relu; 2: gelu (tanh approximation); 3: silu
    int input, output;               // types: 0 fp32, 1 fp64, 2 fp16, 3 bf16, 4 int8, 5 int32
};
