// What CUDA (portable_cuda.h), HIP (portable_hip.h) and the host (host.h) do differently. Kernels say what they
// mean in these words alone, and include no vendor's header.
//
//   GEMMTUNE_DEVICE, GEMMTUNE_UNROLL, kWarp       a function's qualifiers, a loop's, threads a warp
//   GEMMTUNE_ROLL                                 a loop that must stay one
//   GEMMTUNE_RARELY(condition)                    the condition; what it leads to is kept out of the way
//   thread_index() block_x() block_y() block_z()  blocks are one-dimensional, grids three-dimensional
//   block_barrier() warp_barrier() shuffle_xor()  every thread of the block, or of the warp, takes part
//   named_barrier_sync<THREADS>()                 block_barrier() of so many threads, wherever they call it
//   stream16() stream8() stream4() read16()       aligned loads: of what is read once, or again
//   stream16(p, there)                            the same, or zeros; no branch, so that many are in flight
//   stream16_part()                               either, of a run that is read by small parts: the 128 bytes
//                                                 around come as far as L2 with it
//   read16_if() read2_if()                        a load where it is wanted (else anything; zero): no branch
//   write_shared16_if()                           and such a store to shared memory, of what is known anyway
//   prefetch_l2()                                 on its way to L2, on NVIDIA's GPUs: no load, at any time
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
//   opaque(x)                                     x, worked out here once: compilers would rather do so again
//   opaque_shared(p)                              in every turn of a loop that uses it (p: shared memory)
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
#include "emulator/host.h"

#elif defined(__HIP__) || defined(__HIPCC_RTC__)
#include "device/portable_hip.h"
#else
#include "device/portable_cuda.h"
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
//                        of memory, and may stand before a block's last stores. Copies of operands say so
//                        as well. A launch that says nothing lets the next one start when its last block
//                        ends: products do not overlap.
// Before it waits a kernel may prefetch_l2() what it is going to load: whoever stores there meanwhile stores to L2.
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
