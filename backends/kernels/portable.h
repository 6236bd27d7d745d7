// What CUDA (NVRTC), HIP (hipRTC, or clang with -nogpuinc -nogpulib) and the host do differently. Kernels
// say what they mean in these words alone, and include no vendor's header.
//
//   GEMMTUNE_DEVICE, GEMMTUNE_UNROLL, kWarp       a function's qualifiers, a loop's, threads a warp
//   GEMMTUNE_ROLL                                 a loop that must stay one
//   GEMMTUNE_RARELY(condition)                    the condition; what it leads to is kept out of the way
//   thread_index() block_x() block_y() block_z()  blocks are one-dimensional, grids three-dimensional
//   block_barrier() warp_barrier() shuffle_xor()  every thread of the block, or of the warp, takes part
//   meet<THREADS>()                               block_barrier() of so many threads, wherever they call it
//   stream16() stream8() stream4() read16()       aligned loads: of what is read once, or again
//   stream16(p, there)                            the same, or zeros; no branch, so that many are in flight
//   read16_if() read2_if()                        a load where it is wanted (else anything; zero): no branch
//   write_shared16_if()                           and such a store to shared memory, of what is known anyway
//   fetch()                                       on its way to L2, on NVIDIA's GPUs: no load, at any time
//   write16() write8()                            aligned stores
//   write_global16()                              one to global memory, in one piece whatever stands around it
//   copy_async16() copy_async4()                  from global to shared memory, by nobody's registers: 16 (4)
//                                                 bytes, or as many zeros; aligned. Or the first so many of
//                                                 16, then zeros: all 16 are the operand's
//   copy_first()                                  the same (of an even number) of an operand that ends where
//                                                 it says: beyond that it reads nothing
//   copy_part()                                   the same of fewer than 16, by this thread's registers
//   copy_async16_if()                             copy_async16(), where that is wanted: without a branch
//   commit_copies() wait_copies<N>()              copies since the last make a group; all but N groups are in
//                                                 place, as far as this thread's own go
//   read_shared<T>()                              from shared memory, by a whole warp
//   keep(x)                                       x, worked out here once: compilers would rather do so again
//   keep_shared(p)                                in every turn of a loop that uses it (p: shared memory)
//   launch_dependents() wait_for_launches()       what launches tell each other (below)
//   GEMMTUNE_KERNEL(name, family)                 the entry point of family::run(args, shared), which begins
//                                                 when all launches before it have ended
#pragma once

namespace gemmtune {

typedef long long i64;
typedef unsigned long long u64;

// 16 bytes as they are loaded.
struct alignas(16) Words {
    unsigned at[4];
};

}  // namespace gemmtune

#define GEMMTUNE_RARELY(CONDITION) __builtin_expect(!!(CONDITION), 0)

#if defined(GEMMTUNE_HOST)
#include "host.h"

#elif defined(__HIP__) || defined(__HIPCC_RTC__)  // ---------------------------------------------------------
#ifndef GEMMTUNE_WARP
#error "GEMMTUNE_WARP is not defined: the wavefront's size is not told by every compiler"
#endif
#define GEMMTUNE_DEVICE __attribute__((device)) inline __attribute__((always_inline))
#define GEMMTUNE_UNROLL _Pragma("unroll")
#define GEMMTUNE_ROLL _Pragma("unroll 1")

namespace gemmtune {

constexpr int kWarp = GEMMTUNE_WARP;

GEMMTUNE_DEVICE unsigned thread_index() { return __builtin_amdgcn_workitem_id_x(); }
GEMMTUNE_DEVICE unsigned block_x() { return __builtin_amdgcn_workgroup_id_x(); }
GEMMTUNE_DEVICE unsigned block_y() { return __builtin_amdgcn_workgroup_id_y(); }
GEMMTUNE_DEVICE unsigned block_z() { return __builtin_amdgcn_workgroup_id_z(); }

GEMMTUNE_DEVICE void block_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

template <int THREADS>
GEMMTUNE_DEVICE void meet() { block_barrier(); }

GEMMTUNE_DEVICE float as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
GEMMTUNE_DEVICE unsigned as_unsigned(float value) { return __builtin_bit_cast(unsigned, value); }

// A wavefront's lanes go in step.
GEMMTUNE_DEVICE void warp_barrier() { __builtin_amdgcn_wave_barrier(); }

GEMMTUNE_DEVICE float shuffle_xor(float value, int mask) {
    const int lane = static_cast<int>(thread_index() % kWarp) ^ mask, bits = __builtin_bit_cast(int, value);
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(lane * 4, bits));
}

