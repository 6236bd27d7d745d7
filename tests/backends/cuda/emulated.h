// CUDA C++ enough for judge.cu on the host: a block's threads are fibers that take turns at __syncthreads().
#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)

struct Place {
    unsigned x, y, z;
};
static Place threadIdx, blockIdx, blockDim, gridDim;

static const size_t STACK = 1 << 16;
static std::vector<char> stacks;
static std::vector<ucontext_t> fibers;
static std::vector<char> done;
static ucontext_t scheduler;
static std::function<void()> body;

static void __syncthreads() { swapcontext(&fibers[threadIdx.x], &scheduler); }

static void fiber() {
    body();
    done[threadIdx.x] = 1;
}

static void run_block() {
    const unsigned threads = blockDim.x;
    for (unsigned i = 0; i < threads; ++i) {
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = &stacks[i * STACK];
        fibers[i].uc_stack.ss_size = STACK;
        fibers[i].uc_link = &scheduler;
        makecontext(&fibers[i], fiber, 0);
        done[i] = 0;
    }
    for (bool left = true; left;) {
        left = false;
        for (unsigned i = 0; i < threads; ++i) {
            if (done[i]) continue;
            threadIdx = {i, 0, 0};
            swapcontext(&scheduler, &fibers[i]);
            left = left || !done[i];
        }
    }
}

template <class... A, size_t... I>
void launch(
    void (*kernel)(A...), const unsigned* grid, unsigned threads, void** arguments, std::index_sequence<I...>
) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    stacks.resize(threads * STACK);
    fibers.resize(threads);
    done.resize(threads);
    body = [=] { kernel(*static_cast<A*>(arguments[I])...); };
    for (unsigned y = 0; y < grid[1]; ++y)
        for (unsigned x = 0; x < grid[0]; ++x) {
            blockIdx = {x, y, 0};
            run_block();
        }
}

template <class... A>
void launch(void (*kernel)(A...), const unsigned* grid, unsigned threads, void** arguments) {
    launch(kernel, grid, threads, arguments, std::index_sequence_for<A...>());
}

template <class To, class From>
static To same_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To out;
    memcpy(&out, &value, sizeof out);
    return out;
}
static float __uint_as_float(unsigned x) { return same_bits<float>(x); }
static unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
static double __longlong_as_double(long long x) { return same_bits<double>(x); }
static long long __double_as_longlong(double x) { return same_bits<long long>(x); }
static int __popc(unsigned x) { return __builtin_popcount(x); }
static double cospi(double x) { return cos(3.14159265358979323846 * x); }
static float cospif(float x) { return float(cospi(x)); }
static float __double2float_ru(double x) {
    float out = float(x);
    return double(out) < x ? nextafterf(out, INFINITY) : out;
}
template <class T>
static void atomicAdd(T* at, T value) {
    *at += value;
}
template <class T>
static void atomicMax(T* at, T value) {
    if (value > *at) *at = value;
}

#include "judge.cu"

#define KERNEL(name)                                                                            \
    extern "C" void launch_##name(const unsigned* grid, unsigned threads, void** arguments) { \
        launch(name, grid, threads, arguments);                                               \
    }
#ifdef TYPE_A
KERNEL(reference)
#else
KERNEL(count_bytes)
KERNEL(draw)
KERNEL(compare)
KERNEL(look_up)

// Every conversion, for one value or pattern at a time.
extern "C" void widen_all(int format, const void* from, double* to, long long count) {
    for (long long i = 0; i < count; ++i) to[i] = load(format, from, i);
}
extern "C" void narrow_all(int format, const float* from, void* to, long long count) {
    for (long long i = 0; i < count; ++i) store(format, to, i, from[i]);
}
#endif
