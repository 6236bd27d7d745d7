// A matrix multiplication in CUDA: a thread computes one element; a block reads its tiles into shared memory.
// gemmtune: types fp32
// gemmtune: features padded
// gemmtune: grid cdiv(n, 16), cdiv(m, 16)
// gemmtune: block 16, 16
#include "gemm_call.h"

extern "C" __global__ void gemm(GemmCall call) {
    __shared__ float left[16][16], right[16][16];
    const float* a = static_cast<const float*>(call.a);
    const float* b = static_cast<const float*>(call.b);
    const long long i = blockIdx.y * 16LL + threadIdx.y, j = blockIdx.x * 16LL + threadIdx.x;
    float total = 0.0f;
    for (long long k = 0; k < call.k; k += 16) {
        const long long x = k + threadIdx.x, y = k + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = i < call.m && x < call.k ? a[i * call.lda + x] : 0.0f;
        right[threadIdx.y][threadIdx.x] = y < call.k && j < call.n ? b[y * call.ldb + j] : 0.0f;
        __syncthreads();
        for (int step = 0; step < 16; ++step) total += left[threadIdx.y][step] * right[step][threadIdx.x];
        __syncthreads();
    }
    if (i < call.m && j < call.n) static_cast<float*>(call.d)[i * call.ldd + j] = total;
}