typedef unsigned Vector4 __attribute__((ext_vector_type(4)));
typedef unsigned Vector2 __attribute__((ext_vector_type(2)));

GEMMTUNE_DEVICE Words stream16(const void* p) {
    return __builtin_bit_cast(Words, __builtin_nontemporal_load(static_cast<const Vector4*>(p)));
}
GEMMTUNE_DEVICE void stream8(const void* p, unsigned (&out)[2]) {
    const Vector2 v = __builtin_nontemporal_load(static_cast<const Vector2*>(p));
    out[0] = v.x, out[1] = v.y;
}
GEMMTUNE_DEVICE unsigned stream4(const void* p) {
    return __builtin_nontemporal_load(static_cast<const unsigned*>(p));
}
GEMMTUNE_DEVICE Words read16(const void* p) { return *static_cast<const Words*>(p); }
GEMMTUNE_DEVICE Words read16_if(bool wanted, const void* p) { return wanted ? read16(p) : Words{{0, 0, 0, 0}}; }
GEMMTUNE_DEVICE void write_shared16_if(bool wanted, void* p, Words v) {
    if (wanted) *static_cast<Words*>(p) = v;
}
GEMMTUNE_DEVICE unsigned short read2_if(bool wanted, const void* p) {
    return wanted ? *static_cast<const unsigned short*>(p) : static_cast<unsigned short>(0);
}
GEMMTUNE_DEVICE void fetch(const void*) {}
GEMMTUNE_DEVICE void write16(void* p, Words v) { *static_cast<Words*>(p) = v; }
GEMMTUNE_DEVICE void write_global16(void* p, Words v) { write16(p, v); }
GEMMTUNE_DEVICE void write8(void* p, const unsigned (&v)[2]) {
    *static_cast<Vector2*>(p) = Vector2{v[0], v[1]};
}

GEMMTUNE_DEVICE float half_to_float(unsigned short bits) {
    return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}
GEMMTUNE_DEVICE unsigned short float_to_half(float value) {
    return __builtin_bit_cast(unsigned short, static_cast<_Float16>(value));
}
// No device library: the hardware's approximations.
GEMMTUNE_DEVICE float exponential(float x) { return __builtin_amdgcn_exp2f(x * 1.44269504f); }
GEMMTUNE_DEVICE float quotient(float x, float y) { return x * __builtin_amdgcn_rcpf(y); }

}  // namespace gemmtune

#define GEMMTUNE_KERNEL(NAME, FAMILY, ...)                                                   \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, FAMILY::kThreads)))     \
    void NAME(const gemmtune::GemmArgs args) {                                               \
        extern __attribute__((shared, aligned(16))) char gemmtune_shared[];                  \
        gemmtune::begin<FAMILY>();                                                           \
        FAMILY::run(args, gemmtune_shared);                                                  \
    }

#else  // CUDA -----------------------------------------------------------------------------------------------
#define GEMMTUNE_DEVICE __device__ __forceinline__
#define GEMMTUNE_UNROLL _Pragma("unroll")
#define GEMMTUNE_ROLL _Pragma("unroll 1")

