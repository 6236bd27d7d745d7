// portable.h's vocabulary in CUDA, compiled by NVRTC.
#pragma once

#define GEMMTUNE_DEVICE __device__ __forceinline__
#define GEMMTUNE_UNROLL _Pragma("unroll")
#define GEMMTUNE_ROLL _Pragma("unroll 1")
#define GEMMTUNE_UNROLL_BY(TIMES) _Pragma("unroll")

namespace gemmtune {

constexpr int kWarp = 32;

GEMMTUNE_DEVICE unsigned thread_index() { return threadIdx.x; }
GEMMTUNE_DEVICE unsigned block_x() { return blockIdx.x; }
GEMMTUNE_DEVICE unsigned block_y() { return blockIdx.y; }
GEMMTUNE_DEVICE unsigned block_z() { return blockIdx.z; }
GEMMTUNE_DEVICE void block_barrier() { __syncthreads(); }
template <int THREADS>
GEMMTUNE_DEVICE void named_barrier_sync() {  // __syncthreads() must be one instruction for all threads
    asm volatile("barrier.cta.sync 1, %0;" ::"n"(THREADS) : "memory");
}
template <int THREADS>
GEMMTUNE_DEVICE void named_barrier_sync(int number) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}
GEMMTUNE_DEVICE void warp_barrier() { __syncwarp(); }

#define GEMMTUNE_KEEPING
GEMMTUNE_DEVICE int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}
GEMMTUNE_DEVICE i64 opaque(i64 x) {
    asm volatile("" : "+l"(x));
    return x;
}
template <typename T>
GEMMTUNE_DEVICE T* opaque(T* p) {
    asm volatile("" : "+l"(p));
    return p;
}
GEMMTUNE_DEVICE char* opaque_shared(char* p) {
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(p));
    asm volatile("" : "+r"(at));
    return static_cast<char*>(__cvta_shared_to_generic(at));
}

GEMMTUNE_DEVICE float as_float(unsigned bits) { return __uint_as_float(bits); }
GEMMTUNE_DEVICE unsigned as_unsigned(float value) { return __float_as_uint(value); }
GEMMTUNE_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
GEMMTUNE_DEVICE bool warp_any(bool condition) { return __any_sync(0xffffffffu, condition); }

// volatile: loads are issued in program order, all of them before the first use, and after a wait that precedes
// them. Not ld.global.nc, which assumes read-only data: the previous launch may have stored to the address
// after this launch started.
GEMMTUNE_DEVICE Words stream16(const void* p) {
    Words v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3]) : "l"(p));
    return v;
}
GEMMTUNE_DEVICE Words stream16(const void* p, bool there) {
    Words v = {{0, 0, 0, 0}};
    asm volatile("{ .reg .pred there;\n"
                 "setp.ne.s32 there, %5, 0;\n"
                 "@there ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4]; }"
                 : "+r"(v.at[0]), "+r"(v.at[1]), "+r"(v.at[2]), "+r"(v.at[3])
                 : "l"(p), "r"(static_cast<int>(there)));
    return v;
}
GEMMTUNE_DEVICE Words stream16_part(const void* p) {
    Words v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3]) : "l"(p));
    return v;
}
GEMMTUNE_DEVICE Words stream16_part(const void* p, bool there) {
    Words v = {{0, 0, 0, 0}};
    asm volatile("{ .reg .pred there;\n"
                 "setp.ne.s32 there, %5, 0;\n"
                 "@there ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4]; }"
                 : "+r"(v.at[0]), "+r"(v.at[1]), "+r"(v.at[2]), "+r"(v.at[3])
                 : "l"(p), "r"(static_cast<int>(there)));
    return v;
}
GEMMTUNE_DEVICE void stream8(const void* p, unsigned (&out)[2]) {
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(out[0]), "=r"(out[1]) : "l"(p));
}
GEMMTUNE_DEVICE unsigned stream4(const void* p) {
    unsigned v;
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
GEMMTUNE_DEVICE Words read16(const void* p) {
    Words v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3]) : "l"(p));
    return v;
}
GEMMTUNE_DEVICE Words read16_if(bool wanted, const void* p) {
    Words v;
    asm volatile("{ .reg .pred wanted; setp.ne.s32 wanted, %5, 0;\n"
                 "@wanted ld.global.v4.u32 {%0,%1,%2,%3}, [%4]; }"
                 : "=r"(v.at[0]), "=r"(v.at[1]), "=r"(v.at[2]), "=r"(v.at[3])
                 : "l"(p), "r"(static_cast<int>(wanted)));
    return v;
}
GEMMTUNE_DEVICE unsigned short read2_if(bool wanted, const void* p) {
    unsigned short v = 0;
    asm volatile("{ .reg .pred wanted; setp.ne.s32 wanted, %2, 0;\n"
                 "@wanted ld.global.u16 %0, [%1]; }" : "+h"(v) : "l"(p), "r"(static_cast<int>(wanted)));
    return v;
}
GEMMTUNE_DEVICE void write_shared16_if(bool wanted, void* p, Words v) {
    asm volatile("{ .reg .pred wanted; setp.ne.s32 wanted, %5, 0;\n"
                 "@wanted st.shared.v4.u32 [%4], {%0,%1,%2,%3}; }"
                 ::"r"(v.at[0]), "r"(v.at[1]), "r"(v.at[2]), "r"(v.at[3]),
                   "r"(static_cast<unsigned>(__cvta_generic_to_shared(p))), "r"(static_cast<int>(wanted))
                 : "memory");
}
GEMMTUNE_DEVICE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
GEMMTUNE_DEVICE void write16(void* p, Words v) { *static_cast<Words*>(p) = v; }
GEMMTUNE_DEVICE void write_global16(void* p, Words v) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};"
                 ::"l"(p), "r"(v.at[0]), "r"(v.at[1]), "r"(v.at[2]), "r"(v.at[3]) : "memory");
}
GEMMTUNE_DEVICE void write8(void* p, const unsigned (&v)[2]) {
    *static_cast<uint2*>(p) = make_uint2(v[0], v[1]);
}

