// A GPU's thread blocks on the host, for tests. Each thread is a fiber that runs until it waits at a barrier or
// for its warp. Warps run in order or, for races that this order hides, in reverse. Shared memory is
// initialised to NaN and ends at an inaccessible page. An asynchronous copy is performed as late as its
// thread's wait allows or, in reverse, at once: a read that is too early finds NaN or the old contents, and a
// write that is too early overwrites what other threads still read. (A partial 16-byte copy, which a GPU
// performs at once, is treated alike: kernels must be correct either way.) The blocks of a cluster take turns;
// each runs as long as any of its threads can continue.
#pragma once

namespace gemmtune {

namespace host {

// kAtPhase: waits until machine.ended() holds for the fiber's barrier. kAtLast: waits until no other fiber can
// continue.
enum State : char { kReady, kAtWarp, kAtBlock, kAtCluster, kAtPhase, kAtLast, kDone };
constexpr size_t kStack = 1 << 17, kMail = 128;

// A pending copy to shared memory: `size` bytes, the first `bytes` of them from `from`, then zeros.
struct Copy {
    char* to;
    const char* from;
    int size, bytes, group;
};

// A thread's part of a pending wgmma on matrices in shared memory; `rows` of A, if registers hold it.
struct Multiplication {
    void (*perform)(const Multiplication&);
    void* sums;
    u64 a, b;
    int group;
    float rows[2][16];
};

struct Fiber {
    void* stack_pointer;
    State state;
    int exchanges, groups, product_groups;  // closed groups of copies and of wgmmas
    bool multiplies;                        // a group of wgmmas is open
    bool sees;                              // sees what other blocks stored before its last cluster_barrier()
    std::vector<Copy> copies;
    std::vector<Multiplication> products;
    const void* barrier;  // kAtPhase: the barrier and the phase's parity
    unsigned parity;
    alignas(16) char mail[2][kMail];
};

// A write to shared memory that no thread performs: bring(what) performs it and returns whether that ended a
// phase.
struct Arrival {
    bool (*bring)(const void* what);
    alignas(8) char what[128];
};

struct Block {
    unsigned at[3];
    char* shared;
    int first, done;  // the first fiber; how many fibers have ended
};

struct Machine {
    std::vector<Fiber> fibers;
    char* stacks = nullptr;
    size_t stack_bytes = 0;
    void* scheduler = nullptr;
    int current = 0, threads = 0;
    unsigned grid[3] = {};
    std::vector<Block> blocks;  // of the cluster; `block` is running, `first` is its first fiber
    int block = 0, first = 0;
    size_t shared_bytes = 0;
    std::vector<Arrival> under_way;  // in order of their start; the first `arrived` have been performed
    size_t arrived = 0;
    bool (*ended)(const void* barrier, unsigned parity) = nullptr;
    void (*entry)(const void*, char*) = nullptr;
    const void* args = nullptr;
    const char* fault = nullptr;
    struct { const char *begin, *end, *first; } operands[8] = {};  // what copies may read; the operand itself
                                                                   // begins at `first`
    bool reversed = false;
    int ways = 0;  // the worst bank conflict: words of one bank in one pass (read_shared())
};
inline Machine machine;

// Saves the callee-saved registers, switches stacks and resumes the other fiber.
#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void gemmtune_switch(void** from, void* to);
asm(R"(
.text
.hidden gemmtune_switch
.globl gemmtune_switch
gemmtune_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
inline void* fresh_stack(char* top, void (*entry)()) {
    void** at = reinterpret_cast<void**>((reinterpret_cast<u64>(top) - 64) & ~u64(15));
    *at = reinterpret_cast<void*>(entry);
    memset(at - 6, 0, 6 * sizeof(void*));
    return at - 6;
}
#else
#error "the host target switches stacks on x86-64 only"
#endif

inline void wait(State state) {
    Fiber& mine = machine.fibers[machine.current];
    mine.state = state;
    gemmtune_switch(&mine.stack_pointer, machine.scheduler);
}

// Records the first error; the fiber never continues.
inline void fail(const char* why) {
    if (!machine.fault) machine.fault = why;
    wait(kDone);
    abort();
}

inline void run_fiber() {
    Block& mine = machine.blocks[machine.block];
    machine.entry(machine.args, mine.shared);
    ++mine.done;
    wait(kDone);
    abort();
}

// Runs the warp's ready lanes, again as long as all lanes reach the same exchange. Returns whether any fiber
// ran.
inline bool run_warp(int first, int last) {
    Fiber* const fibers = machine.fibers.data();
    bool moved = false;
    for (;;) {
        bool ready = false, meet = true;
        for (int t = first; t < last && !machine.fault; ++t) {
            Fiber& fiber = fibers[t];
            if (fiber.state == kReady ||
                (fiber.state == kAtPhase && machine.ended(fiber.barrier, fiber.parity))) {
                machine.current = t;
                ready = moved = true;
                gemmtune_switch(&machine.scheduler, fiber.stack_pointer);
            }
            meet = meet && fiber.state == kAtWarp;
        }
        if (!meet || machine.fault) return moved;
        if (!ready) return moved;
        for (int t = first; t < last; ++t) fibers[t].state = kReady;
    }
}

// The number of fibers in a state among those of a block or of the cluster.
inline int count(State state, int first, int last) {
    const Fiber* const fibers = machine.fibers.data();
    int found = 0;
    for (int t = first; t < last; ++t) found += fibers[t].state == state;
    return found;
}
inline void wake(State state, int first, int last) {
    Fiber* const fibers = machine.fibers.data();
    for (int t = first; t < last; ++t)
        if (fibers[t].state == state) fibers[t].state = kReady;
}

// Runs a block until it ends or waits for other blocks. Returns whether any fiber ran.
inline bool run_block(int number) {
    Block& block = machine.blocks[number];
    const int threads = machine.threads, warps = (threads + kWarp - 1) / kWarp;
    const int first = block.first, last = first + threads;
    machine.block = number, machine.first = first;
    for (bool any = false;;) {
        bool moved = false;
        for (int w = 0; w < warps; ++w) {
            const int from = first + (machine.reversed ? warps - 1 - w : w) * kWarp;
            moved |= run_warp(from, from + kWarp < last ? from + kWarp : last);
            if (machine.fault) return true;
        }
        any |= moved;
        if (block.done == threads) return any;
        if (count(kAtBlock, first, last) == threads) wake(kAtBlock, first, last);
        else if (!moved) return any;
    }
}

// When no fiber can continue: completes pending work beside the threads, first the wgmmas of one warp, then
// copies, and only as much as lets some fiber continue. Returns whether there was any.
inline bool end_what_is_under_way(int fibers) {
    for (int t = 0; t < fibers; ++t)
        if (machine.fibers[t].state == kAtLast) return wake(kAtLast, t, t / kWarp * kWarp + kWarp), true;
    const bool any = machine.arrived < machine.under_way.size();
    for (bool ended = false; !ended && !machine.fault && machine.arrived < machine.under_way.size();) {
        const Arrival& next = machine.under_way[machine.arrived++];
        ended = next.bring(next.what);
    }
    return any;
}

// Runs the blocks of machine.blocks as a cluster.
inline void run_cluster() {
    const int count_of = static_cast<int>(machine.blocks.size()), threads = machine.threads;
    const int last = machine.blocks.back().first + threads, all = count_of * threads;
    machine.under_way.clear(), machine.arrived = 0;
    for (Block& block : machine.blocks) {
        block.done = 0;
        for (int t = block.first; t < block.first + threads; ++t) {
            Fiber& fiber = machine.fibers[t];
            fiber.state = kReady, fiber.exchanges = fiber.groups = fiber.product_groups = 0;
            fiber.multiplies = fiber.sees = false;
            fiber.copies.clear(), fiber.products.clear();
            fiber.stack_pointer = fresh_stack(machine.stacks + (t + 1) * kStack, run_fiber);
        }
    }
    for (;;) {
        bool moved = false;
        int done = 0;
        for (int b = 0; b < count_of; ++b) {
            const int number = machine.reversed ? count_of - 1 - b : b;
            moved |= run_block(number);
            if (machine.fault) return;
            done += machine.blocks[number].done;
        }
        if (done == all) {
            if (machine.arrived < machine.under_way.size())
                machine.fault = "a block ends while copies to its memory go on";
            return;
        }
        if (count(kAtCluster, 0, last) == all) {
            wake(kAtCluster, 0, last);
        } else if (!moved && !end_what_is_under_way(last)) {
            machine.fault = "threads wait for others that never come (a barrier or a shuffle in a branch)";
            if (count(kAtPhase, 0, last)) machine.fault = "threads wait for a phase that nothing ends";
            return;
        }
    }
}

// Maps `bytes` of zeroed memory that takes room only when touched; null if there is none.
inline char* mapped(size_t bytes) {
    void* const found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return found == MAP_FAILED ? nullptr : static_cast<char*>(found);
}

// Runs a grid in clusters of `cluster` blocks along x and y (0 counts as 1). Returns null or an error message.
inline const char* launch(void (*entry)(const void*, char*), const void* args, const unsigned (&grid)[3],
                          const unsigned (&cluster)[2], int threads, size_t shared_bytes, bool reversed) {
    const unsigned wide = cluster[0] ? cluster[0] : 1, high = cluster[1] ? cluster[1] : 1;
    if (grid[0] % wide || grid[1] % high) return "a grid of no whole clusters";
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), blocks = wide * high;
    const size_t pages = (shared_bytes + page - 1) / page * page, each = pages + page;
    const size_t fibers = blocks * ((threads + kWarp - 1) / kWarp * kWarp);
    if (machine.stack_bytes < fibers * kStack) {
        if (machine.stacks) munmap(machine.stacks, machine.stack_bytes);
        machine.stack_bytes = fibers * kStack, machine.stacks = mapped(machine.stack_bytes);
        if (!machine.stacks) return machine.stack_bytes = 0, "no memory for the host's stacks";
    }
    char* const memory = mapped(blocks * each);
    if (!memory) return "no memory for the host's shared memory";
    for (size_t b = 0; b < blocks; ++b) mprotect(memory + b * each + pages, page, PROT_NONE);
    machine.entry = entry, machine.args = args, machine.fault = nullptr, machine.reversed = reversed;
    machine.threads = threads, machine.shared_bytes = shared_bytes;
    for (int i = 0; i < 3; ++i) machine.grid[i] = grid[i];
    machine.fibers.resize(fibers), machine.blocks.resize(blocks);
    for (Fiber& fiber : machine.fibers) fiber.state = kDone;  // padding of a block's last warp stays done
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; y += high)
            for (unsigned x = 0; x < grid[0] && !machine.fault; x += wide) {
                for (unsigned b = 0; b < blocks; ++b) {
                    char* const begin = memory + b * each;
                    memset(begin, 0xff, pages);
                    machine.blocks[b] = {{x + b % wide, y + b / wide, z},
                                         begin + pages - (shared_bytes + 15) / 16 * 16,
                                         static_cast<int>(b * (fibers / blocks)), 0};
                }
                run_cluster();
            }
    munmap(memory, blocks * each);
    return machine.fault;
}

// Registers an operand. Copies may start at the multiple of 16 bytes before it, because allocations begin at
// one.
inline void may_copy(int number, const void* operand, i64 bytes) {
    const char* const begin = static_cast<const char*>(operand);
    machine.operands[number] = {begin - reinterpret_cast<u64>(begin) % 16, begin + bytes, begin};
}
template <typename ARGS>
inline auto tell_scales(const ARGS* args, int) -> decltype(args->scale_a_bytes, void()) {
    may_copy(2, args->scale_a, args->scale_a_bytes), may_copy(3, args->scale_b, args->scale_b_bytes);
}
template <typename ARGS>
inline auto tell_scales(const ARGS* args, int) -> decltype(args->zero_bytes, void()) {
    may_copy(2, args->scales, args->scale_bytes), may_copy(3, args->zeros, args->zero_bytes);
}
template <typename ARGS>
inline void tell_scales(const ARGS*, long) {}
// A GEMM kernel's argument names both operands, and their scales if there may be any; other arguments name none.
template <typename ARGS>
inline auto tell_operands(const ARGS* args) -> decltype(args->a_bytes, void()) {
    may_copy(0, args->a, args->a_bytes), may_copy(1, args->b, args->b_bytes);
    tell_scales(args, 0);
}
template <typename ARGS>
inline auto tell_operands(const ARGS* args) -> decltype(args->product.a_bytes, void()) {
    tell_operands(&args->product);
}
template <typename ARGS>
inline auto tell_operands(const ARGS* args) -> decltype(args->gemm.a_bytes, void()) {
    tell_operands(&args->gemm), tell_scales(args, 0);
}
template <typename ARGS>
inline auto tell_operands(const ARGS* args) -> decltype(args->product.gemm.a_bytes, void()) {
    tell_operands(&args->product.gemm), tell_scales(&args->product, 0);
}
// A packed copy stands for the weights, which its kernel does not read.
template <typename ARGS>
inline auto tell_operands(const ARGS* args) -> decltype(args->packed_bytes, void()) {
    may_copy(0, args->packed, args->packed_bytes);
    may_copy(1, args->weights.gemm.b, args->weights.gemm.b_bytes);
}
// The argument of a kernel that copies lines names every copy's source.
template <typename ARGS>
inline auto tell_operands(const ARGS* args) -> decltype(args->of[0].source_bytes, void()) {
    for (int i = 0; i < args->count; ++i) may_copy(i, args->of[i].source, args->of[i].source_bytes);
}
inline void tell_operands(const void*) {}
inline void forget_operands() {
    for (auto& one : machine.operands) one = {};
}
inline void perform(const Copy& copy) {
    memcpy(copy.to, copy.from, copy.bytes);
    memset(copy.to + copy.bytes, 0, copy.size - copy.bytes);
}
inline void start_copy(void* shared, const void* global, int size, int bytes) {
    if ((reinterpret_cast<u64>(shared) | reinterpret_cast<u64>(global)) % static_cast<u64>(size))
        fail("an asynchronous copy from or to a misaligned address");
    if (bytes < 0 || bytes > size) fail("an asynchronous copy of more than there is place for");
    if (size == 16 && bytes % 2) fail("an asynchronous copy of a part that no GPU's copies");
    const char* const from = static_cast<const char*>(global);
    bool within = bytes == 0;
    for (const auto& one : machine.operands) within |= one.begin <= from && from + size <= one.end;
    if (!within) fail("an asynchronous copy that begins or ends beyond its operand");
    Fiber& fiber = machine.fibers[machine.current];
    const Copy copy{static_cast<char*>(shared), from, size, bytes, fiber.groups};
    if (machine.reversed) return perform(copy);
    memset(copy.to, 0xff, size);  // a read of the old contents finds NaN
    fiber.copies.push_back(copy);
}
// Performs the copies of all groups but the last `under_way`; they were started in the order of groups.
inline void finish_copies(int under_way) {
    Fiber& fiber = machine.fibers[machine.current];
    size_t done = 0;
    while (done < fiber.copies.size() && fiber.copies[done].group < fiber.groups - under_way)
        perform(fiber.copies[done++]);
    fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + static_cast<long>(done));
}

// exchange() publishes a lane's value to its warp; of(lane) is another lane's value, valid until the next
// exchange but one.
template <typename T>
struct Exchanged {
    const Fiber* lanes;
    int parity;
    const T& of(int lane) const { return *reinterpret_cast<const T*>(lanes[lane].mail[parity]); }
};
template <typename T>
inline Exchanged<T> exchange(const T& mine) {
    static_assert(sizeof(T) <= kMail, "a lane's mail is short");
    Fiber& fiber = machine.fibers[machine.current];
    const int parity = fiber.exchanges++ & 1;
    memcpy(fiber.mail[parity], &mine, sizeof mine);
    const Fiber* const lanes = &fiber - machine.current % kWarp;
    wait(kAtWarp);
    return {lanes, parity};
}

inline const Block& block() { return machine.blocks[machine.block]; }

}  // namespace host

}  // namespace gemmtune
