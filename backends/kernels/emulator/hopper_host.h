// hopper.h on the host's fibers (host_machine.h): its barriers, copies and clusters; wgmma_host.h has wgmmas. A copy is
// performed as late as possible: when no fiber can continue without it. Until then its target is NaN in every block
// that receives it. In reverse everything is done at once. Where a GPU would fault, compute garbage or hang, the launch
// ends with a message.
#pragma once

#include "device/types.h"

namespace gemmtune {
namespace host {

// The contents of a TensorMap on the host (tests/backends/kernels/emulator/host.py: host_map()).
struct HostMap {
    u64 base;
    i64 sizes[3];    // elements, lines, GEMMs of the batch
    i64 strides[2];  // bytes from line to line, from GEMM to GEMM
    int box[3], element_bytes;
};
static_assert(sizeof(HostMap) <= sizeof(TensorMap), "a map has 128 bytes");

constexpr unsigned kMostArrivals = 0x7ffe;  // uninitialised memory has more
constexpr int kMostBytes = (1 << 20) - 1;   // PTX ISA, "mbarrier": tx-count

}  // namespace host

// An mbarrier. A phase ends when no arrival is pending and the expected bytes have been copied; bytes that come
// before they are expected make the count negative.
struct alignas(8) Barrier {
    int bytes;
    unsigned phase : 1, arrivals : 15, pending : 16;
};
static_assert(sizeof(Barrier) == 8, "as on a GPU");

namespace host {

// Ends the phase if it is complete, and returns whether it did. (Sets the error instead of calling fail():
// copies are performed when no fiber runs.)
inline bool settled(Barrier& barrier) {
    if (barrier.pending != 0 || barrier.bytes > 0) return false;
    if (barrier.bytes < 0 && !machine.fault) machine.fault = "more bytes come to a barrier than it expects";
    barrier.phase ^= 1, barrier.pending = barrier.arrivals, barrier.bytes = 0;
    return true;
}
inline void fail_if_any() {
    if (machine.fault) fail(machine.fault);
}
inline bool is_started(const Barrier& barrier) {
    return barrier.arrivals > 0 && barrier.arrivals <= kMostArrivals && barrier.pending <= barrier.arrivals;
}
inline void arrive_once(Barrier& barrier) {
    if (!is_started(barrier)) fail("a thread arrives at a barrier that nobody has started");
    if (barrier.pending == 0) fail("more threads arrive at a barrier than its phase has");
    --barrier.pending;
    settled(barrier);
    fail_if_any();
}

// Checks that `bytes` at p lie in this block's shared memory; returns their offset in it.
inline size_t within(const void* p, size_t bytes, size_t aligned) {
    const size_t offset = static_cast<size_t>(static_cast<const char*>(p) - block().shared);
    if (offset > machine.shared_bytes || bytes > machine.shared_bytes - offset)
        fail("what should lie in shared memory lies elsewhere");
    if (reinterpret_cast<u64>(p) % aligned) fail("a misaligned place in shared memory");
    return offset;
}
inline Barrier& placed(Barrier* barrier) {
    within(barrier, sizeof *barrier, sizeof *barrier);
    return *barrier;
}
// The address at p's offset in the shared memory of another block of the cluster.
inline bool has_ended(const Block& block) { return block.done == machine.threads; }
template <typename T>
inline T* peer(T* p, int rank) {
    const size_t offset = within(p, sizeof *p, alignof(T));
    if (rank < 0 || rank >= static_cast<int>(machine.blocks.size())) fail("a cluster has no such block");
    const Block& there = machine.blocks[rank];
    if (has_ended(there)) fail("the shared memory of a block that has ended");
    return reinterpret_cast<T*>(there.shared + offset);
}

// The swizzled address of a 16-byte chunk in lines of 128 bytes.
inline char* swizzled(u64 address) { return reinterpret_cast<char*>(address ^ (address >> 3 & 0x70)); }

inline size_t box_bytes(const HostMap& map) {
    return static_cast<size_t>(kMapLine) * map.box[1] * map.box[2];
}
// Reads the elements of one line of a box, with zeros outside the tensor. Returns whether all that it reads
// lies in an operand.
inline bool bring_line(const HostMap& map, i64 x, i64 y, i64 z, char (&line)[kMapLine]) {
    memset(line, 0, kMapLine);
    if (y < 0 || y >= map.sizes[1] || z < 0 || z >= map.sizes[2]) return true;
    const i64 from = x < 0 ? 0 : x, end = x + map.box[0] < map.sizes[0] ? x + map.box[0] : map.sizes[0];
    if (from >= end) return true;
    const char* const row = reinterpret_cast<const char*>(map.base) + y * map.strides[0] + z * map.strides[1];
    const char *const first = row + from * map.element_bytes, *const last = row + end * map.element_bytes;
    bool of_one = false;
    for (const auto& one : machine.operands) of_one |= one.begin <= first && last <= one.end;
    if (of_one) memcpy(line + (from - x) * map.element_bytes, first, static_cast<size_t>(last - first));
    return of_one;
}
// A pending copy of a box to one block.
struct Box {
    HostMap map;
    int at[3], rank;
    char* to;
    Barrier* barrier;
};
inline bool bring_box(const void* what) {
    Box box;
    memcpy(&box, what, sizeof box);
    const HostMap& map = box.map;
    Barrier* const barrier = box.barrier;
    const int* const at = box.at;
    const char* wrong = nullptr;
    if (has_ended(machine.blocks[box.rank])) wrong = "a copy comes to the memory of a block that has ended";
    else if (!is_started(*barrier)) wrong = "a copy comes to a barrier that nobody has started";
    char line[kMapLine];
    for (int l = 0; l < map.box[1] * map.box[2] && !wrong; ++l) {
        if (!bring_line(map, at[0], at[1] + l % map.box[1], at[2] + l / map.box[1], line))
            wrong = "a copy of a box that reads beyond its operand";
        const u64 place = reinterpret_cast<u64>(box.to) + static_cast<u64>(l) * kMapLine;
        for (int chunk = 0; chunk < kMapLine; chunk += 16) memcpy(swizzled(place + chunk), line + chunk, 16);
    }
    if (wrong) return machine.fault = wrong, true;
    barrier->bytes -= static_cast<int>(box_bytes(map));
    return settled(*barrier);
}

// Lets something come as late as possible.
template <typename T>
inline void queue(bool (*bring)(const void*), const T& what) {
    Arrival arrival{bring, {}};
    static_assert(sizeof what <= sizeof arrival.what, "what comes is short");
    memcpy(arrival.what, &what, sizeof what);
    machine.under_way.push_back(arrival);
}

// Queues the copy or, in reverse, performs it at once.
inline void send(const Box& box) {
    if (machine.reversed) {
        bring_box(&box);
        return fail_if_any();
    }
    queue(bring_box, box);
    memset(box.to, 0xff, box_bytes(box.map));  // a read of the old contents finds NaN
}

// A pending copy of contiguous bytes to this block.
struct Run {
    char* to;
    const char* from;
    int bytes, rank;
    Barrier* barrier;
};
inline bool bring_run(const void* what) {
    Run run;
    memcpy(&run, what, sizeof run);
    bool of_one = false;
    for (const auto& one : machine.operands)
        of_one |= one.begin <= run.from && run.from + run.bytes <= one.end;
    const char* wrong = nullptr;
    if (has_ended(machine.blocks[run.rank])) wrong = "a copy comes to the memory of a block that has ended";
    else if (!is_started(*run.barrier)) wrong = "a copy comes to a barrier that nobody has started";
    else if (!of_one) wrong = "a copy of a run that reads beyond its operand";
    if (wrong) return machine.fault = wrong, true;
    memcpy(run.to, run.from, static_cast<size_t>(run.bytes));
    run.barrier->bytes -= run.bytes;
    return settled(*run.barrier);
}

// Copies that a thread started itself (copy_async4()), and its arrival behind them.
inline bool bring_copy(const void* what) {
    Copy copy;
    memcpy(&copy, what, sizeof copy);
    return perform(copy), false;
}
inline bool bring_arrival(const void* what) {
    Barrier* barrier;
    memcpy(&barrier, what, sizeof barrier);
    if (barrier->pending == 0) return machine.fault = "more threads arrive at a barrier than its phase has", true;
    --barrier->pending;
    return settled(*barrier);
}

}  // namespace host

inline void start_barrier(Barrier* barrier, int arrivals) {
    if (arrivals <= 0 || arrivals > static_cast<int>(host::kMostArrivals))
        host::fail("a barrier of no threads");
    const unsigned all = static_cast<unsigned>(arrivals) & 0x7fff;
    host::placed(barrier) = Barrier{0, 0, all, all};
}
inline void started_barriers() {}
inline void expect_bytes(Barrier* barrier, int bytes) {
    Barrier& mine = host::placed(barrier);
    if (!host::is_started(mine)) host::fail("bytes are expected at a barrier that nobody has started");
    mine.bytes += bytes;
    if (bytes < 0 || mine.bytes > host::kMostBytes)
        host::fail("more bytes are expected than a barrier counts");
    host::arrive_once(mine);
}
inline void arrive(Barrier* barrier) { host::arrive_once(host::placed(barrier)); }
inline void arrive_at(Barrier* barrier, int rank) { host::arrive_once(*host::peer(barrier, rank)); }
inline void arrive_after_copies(Barrier* barrier) {
    Barrier& mine = host::placed(barrier);
    if (!host::is_started(mine)) host::fail("a thread arrives at a barrier that nobody has started");
    if (host::machine.reversed) return host::arrive_once(mine);
    auto& copies = host::machine.fibers[host::machine.current].copies;
    for (const host::Copy& copy : copies) host::queue(host::bring_copy, copy);
    copies.clear();
    host::queue(host::bring_arrival, barrier);
}
inline void wait_phase(Barrier* barrier, unsigned parity) {
    if (!host::is_started(host::placed(barrier)))
        host::fail("a thread waits at a barrier that nobody has started");
    if (barrier->phase != (parity & 1)) return;
    host::machine.ended = [](const void* at, unsigned of) {
        return static_cast<const Barrier*>(at)->phase != of;
    };
    host::Fiber& fiber = host::machine.fibers[host::machine.current];
    fiber.barrier = barrier, fiber.parity = parity & 1;
    host::wait(host::kAtPhase);
}

inline void fetch_map(const TensorMap* map) {
    if (reinterpret_cast<u64>(map) % alignof(TensorMap)) host::fail("a map lies at a misaligned address");
}
inline void copy_box(char* to, const TensorMap* map, int x, int y, int z, Barrier* barrier, unsigned blocks) {
    using namespace host;
    HostMap found;
    memcpy(&found, map, sizeof found);
    fetch_map(map);
    if (found.base % 16 || found.strides[0] % 16 || found.strides[1] % 16)
        fail("a map of a tensor whose lines do not begin at multiples of 16 bytes");
    for (const int size : found.box)
        if (size < 1 || size > 256) fail("a map of boxes of no size that there is");
    if (static_cast<i64>(x) * found.element_bytes % 16) fail("a copy of a box that begins between 16 bytes");
    if (found.box[0] * found.element_bytes != kMapLine) fail("a map of boxes that are not 128 bytes wide");
    placed(barrier);
    within(to, box_bytes(found), kMapLine);
    if (blocks == 0 || blocks >> machine.blocks.size()) fail("a copy to a block that the cluster has not");
    for (size_t rank = 0; rank < machine.blocks.size(); ++rank) {
        if (!(blocks >> rank & 1)) continue;
        const int number = static_cast<int>(rank);
        send({found, {x, y, z}, number, peer(to, number), peer(barrier, number)});
    }
}
inline void copy_box(char* to, const TensorMap* map, int x, int y, int z, Barrier* barrier) {
    copy_box(to, map, x, y, z, barrier, 1u << host::machine.block);
}

inline void copy_run(char* to, const char* from, int bytes, Barrier* barrier) {
    using namespace host;
    if (bytes <= 0 || bytes % 16 || reinterpret_cast<u64>(from) % 16)
        fail("a copy of a run that is no whole 16 bytes");
    placed(barrier);
    within(to, static_cast<size_t>(bytes), 16);
    const Run run{to, from, bytes, machine.block, barrier};
    if (machine.reversed) {
        bring_run(&run);
        return fail_if_any();
    }
    queue(bring_run, run);
    memset(to, 0xff, static_cast<size_t>(bytes));  // a read of the old contents finds NaN
}

template <int N>
inline void keep_registers() {}
template <int N>
inline void take_registers() {}

// Stores before a cluster_barrier<false>() may become visible late: here they may not be read before the next
// cluster_barrier<true>().
template <bool SEEN>
inline void cluster_barrier() {
    host::machine.fibers[host::machine.current].sees = SEEN;
    host::wait(host::kAtCluster);
}
// Even blocks synchronise in the first part, odd blocks in the second: work that is prepared after the first
// part, or used before the second, shows as an error.
inline void arrive_at_cluster() {
    if (host::machine.block % 2 == 0) cluster_barrier<false>();
}
inline void wait_for_cluster() {
    if (host::machine.block % 2 == 1) cluster_barrier<false>();
}
template <typename T>
inline T read_aligned_peer(const void* p, int rank) {
    if (!host::machine.fibers[host::machine.current].sees)
        host::fail("what other blocks stored is not seen yet");
    return *host::peer(reinterpret_cast<const T*>(p), rank);
}
namespace host {
struct Columns {
    void* column;
    unsigned in[4];
};
}  // namespace host
inline void store_columns(void* column, const unsigned (&in)[4]) {
    host::within(column, 16, 16);
    const auto lanes = host::exchange(host::Columns{column, {in[0], in[1], in[2], in[3]}});
    const int group = lane_index() / 4, member = lane_index() % 4;
    for (int i = 0; i < 4; ++i) {
        for (int e = 0; e < 2; ++e) {
            void* const to = lanes.of(8 * i + 2 * member + e).column;
            static_cast<unsigned short*>(to)[group] = static_cast<unsigned short>(in[i] >> 16 * e);
        }
        unsigned seen = 0;  // which of the eight 16-byte bank groups are written
        for (int c = 0; c < 8; ++c) seen |= 1u << reinterpret_cast<u64>(lanes.of(8 * i + c).column) / 16 % 8;
        if (seen != 0xff) host::fail("columns of a matrix share banks of shared memory");
    }
}
inline void write_peer(float* p, int rank, float value) { *host::peer(p, rank) = value; }
template <typename SUM>
inline SUM read_peer(const SUM* p, int rank) { return read_aligned_peer<SUM>(p, rank); }
template <typename SUM>
inline void read_peer4(const SUM* p, int rank, SUM (&out)[4]) {
    const Words four = read_aligned_peer<Words>(p, rank);
    memcpy(out, &four, sizeof out);
}

}  // namespace gemmtune

#include "emulator/wgmma_host.h"