#if __CUDA_ARCH__ >= 800
#define GEMMTUNE_ASYNC_COPIES
GEMMTUNE_DEVICE unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
GEMMTUNE_DEVICE void copy_async16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
                 ::"r"(shared_address(shared)), "l"(global));
}
GEMMTUNE_DEVICE void copy_async16(void* shared, const void* global, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes));
}
GEMMTUNE_DEVICE void copy_async16_if(bool wanted, void* shared, const void* global) {
    asm volatile("{ .reg .pred wanted; setp.ne.b32 wanted, %2, 0;"
                 "  @wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16; }"
                 ::"r"(shared_address(shared)), "l"(global), "r"(static_cast<int>(wanted)));
}
GEMMTUNE_DEVICE void copy_async16_if(bool wanted, void* shared, const void* global, int bytes) {
    asm volatile("{ .reg .pred wanted; setp.ne.b32 wanted, %2, 0;"
                 "  @wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %3; }"
                 ::"r"(shared_address(shared)), "l"(global), "r"(static_cast<int>(wanted)), "r"(bytes));
}
GEMMTUNE_DEVICE void copy_async4(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4;"
                 ::"r"(shared_address(shared)), "l"(global));
}
GEMMTUNE_DEVICE void copy_async4(void* shared, const void* global, int bytes) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4, %2;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes));
}
GEMMTUNE_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
GEMMTUNE_DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif

#if __CUDA_ARCH__ >= 900
#define GEMMTUNE_DEPENDENT_LAUNCHES
GEMMTUNE_DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
GEMMTUNE_DEVICE void wait_for_launches() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#endif

GEMMTUNE_DEVICE float half_to_float(unsigned short bits) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
    return out;
}
GEMMTUNE_DEVICE unsigned short float_to_half(float value) {
    unsigned short out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(value));
    return out;
}
#if __CUDA_ARCH__ >= 800
#define GEMMTUNE_BF16_CONVERSION
GEMMTUNE_DEVICE unsigned short float_to_bf16(float value) {
    unsigned short out;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(value));
    return out;
}
#endif
// The hardware's approximations. Their error, about 2 units in the last place of e^x, is below an epilogue's
// tolerance; the exact functions are calls, and a tile's code would contain one for each element.
GEMMTUNE_DEVICE float exponential(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x * 1.44269504f));
    return out;
}
GEMMTUNE_DEVICE float quotient(float x, float y) { return __fdividef(x, y); }
#define GEMMTUNE_NEAREST(X) rintf(X)

}  // namespace gemmtune

#define GEMMTUNE_CLUSTER(X, Y) __cluster_dims__(X, Y, 1)
#define GEMMTUNE_KERNEL(NAME, FAMILY, ...)                                                     \
    extern "C" __global__ void __VA_ARGS__ __launch_bounds__(FAMILY::kThreads, FAMILY::kMinBlocks) \
        NAME(const __grid_constant__ gemmtune::ArgsOf<FAMILY> args) {                          \
        extern __shared__ __align__(1024) gemmtune::Words gemmtune_shared[];                   \
        gemmtune::begin<FAMILY>();                                                             \
        FAMILY::run(args, reinterpret_cast<char*>(gemmtune_shared));                           \
    }
