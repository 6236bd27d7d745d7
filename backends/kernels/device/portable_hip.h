// portable.h's vocabulary in HIP, compiled by hipRTC, or by clang with -nogpuinc -nogpulib.
#pragma once

#ifndef GEMMTUNE_WARP
#error "GEMMTUNE_WARP is not defined: not every compiler defines the wavefront's size"
#endif
#define GEMMTUNE_DEVICE __attribute__((device)) inline __attribute__((always_inline))
#define GEMMTUNE_UNROLL _Pragma("unroll")
#define GEMMTUNE_ROLL _Pragma("unroll 1")
#define GEMMTUNE_UNROLL_BY(TIMES) _Pragma(GEMMTUNE_TEXT(unroll (TIMES)))
#define GEMMTUNE_TEXT(...) #__VA_ARGS__
// Reads both: a choice between addresses would keep an array in scratch memory.
#define GEMMTUNE_PICK(CONDITION, X, Y) gemmtune::pick(CONDITION, X, Y)
// Chooses the offset, not the pointer: the compiler then still knows that it points to global memory.
#define GEMMTUNE_ADVANCE(POINTER, BY) (POINTER) += (POINTER) ? (BY) : 0

namespace gemmtune {

constexpr int kWarp = GEMMTUNE_WARP;

GEMMTUNE_DEVICE unsigned thread_index() { return __builtin_amdgcn_workitem_id_x(); }
GEMMTUNE_DEVICE unsigned block_x() { return __builtin_amdgcn_workgroup_id_x(); }
GEMMTUNE_DEVICE unsigned block_y() { return __builtin_amdgcn_workgroup_id_y(); }
GEMMTUNE_DEVICE unsigned block_z() { return __builtin_amdgcn_workgroup_id_z(); }

// Threads of a block exchange data through LDS only. Fences of all memory would have RDNA invalidate its first
// cache at every barrier; compilers before clang 19 know no others.
#if __clang_major__ >= 19
#define GEMMTUNE_FENCE(ORDER) __builtin_amdgcn_fence(ORDER, "workgroup", "local")
#else
#define GEMMTUNE_FENCE(ORDER) __builtin_amdgcn_fence(ORDER, "workgroup")
#endif
GEMMTUNE_DEVICE void block_barrier() {
    GEMMTUNE_FENCE(__ATOMIC_RELEASE);
    __builtin_amdgcn_s_barrier();
    GEMMTUNE_FENCE(__ATOMIC_ACQUIRE);
}
#undef GEMMTUNE_FENCE

template <int THREADS>
GEMMTUNE_DEVICE void named_barrier_sync() { block_barrier(); }
template <int THREADS>
GEMMTUNE_DEVICE void named_barrier_sync(int) { block_barrier(); }

template <typename T>
GEMMTUNE_DEVICE T pick(bool condition, T x, T y) { return condition ? x : y; }

GEMMTUNE_DEVICE float as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
GEMMTUNE_DEVICE unsigned as_unsigned(float value) { return __builtin_bit_cast(unsigned, value); }

// A wavefront's lanes execute in lockstep and its accesses to shared memory are performed in order; only the compiler
// must keep that order, and __builtin_amdgcn_wave_barrier() alone does not say that it concerns memory.
GEMMTUNE_DEVICE void warp_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

GEMMTUNE_DEVICE float shuffle_xor(float value, int mask) {
    const int lane = static_cast<int>(thread_index() % kWarp) ^ mask, bits = __builtin_bit_cast(int, value);
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(lane * 4, bits));
}
GEMMTUNE_DEVICE bool warp_any(bool condition) {
#if GEMMTUNE_WARP == 64
    return __builtin_amdgcn_ballot_w64(condition) != 0;
#else
    return __builtin_amdgcn_ballot_w32(condition) != 0;
#endif
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
GEMMTUNE_DEVICE void prefetch_l2(const void*) {}
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
// The hardware's approximations: no device library is linked.
GEMMTUNE_DEVICE float exponential(float x) { return __builtin_amdgcn_exp2f(x * 1.44269504f); }
GEMMTUNE_DEVICE float quotient(float x, float y) { return x * __builtin_amdgcn_rcpf(y); }

}  // namespace gemmtune

#define GEMMTUNE_KERNEL(NAME, FAMILY, ...)                                                   \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, FAMILY::kThreads)))     \
    void NAME(const gemmtune::ArgsOf<FAMILY> args) {                                         \
        extern __attribute__((shared, aligned(16))) char gemmtune_shared[];                  \
        gemmtune::begin<FAMILY>();                                                           \
        FAMILY::run(args, gemmtune_shared);                                                  \
    }
