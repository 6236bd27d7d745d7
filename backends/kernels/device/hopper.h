// What Hopper (sm_90a) has beside mma.h: barriers in shared memory that wait for bytes, the copy engine that
// brings boxes of a tensor there (TMA), products of what lies there (wgmma.h), and clusters of blocks, which
// reach into each other's shared memory.
//
//   TensorMap                 a tensor of three dimensions as the copy engine sees it: encoded by the driver,
//                             a part of the kernel's argument; its boxes are 128 bytes wide, and lie in
//                             shared memory swizzled: 16 bytes number c of a line at 128 l go to c ^ l % 8
//   Barrier                   of a phase after the other: one ends when as many have arrived as started it
//                             and all bytes that were expected in it have come
//   start_barrier()           by one thread; started_barriers() after the last of them
//   expect_bytes()            arrives, and has the phase wait for so many bytes more
//   arrive_at()               arrives at the barrier in the same place of another block of the cluster
//   wait_phase()              until the phase of that parity (0: the first) has ended
//   fetch_map()               a map on its way to where copies look for it
//   copy_box()                starts the copy of the box at (x, y, z): what lies beyond the tensor comes as
//                             zeros, and all of the box counts. x is a multiple of 16 bytes (the hardware
//                             faults elsewhere), `to` of 128. For every block of `blocks` (bits, by their
//                             rank in the cluster) to the same place and the same barrier there
//   shared_matrix()           of 16-bit floats in lines of 128 bytes, swizzled as above, from a multiple of
//                             1024 bytes (eight lines) on; + kMatrixStep is the next 16 of k
//   begin_products() multiply<T, N>() end_products() wait_products<G>()
//                             of a warpgroup: begin, issue, close a group; until at most G groups go on
//   cluster_barrier<SEEN>()   every thread of all blocks; SEEN: what was stored before it is seen after it
//   arrive_at_cluster() wait_for_cluster()
//                             cluster_barrier<false>() in two parts
//   read_peer() read_peer4()  fp32s that lie at p in the block of that rank: blocks along x first
//   write_peer()              puts one there, in a block that has been met at a barrier
#pragma once

#include "device/args.h"
#include "device/wgmma.h"

namespace gemmtune {

// 128 bytes that nobody but the driver writes (CUDA driver API: CUtensorMap).
struct alignas(64) TensorMap {
    u64 words[16];
};

// A kernel's argument with maps.
template <int MAPS>
struct TensorArgs {
    GemmArgs product;
    TensorMap maps[MAPS];
};

constexpr int kMapLine = 128, kMatrixStep = 2;

#if defined(GEMMTUNE_HOST)
}  // namespace gemmtune
#include "emulator/hopper_host.h"
#else

struct alignas(8) Barrier {
    u64 state;
};

GEMMTUNE_DEVICE void start_barrier(Barrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}
GEMMTUNE_DEVICE void started_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
GEMMTUNE_DEVICE void expect_bytes(Barrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
GEMMTUNE_DEVICE void arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// (Released to this block's threads alone: who waits there orders no access but products', which have ended.
// Released to the cluster's it would be a fence of the whole device.)
GEMMTUNE_DEVICE void arrive_at(Barrier* barrier, int rank) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
                 ::"r"(shared_address(barrier)), "r"(rank) : "memory");
}
GEMMTUNE_DEVICE void wait_phase(Barrier* barrier, unsigned parity) {
    asm volatile("{ .reg .pred ended;\n"
                 "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
                 "@ended bra ENDED; bra AGAIN; ENDED: }"
                 ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

GEMMTUNE_DEVICE void fetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
GEMMTUNE_DEVICE void copy_box(char* to, const TensorMap* map, int x, int y, int z, Barrier* barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(shared_address(to)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
                 : "memory");
}
GEMMTUNE_DEVICE void copy_box(char* to, const TensorMap* map, int x, int y, int z, Barrier* barrier,
                              unsigned blocks) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(shared_address(to)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier)),
                 "h"(static_cast<unsigned short>(blocks))
                 : "memory");
}

// The address in 16 bytes; 1024 bytes from eight lines to the next eight; swizzled by 128 bytes (PTX ISA,
// "Matrix descriptor").
GEMMTUNE_DEVICE u64 shared_matrix(const char* lines) {
    return (shared_address(lines) & 0x3ffffu) >> 4 | u64(1) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}
GEMMTUNE_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
GEMMTUNE_DEVICE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int GROUPS>
GEMMTUNE_DEVICE void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}
template <typename T, int N>
GEMMTUNE_DEVICE void multiply(float (&d)[N / 2], u64 a, u64 b) {
    WgmmaInstruction<T, N>::issue(d, a, b);
}

GEMMTUNE_DEVICE void arrive_at_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
GEMMTUNE_DEVICE void wait_for_cluster() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
template <bool SEEN>
GEMMTUNE_DEVICE void cluster_barrier() {
    if constexpr (SEEN)
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
                     ::: "memory");
    else
        arrive_at_cluster(), wait_for_cluster();
}
GEMMTUNE_DEVICE void write_peer(float* p, int rank, float value) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.f32 [there], %2; }"
                 ::"r"(shared_address(p)), "r"(rank), "f"(value) : "memory");
}
GEMMTUNE_DEVICE float read_peer(const float* p, int rank) {
    float value;
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %1, %2;\n"
                 "ld.shared::cluster.f32 %0, [there]; }"
                 : "=f"(value) : "r"(shared_address(p)), "r"(rank) : "memory");
    return value;
}
GEMMTUNE_DEVICE void read_peer4(const float* p, int rank, float (&out)[4]) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
                 : "=f"(out[0]), "=f"(out[1]), "=f"(out[2]), "=f"(out[3])
                 : "r"(shared_address(p)), "r"(rank) : "memory");
}

}  // namespace gemmtune
#endif