namespace gemmtune {

constexpr int kWarp = 32;

GEMMTUNE_DEVICE unsigned thread_index() { return threadIdx.x; }
GEMMTUNE_DEVICE unsigned block_x() { return blockIdx.x; }
GEMMTUNE_DEVICE unsigned block_y() { return blockIdx.y; }
GEMMTUNE_DEVICE unsigned block_z() { return blockIdx.z; }
GEMMTUNE_DEVICE void block_barrier() { __syncthreads(); }
template <int THREADS>
GEMMTUNE_DEVICE void meet() {  // __syncthreads() is one place in the program for all
    asm volatile("barrier.cta.sync.aligned 1, %0;" ::"n"(THREADS) : "memory");
}
GEMMTUNE_DEVICE void warp_barrier() { __syncwarp(); }

#define GEMMTUNE_KEEPING
GEMMTUNE_DEVICE int keep(int x) {
    asm volatile("" : "+r"(x));
    return x;
}
GEMMTUNE_DEVICE i64 keep(i64 x) {
    asm volatile("" : "+l"(x));
    return x;
}
template <typename T>
GEMMTUNE_DEVICE T* keep(T* p) {
    asm volatile("" : "+l"(p));
    return p;
}
GEMMTUNE_DEVICE char* keep_shared(char* p) {
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(p));
    asm volatile("" : "+r"(at));
    return static_cast<char*>(__cvta_shared_to_generic(at));
}

GEMMTUNE_DEVICE float as_float(unsigned bits) { return __uint_as_float(bits); }
GEMMTUNE_DEVICE unsigned as_unsigned(float value) { return __float_as_uint(value); }
GEMMTUNE_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

// volatile: they are issued in the order written, all of them before the first use, and after a wait that
// precedes them. For the same reason not by the path for what nobody writes (ld.global.nc): the launch before
// this one may have stored it since this one started.
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
GEMMTUNE_DEVICE void fetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
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
// The hardware's approximations: their error, some 2 units in the last place of e^x, is below what an
// epilogue is allowed, and the exact functions are calls that would stand once an element in a tile's code.
GEMMTUNE_DEVICE float exponential(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x * 1.44269504f));
    return out;
}
GEMMTUNE_DEVICE float quotient(float x, float y) { return __fdividef(x, y); }

}  // namespace gemmtune

#define GEMMTUNE_CLUSTER(X, Y) __cluster_dims__(X, Y, 1)
#define GEMMTUNE_KERNEL(NAME, FAMILY, ...)                                                     \
    extern "C" __global__ void __VA_ARGS__ __launch_bounds__(FAMILY::kThreads, FAMILY::kMinBlocks) \
        NAME(const __grid_constant__ gemmtune::ArgsOf<FAMILY> args) {                          \
        extern __shared__ __align__(1024) gemmtune::Words gemmtune_shared[];                   \
        gemmtune::begin<FAMILY>();                                                             \
        FAMILY::run(args, reinterpret_cast<char*>(gemmtune_shared));                           \
    }
#endif

