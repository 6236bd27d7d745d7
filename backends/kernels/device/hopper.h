// Hopper's features (sm_90a) beyond mma.h: mbarriers in shared memory that count arrivals and bytes, the copy
// engine that loads boxes of a tensor into shared memory (TMA), wgmma on operands there (wgmma.h), and thread
// block clusters, whose blocks access each other's shared memory.
//
//   TensorMap                 a three-dimensional tensor as the copy engine sees it; encoded by the driver and
//                             passed in the kernel's argument. Its boxes are 128 bytes wide and are stored to
//                             shared memory swizzled: in the line at offset 128 l the 16-byte chunk c is stored
//                             as chunk c ^ l % 8
//   Barrier                   an mbarrier. Its current phase ends when as many threads have arrived as were
//                             given to start_barrier() and all expected bytes have been copied; the next phase
//                             follows
//   start_barrier()           initialises a barrier, by one thread; call started_barriers() after the last one
//   expect_bytes()            arrives, and lets the phase wait for that many more bytes
//   arrive() arrive_at()      arrive at this block's barrier, or at the one at the same offset in another block
//                             of the cluster
//   arrive_after_copies()     arrives when all of this thread's earlier copy_async() have arrived
//   wait_phase()              waits until the phase of that parity has ended (0: the first phase)
//   fetch_map()               prefetches a tensor map for later copies
//   copy_box()                starts the copy of the box at (x, y, z). Elements outside the tensor are zero,
//                             and the barrier counts the bytes of the whole box. x must be at a multiple of 16
//                             bytes (the hardware faults otherwise), `to` at one of 128. With `blocks` (a bit
//                             mask of ranks in the cluster) a multicast: to the same offset and the same
//                             barrier in each of these blocks
//   copy_run()                starts the copy of contiguous bytes, whole 16 of them from and to multiples of 16 bytes
//   shared_matrix()           the descriptor of a matrix of 16-bit floats in lines of 128 bytes, swizzled as
//                             above, that starts at a multiple of 1024 bytes (eight lines); + kMatrixStep is
//                             the next 16 of k
//   begin_products() multiply<T, N>() end_products() wait_products<G>()
//                             by a whole warpgroup: fence; issue a wgmma; commit the group; wait until at
//                             most G groups are in flight
//   multiply_held<T, N>()     the same with A in registers, which must not change until a wait has ended it
//   show_to_products()        makes this thread's earlier stores to shared memory, and its copies that have arrived,
//                             visible to wgmmas after the next barrier
//   order_before_copies()     orders accesses of shared memory that this thread has seen, by barriers too, before the
//                             copies that it requests next
//   cluster_barrier<SEEN>()   a barrier of all threads of all blocks of the cluster; with SEEN, stores before
//                             it are visible after it
//   arrive_at_cluster() wait_for_cluster()
//                             cluster_barrier<false>() in two parts
//   read_peer() read_peer4()  load one or four fp32 or int32 at p's offset from the block of that rank (x varies
//                             fastest)
//   store_columns()           by a whole warp: stores four matrices of 8 x 8 16-bit elements, in the layout of
//                             an mma's sums (mma.h: d, packed), column by column: lane 8 i + c gives the address
//                             of the 16 bytes of column c of matrix i, a multiple of 16 bytes
//   keep_registers<N>() take_registers<N>()
//                             by a whole warpgroup: leave it N registers a thread, of more or of fewer than it was
//                             launched with; take waits until the block has as many free
//   write_peer()              stores one fp32 there; a barrier must have shown before that the block has
//                             started
#pragma once

#include "device/args.h"
#include "device/wgmma.h"

namespace gemmtune {

// 128 opaque bytes, written by the driver (CUDA driver API: CUtensorMap).
struct alignas(64) TensorMap {
    u64 words[16];
};

// A kernel's argument with tensor maps.
template <int MAPS, typename PRODUCT = GemmArgs>
struct TensorArgs {
    PRODUCT product;
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
GEMMTUNE_DEVICE void arrive_after_copies(Barrier* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// (Released at the default CTA scope: the thread that waits orders no memory access but wgmma's reads, which
// have completed. A release at cluster scope would be a fence of the whole device.)
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

GEMMTUNE_DEVICE void copy_run(char* to, const char* from, int bytes, Barrier* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
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

// Address in units of 16 bytes; stride of 1024 bytes between groups of eight lines; 128-byte swizzle (PTX ISA,
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

template <typename T, int N>
GEMMTUNE_DEVICE void multiply_held(float (&d)[N / 2], const unsigned (&a)[4], u64 b) {
    WgmmaHeld<T, N>::issue(d, a, b);
}
GEMMTUNE_DEVICE void order_before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
GEMMTUNE_DEVICE void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
GEMMTUNE_DEVICE void store_columns(void* column, const unsigned (&in)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(shared_address(column)), "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3]) : "memory");
}

template <int N>
GEMMTUNE_DEVICE void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
GEMMTUNE_DEVICE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
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
GEMMTUNE_DEVICE int read_peer(const int* p, int rank) {
    return static_cast<int>(as_unsigned(read_peer(reinterpret_cast<const float*>(p), rank)));
}
GEMMTUNE_DEVICE void read_peer4(const float* p, int rank, float (&out)[4]) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
                 : "=f"(out[0]), "=f"(out[1]), "=f"(out[2]), "=f"(out[3])
                 : "r"(shared_address(p)), "r"(rank) : "memory");
}
GEMMTUNE_DEVICE void read_peer4(const int* p, int rank, int (&out)[4]) {
    float four[4];
    read_peer4(reinterpret_cast<const float*>(p), rank, four);
    GEMMTUNE_UNROLL
    for (int e = 0; e < 4; ++e) out[e] = static_cast<int>(as_unsigned(four[e]));
}

}  // namespace gemmtune
#endif
