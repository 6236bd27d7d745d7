// The vocabulary that hides the differences between CUDA (portable_cuda.h), HIP (portable_hip.h) and the host
// emulator (emulator/host.h). Kernels use only these names and include no vendor header.
//
//   GEMMTUNE_DEVICE, GEMMTUNE_UNROLL, kWarp       function qualifiers; unroll the next loop; threads of a warp
//                                                 (wavefront)
//   GEMMTUNE_ROLL                                 never unroll the next loop
//   GEMMTUNE_UNROLL_BY(times)                     unroll the next loop; on AMD GPUs only so many times, because
//                                                 their compilers read what a whole loop needs before they use it
//   GEMMTUNE_ADVANCE(pointer, by)                 advances a pointer that is not null
//   GEMMTUNE_PICK(condition, x, y)                one of two elements of an array in registers
//   GEMMTUNE_NEAREST(x)                           the nearest whole number as a float, ties to even
//   GEMMTUNE_RARELY(condition)                    the condition, hinted unlikely: its branch is moved out of
//                                                 line
//   thread_index() block_x() block_y() block_z()  blocks are one-dimensional, grids three-dimensional
//   block_barrier() warp_barrier() shuffle_xor()  every thread of the block, or of the warp, must take part
//   warp_any(condition)                           whether it holds for any thread of the warp; all must take part
//   named_barrier_sync<THREADS>()                 a barrier of THREADS threads of the block, which may reach it
//                                                 from different places in the program
//   named_barrier_sync<THREADS>(number)           the barrier of this number, 1 to 15, of THREADS threads of the
//                                                 block. The emulator and HIP wait for the whole block: every
//                                                 thread of it passes through its own as often
//   stream16() stream8() stream4()                aligned loads of data that is read once: not kept in L1
//   read16()                                      an aligned load of data that is read again
//   stream16(p, there)                            a predicated load, zeros if not `there`: without a branch, so
//                                                 that many loads are in flight
//   stream16_part()                               stream16() with a hint to fetch the surrounding 128 bytes to
//                                                 L2: for runs that are read in small parts
//   read16_if() read2_if()                        predicated loads without a branch; if not `wanted`,
//                                                 read16_if() returns unspecified bits and read2_if() zero
//   write_shared16_if()                           a predicated store to shared memory without a branch; the
//                                                 value is computed either way
//   prefetch_l2()                                 starts a fetch to L2 (NVIDIA only). Not a load: allowed at
//                                                 any time
//   write16() write8()                            aligned stores
//   write_global16()                              write16() to global memory that stays a single instruction,
//                                                 whatever code surrounds it
//   copy_async16() copy_async4()                  asynchronous copies from global to shared memory that bypass
//                                                 registers: 16 (4) aligned bytes. With `bytes`: the first
//                                                 `bytes` of 16, then zeros (of 4: all or zeros); all 16 (4)
//                                                 source bytes must lie in the operand
//   copy_first()                                  copy_async16() of an even number of bytes that reads nothing
//                                                 at or beyond `end`, the operand's end
//   copy_part()                                   copies fewer than 16 bytes through this thread's registers,
//                                                 then zeros; synchronous
//   copy_async16_if()                             a predicated copy_async16() without a branch
//   commit_copies() wait_copies<N>()              closes a group of the copies since the last commit; waits
//                                                 until at most N of this thread's own groups are in flight
//   read_shared<T>()                              a load from shared memory by a whole warp
//   opaque(x)                                     x, computed here once. The compiler cannot see where the
//                                                 value comes from, so it does not recompute it in every
//                                                 iteration of a loop
//   opaque_shared(p)                              the same for a pointer to shared memory
//   launch_dependents() wait_for_launches()       programmatic dependent launch (below)
//   GEMMTUNE_KERNEL(name, family)                 the entry point of family::run(args, shared); begins when all
//                                                 previous launches have ended
#pragma once

namespace gemmtune {

typedef long long i64;
typedef unsigned long long u64;

// The result of a 16-byte load.
struct alignas(16) Words {
    unsigned at[4];
};

}  // namespace gemmtune

#define GEMMTUNE_RARELY(CONDITION) __builtin_expect(!!(CONDITION), 0)

#if defined(GEMMTUNE_HOST)
#include "emulator/host.h"

#elif defined(__HIP__) || defined(__HIPCC_RTC__)
#include "device/portable_hip.h"
#else
#include "device/portable_cuda.h"
#endif

