// A matrix multiplication for a CPU: a row of the output at a time, in the order of memory.
// gemmtune: types fp32
// gemmtune: features padded alpha
#include "gemm_call.h"

extern "C" int gemm(const GemmCall* call) {
    const float* a = static_cast<const float*>(call->a);
    const float* b = static_cast<const float*>(call->b);
    float* d = static_cast<float*>(call->d);
    for (long long i = 0; i < call->m; ++i) {
        float* row = d + i * call->ldd;
        for (long long j = 0; j < call->n; ++j) row[j] = 0.0f;
        for (long long k = 0; k < call->k; ++k) {
            const float left = static_cast<float>(call->alpha) * a[i * call->lda + k];
            for (long long j = 0; j < call->n; ++j) row[j] += left * b[k * call->ldb + j];
        }
    }
    return 0;
}
