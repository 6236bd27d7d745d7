// Reading, copying and moving a product's operands as fast as the memory goes: every thread has several 16-byte loads in flight before it
// uses the first.
//
// IN_FLIGHT: how many. AHEAD: reading, a thread's first ones are on their way to L2 before the launch before
// this one has ended. STORE: reading, every block stores a word at its end.

typedef unsigned long long u64;

#ifndef IN_FLIGHT
#define IN_FLIGHT 8
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef STORE
#define STORE 0
#endif

// Until the launch before this one has ended, where one may begin earlier.
__device__ __forceinline__ void wait_for_launches() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ uint4 load(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// Reads `count` 16-byte words. `sink`: a word, written only if they sum to a value that random data never
// does; with STORE a word a block.
extern "C" __global__ void __launch_bounds__(512) read_words(const uint4* source, u64 count, unsigned* sink) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll
    for (int i = 0; AHEAD && i < IN_FLIGHT; i++) {
        if (at + i * stride < count) asm volatile("prefetch.global.L2 [%0];" ::"l"(source + at + i * stride));
    }
    wait_for_launches();
    unsigned sum = 0;
    for (; at + (IN_FLIGHT - 1) * stride < count; at += IN_FLIGHT * stride) {
        uint4 v[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) v[i] = load(source + at + i * stride);
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    for (; at < count; at += stride) {
        const uint4 v = load(source + at);
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (STORE && threadIdx.x == 0) sink[blockIdx.x] = sum;
    else if (sum == 0x9e3779b9u) *sink = sum;
}

// Reads all words of `a` and of `b`, then writes all of `d`: what no product of them goes without. Every thread's
// words of `d` are sums of what it read.
extern "C" __global__ void __launch_bounds__(512)
    move_words(const uint4* a, u64 a_words, const uint4* b, u64 b_words, uint4* d, u64 d_words) {
    const u64 stride = (u64)gridDim.x * blockDim.x, first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_launches();
    uint4 sum = {0, 0, 0, 0};
    for (int which = 0; which < 2; which++) {
        const uint4* const source = which ? b : a;
        const u64 count = which ? b_words : a_words;
        for (u64 at = first; at < count; at += IN_FLIGHT * stride) {
            uint4 v[IN_FLIGHT];
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; i++) {
                v[i] = {0, 0, 0, 0};
                if (at + i * stride < count) v[i] = load(source + at + i * stride);
            }
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; i++) sum.x ^= v[i].x, sum.y ^= v[i].y, sum.z ^= v[i].z, sum.w ^= v[i].w;
        }
    }
    for (u64 at = first; at < d_words; at += stride) d[at] = sum;
}

extern "C" __global__ void __launch_bounds__(512) copy_words(const uint4* source, uint4* target, u64 count) {
    wait_for_launches();
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + (IN_FLIGHT - 1) * stride < count; at += IN_FLIGHT * stride) {
        uint4 v[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) v[i] = load(source + at + i * stride);
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) target[at + i * stride] = v[i];
    }
    for (; at < count; at += stride) target[at] = load(source + at);
}
