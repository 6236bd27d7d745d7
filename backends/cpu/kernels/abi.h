// The C ABI between generated kernels and the host. Every generated shared library exports the
// three functions below. A ctypes struct in Python mirrors GemmArgs field by field, so the order
// and the fixed-width types are the contract (bump GEMMTUNE_ABI with any change).
//
// Column-major BLAS terms, strides in elements, `batch` independent GEMMs:
//   D[m,n] = activation(alpha * op(A)[m,k] * op(B)[k,n] + beta * C[m,n] + bias)
// C may be null when beta == 0 and is then never read. D may be C (with equal layout) and must not
// overlap any other operand. alpha and beta are converted to the accumulator type.
#ifndef GEMMTUNE_ABI_H
#define GEMMTUNE_ABI_H

#include <stdint.h>

#define GEMMTUNE_ABI 1

enum {
  GEMMTUNE_OK = 0,
  GEMMTUNE_NULL_POINTER = 1,     // a pointer that these args need is null
  GEMMTUNE_BAD_SIZE = 2,         // an extent, block or thread count below 1, or a too small ld
  GEMMTUNE_BAD_OPTION = 3,       // trans, bias_axis or activation has an unknown value
  GEMMTUNE_SMALL_WORKSPACE = 4,  // fewer bytes than gemmtune_workspace returns
  GEMMTUNE_UNSUPPORTED = 5,      // valid, but this kernel cannot run it (see each family's header)
  GEMMTUNE_THREADS_MISSING = 6   // `parallel` ran another number of threads; D is unchanged
};

typedef void (*GemmTask)(int32_t thread, int32_t threads, void *context);

typedef struct GemmArgs {
  int64_t m, n, k, batch;
  int64_t lda, ldb, ldc, ldd;
  int64_t stride_a, stride_b, stride_c, stride_d;  // 0 broadcasts A, B or C over the batch
  const void *a, *b, *c;
  void *d;
  const void *bias;
  double alpha, beta;
  int64_t mc, nc, kc;  // cache blocks; each family's header documents their use
  void *workspace;     // any alignment, any content
  int64_t workspace_bytes;
  // Runs task(0..threads-1) concurrently (the tasks synchronize at barriers) and returns when all
  // have finished. May be null when threads == 1.
  void (*parallel)(int32_t threads, GemmTask task, void *context);
  int32_t trans_a, trans_b;  // 0 N, 1 T
  int32_t bias_axis;         // 0 none, 1 one value per row (m), 2 one value per column (n)
  int32_t activation;        // 0 none, 1 relu, 2 gelu (tanh approximation), 3 silu
  int32_t threads;
  int32_t reserved;
} GemmArgs;

#ifdef __cplusplus
extern "C" {
#endif
int32_t gemmtune_run(const GemmArgs *args);        // GEMMTUNE_OK or one of the codes above
int64_t gemmtune_workspace(const GemmArgs *args);  // bytes for these args (pointers are ignored)
int32_t gemmtune_abi(void);
#ifdef __cplusplus
}
#endif

#endif