#if !defined(GEMMTUNE_NEAREST)
#define GEMMTUNE_NEAREST(X) __builtin_rintf(X)
#endif
#if !defined(GEMMTUNE_PICK)
#define GEMMTUNE_PICK(CONDITION, X, Y) ((CONDITION) ? (X) : (Y))
#endif
#if !defined(GEMMTUNE_ADVANCE)
#define GEMMTUNE_ADVANCE(POINTER, BY) do if (POINTER) POINTER += BY; while (false)
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
// Copies the first `bytes` of 16 by ordinary loads and stores, which the thread waits for, and fills the rest
// with zeros.
GEMMTUNE_DEVICE void copy_part(void* shared, const void* global, int bytes) {
    const unsigned short* const from = static_cast<const unsigned short*>(global);
    GEMMTUNE_UNROLL
    for (int i = 0; i < 8; ++i)
        static_cast<unsigned short*>(shared)[i] = 2 * i < bytes ? from[i] : static_cast<unsigned short>(0);
}
#endif

#if !defined(GEMMTUNE_HOST) && !defined(GEMMTUNE_ASYNC_COPIES)
// Without asynchronous copies: ordinary loads and stores, so a thread's own copies are complete at once.
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
// A partial asynchronous copy must not begin within 16 bytes of the operand's end: compute-sanitizer's memcheck
// counts the bytes that it leaves out as an access, too.
GEMMTUNE_DEVICE void copy_first(void* shared, const char* global, int bytes, const char* end) {
    if (bytes % 16 != 0 && global + 16 > end) copy_part(shared, global, bytes);
    else copy_async16(shared, global, bytes);
}
#endif

#if defined(GEMMTUNE_HOST) || defined(__HIP__) || defined(__HIPCC_RTC__)
GEMMTUNE_DEVICE Words stream16(const void* p, bool there) {
    return there ? stream16(p) : Words{{0, 0, 0, 0}};
}
GEMMTUNE_DEVICE Words stream16_part(const void* p, bool there = true) { return stream16(p, there); }
#endif

#if !defined(GEMMTUNE_KEEPING)
template <typename T>
GEMMTUNE_DEVICE T opaque(T x) { return x; }
GEMMTUNE_DEVICE char* opaque_shared(char* p) { return p; }
#endif

#if !defined(GEMMTUNE_HOST)
template <typename T>
GEMMTUNE_DEVICE T read_shared(const void* p) { return *static_cast<const T*>(p); }
#endif

// Programmatic dependent launch. NVIDIA GPUs from sm_90 on may place a launch's blocks while the previous
// launch ends, which hides launch latency; the host marks every launch of ours for it (launch.py:
// KernelLaunch.dependent()).
//   wait_for_launches()  Every thread of every kernel calls it before it touches memory and before it may exit
//                        (GEMMTUNE_KERNEL). It returns when the previous launch has ended and its stores are
//                        visible. The previous launch has itself waited for its predecessors, so completion is
//                        transitive: operands, D and the workspace behave as in plain stream order.
//   launch_dependents()  The first launch of a GEMM with split k calls it; the second launch adds the partial
//                        sums that the first one left in the workspace. Once every block has called it or
//                        exited, blocks of the second launch are placed where there is room. By then all blocks
//                        of the first launch have been placed, so none of them waits for a block of the second.
//                        It says nothing about memory, so a block may call it before its last stores. Copies of
//                        operands call it as well. A launch that never calls it releases the next one when its
//                        last block ends: GEMMs do not overlap.
// Before it waits, a kernel may prefetch_l2() what it is going to load: a concurrent store goes to L2 as well.
// Where there is no such feature launches wait for one another anyway, and these functions do nothing.
#if !defined(GEMMTUNE_DEPENDENT_LAUNCHES)
GEMMTUNE_DEVICE void launch_dependents() {}
GEMMTUNE_DEVICE void wait_for_launches() {}
#endif

// Every kernel calls begin() first. A family with kWaits calls wait_for_launches() itself, exactly once, after
// the work that needs no memory.
template <typename FAMILY>
GEMMTUNE_DEVICE constexpr bool waits_itself(decltype(FAMILY::kWaits)*) { return FAMILY::kWaits; }
template <typename FAMILY>
GEMMTUNE_DEVICE constexpr bool waits_itself(...) { return false; }
template <typename FAMILY>
GEMMTUNE_DEVICE void begin() {
    if constexpr (!waits_itself<FAMILY>(nullptr)) wait_for_launches();
}

// Unsigned arithmetic: a signed division by a power of two takes longer and delays a block's first loads.
GEMMTUNE_DEVICE int lane_index() { return static_cast<int>(thread_index() % static_cast<unsigned>(kWarp)); }
GEMMTUNE_DEVICE int warp_index() { return static_cast<int>(thread_index() / static_cast<unsigned>(kWarp)); }

}  // namespace gemmtune