namespace gemmtune {

#if !defined(GEMMTUNE_BF16_CONVERSION)
GEMMTUNE_DEVICE unsigned short float_to_bf16(float value) {
    const unsigned bits = as_unsigned(value);
    // A NaN whose payload lies in the lower half must not become an infinity.
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>(bits >> 16 | 0x40u);
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
#endif

#if !defined(GEMMTUNE_HOST)
// The first bytes of 16, then zeros: by loads and stores, which the thread waits for.
GEMMTUNE_DEVICE void copy_part(void* shared, const void* global, int bytes) {
    const unsigned short* const from = static_cast<const unsigned short*>(global);
    GEMMTUNE_UNROLL
    for (int i = 0; i < 8; ++i)
        static_cast<unsigned short*>(shared)[i] = 2 * i < bytes ? from[i] : static_cast<unsigned short>(0);
}
#endif

#if !defined(GEMMTUNE_HOST) && !defined(GEMMTUNE_ASYNC_COPIES)
// No copy that goes on by itself, but loads and stores: what a thread copies is there at once.
GEMMTUNE_DEVICE void copy_async16(void* shared, const void* global) { write16(shared, read16(global)); }
GEMMTUNE_DEVICE void copy_async4(void* shared, const void* global) {
    *static_cast<unsigned*>(shared) = *static_cast<const unsigned*>(global);
}
GEMMTUNE_DEVICE void copy_async16(void* shared, const void* global, int bytes) {
    if (bytes == 16) copy_async16(shared, global);
    else copy_part(shared, global, bytes);
}
GEMMTUNE_DEVICE void copy_async4(void* shared, const void* global, int bytes) {
    if (bytes == 4) copy_async4(shared, global);
    else *static_cast<unsigned*>(shared) = 0;
}
GEMMTUNE_DEVICE void copy_async16_if(bool wanted, void* shared, const void* global) {
    if (wanted) copy_async16(shared, global);
}
GEMMTUNE_DEVICE void copy_async16_if(bool wanted, void* shared, const void* global, int bytes) {
    if (wanted) copy_async16(shared, global, bytes);
}
GEMMTUNE_DEVICE void commit_copies() {}
template <int N>
GEMMTUNE_DEVICE void wait_copies() {}
#endif

#if !defined(GEMMTUNE_HOST)
// An asynchronous copy of a part may not begin within 16 bytes of the operand's end: what it leaves out is
// an access as well, as compute-sanitizer's memcheck sees it.
GEMMTUNE_DEVICE void copy_first(void* shared, const char* global, int bytes, const char* end) {
    if (bytes % 16 != 0 && global + 16 > end) copy_part(shared, global, bytes);
    else copy_async16(shared, global, bytes);
}
#endif

#if defined(GEMMTUNE_HOST) || defined(__HIP__) || defined(__HIPCC_RTC__)
GEMMTUNE_DEVICE Words stream16(const void* p, bool there) {
    return there ? stream16(p) : Words{{0, 0, 0, 0}};
}
#endif

#if !defined(GEMMTUNE_KEEPING)
template <typename T>
GEMMTUNE_DEVICE T keep(T x) { return x; }
GEMMTUNE_DEVICE char* keep_shared(char* p) { return p; }
#endif

#if !defined(GEMMTUNE_HOST)
template <typename T>
GEMMTUNE_DEVICE T read_shared(const void* p) { return *static_cast<const T*>(p); }
#endif

// NVIDIA's GPUs from sm_90 on may start a launch while the one before it ends (programmatic dependent
// launch), which hides the time that a launch takes; the host queues every launch of ours so (driver.py:
// dependent()).
//   wait_for_launches()  of every thread of every kernel, before it touches memory and before it may end
//                        (GEMMTUNE_KERNEL): until all of the launch before has ended and what it stored can
//                        be seen. Whatever that launch is, it has waited for those before it: who waits for
//                        it waits for them too, and operands, D and the workspace are as in any other order.
//   launch_dependents()  in the first of a product's two launches, of which the second adds what the first
//                        one keeps in the workspace. Once every block has said so, or has ended, blocks of
//                        the second may start where there is room. All of the first's have had their place
//                        by then, so that none of them waits for one of the second's. It promises nothing
//                        of memory, and may stand before a block's last stores. A launch that says nothing
//                        lets the next one start when its last block ends: products do not overlap.
// Before it waits a kernel may fetch() what it is going to load: whoever stores there meanwhile stores to L2.
// Elsewhere launches wait for one another anyway, and these functions do nothing.
#if !defined(GEMMTUNE_DEPENDENT_LAUNCHES)
GEMMTUNE_DEVICE void launch_dependents() {}
GEMMTUNE_DEVICE void wait_for_launches() {}
#endif

// What every kernel begins with. A family that says kWaits waits by itself, once, and has done by then what
// needs no memory.
template <typename FAMILY>
GEMMTUNE_DEVICE constexpr bool waits_itself(decltype(FAMILY::kWaits)*) { return FAMILY::kWaits; }
template <typename FAMILY>
GEMMTUNE_DEVICE constexpr bool waits_itself(...) { return false; }
template <typename FAMILY>
GEMMTUNE_DEVICE void begin() {
    if constexpr (!waits_itself<FAMILY>(nullptr)) wait_for_launches();
}

// Unsigned arithmetic: signed division by a power of two costs a block's first loads some of their time.
GEMMTUNE_DEVICE int lane_index() { return static_cast<int>(thread_index() % static_cast<unsigned>(kWarp)); }
GEMMTUNE_DEVICE int warp_index() { return static_cast<int>(thread_index() / static_cast<unsigned>(kWarp)); }

}  // namespace gemmtune
