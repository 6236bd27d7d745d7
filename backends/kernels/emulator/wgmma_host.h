// wgmmas on the host's fibers (wgmma.h, wgmma_bytes.h; hopper_host.h). They are performed as late as possible: their
// operands are read when a wait for them ends, and that ends when no other fiber can continue.
#pragma once

#include "emulator/hopper_host.h"

namespace gemmtune {
namespace host {

// Adds to this lane's sums, or (ADD false) sets them to, the product of the matrices at two descriptors: 64 lines and
// N lines of 32 bytes each (wgmma.h, wgmma_bytes.h). A sum of at most 32 products of int8 is exact in fp32.
// Many lanes read the same lines: a line of the same bytes as one that was read before is not widened again.
template <typename T>
inline void read_line(u64 lines, int line, float (&out)[32 / sizeof(T)]) {
    struct Line {
        T elements[32 / sizeof(T)];
        float wide[32 / sizeof(T)];
    };
    static Line known[4096];  // zeros, which are widened to zeros
    T elements[32 / sizeof(T)];
    const u64 first = lines * 16 + static_cast<u64>(line * kMapLine);
    memcpy(static_cast<void*>(elements), swizzled(first), 16);
    memcpy(static_cast<void*>(elements + 16 / sizeof(T)), swizzled(first + 16), 16);
    Line& same = known[first / 32 % 4096];
    if (memcmp(same.elements, elements, 32) != 0) {
        memcpy(static_cast<void*>(same.elements), elements, 32);
        for (size_t e = 0; e < 32 / sizeof(T); ++e) same.wide[e] = widen(elements[e]);
    }
    memcpy(out, same.wide, sizeof out);
}
template <int DEPTH>
inline float sum_of_products(const float (&x)[DEPTH], const float (&y)[DEPTH]) {
    typedef float Four __attribute__((vector_size(16)));  // fewer instructions where nothing is optimized
    Four sums = {}, some_x, some_y;
    for (int e = 0; e < DEPTH; e += 4) {
        memcpy(&some_x, x + e, sizeof some_x), memcpy(&some_y, y + e, sizeof some_y);
        sums += some_x * some_y;
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}
template <typename B, int N, typename SUM, bool ADD, int DEPTH>
inline void add_to(void* sums, const float (&rows)[2][DEPTH], u64 b) {
    SUM* const d = static_cast<SUM*>(sums);
    float column[DEPTH];
    for (int at = 0; at < N / 4; ++at) {
        read_line<B>(b, at / 2 * 8 + lane_index() % 4 * 2 + at % 2, column);
        for (int half = 0; half < 2; ++half) {
            SUM& to = d[at / 2 * 4 + half * 2 + at % 2];
            to = (ADD ? to : SUM(0)) + static_cast<SUM>(sum_of_products(rows[half], column));
        }
    }
}
template <typename A, typename B, int N, typename SUM, bool ADD>
inline void add_products(const Multiplication& one) {
    const int row = warp_index() % 4 * 16 + lane_index() / 4;
    float rows[2][32 / sizeof(A)];
    read_line<A>(one.a, row, rows[0]);
    read_line<A>(one.a, row + 8, rows[1]);
    add_to<B, N, SUM, ADD>(one.sums, rows, one.b);
}
template <typename T, int N>
inline void add_held(const Multiplication& one) {
    add_to<T, N, float, true>(one.sums, one.rows, one.b);
}
struct Fragment {
    unsigned a[4];
};
// Checks that a matrix lies in shared memory at an address that a descriptor can express.
inline void check_matrix(u64 lines, int count) {
    const u64 first = lines * 16;
    if (first % 1024 >= kMapLine) fail("a matrix does not begin at a multiple of 1024 bytes");
    within(reinterpret_cast<const char*>(first), static_cast<size_t>(count - 1) * kMapLine + 32, 16);
}

}  // namespace host

// A descriptor on the host: the address in units of 16 bytes.
inline u64 shared_matrix(const char* lines) {
    host::within(lines, kMapLine, 1024);
    return reinterpret_cast<u64>(lines) / 16;
}
inline void begin_products() {
    host::machine.fibers[host::machine.current].multiplies = true;
    host::wait(host::kAtWarp);
}
inline void end_products() {
    host::Fiber& fiber = host::machine.fibers[host::machine.current];
    fiber.multiplies = false, ++fiber.product_groups;
}
namespace host {
// Performs a product at once in reverse, else when a wait for it ends.
template <int N>
inline void issue(const Multiplication& one) {
    Fiber& fiber = machine.fibers[machine.current];
    if (!fiber.multiplies) fail("a product that no group of products has begun for");
    check_matrix(one.b, N);
    if (machine.reversed) one.perform(one);
    else fiber.products.push_back(one);
}
template <int N>
inline void issue(void (*perform)(const Multiplication&), void* d, u64 a, u64 b) {
    check_matrix(a, 64);
    issue<N>({perform, d, a, b, machine.fibers[machine.current].product_groups, {}});
}
}  // namespace host
template <typename T, int N>
inline void multiply(float (&d)[N / 2], u64 a, u64 b) {
    host::issue<N>(host::add_products<T, T, N, float, true>, d, a, b);
}
template <typename T, int N>
inline void multiply_held(float (&d)[N / 2], const unsigned (&a)[4], u64 b) {
    const auto lanes = host::exchange(host::Fragment{{a[0], a[1], a[2], a[3]}});
    const int group = host::machine.fibers[host::machine.current].product_groups;
    host::Multiplication one{host::add_held<T, N>, d, 0, b, group, {}};
    for (int half = 0; half < 2; ++half) {
        for (int k = 0; k < 16; k += 2) {
            float pair[2];
            Word<T>::unpack(lanes.of(lane_index() / 4 * 4 + k % 8 / 2).a[half + k / 8 * 2], pair);
            one.rows[half][k] = pair[0], one.rows[half][k + 1] = pair[1];
        }
    }
    host::issue<N>(one);
}
inline void show_to_products() {}
inline void order_before_copies() {}
template <int GROUPS>
inline void wait_products() {
    host::Fiber& fiber = host::machine.fibers[host::machine.current];
    const int end = fiber.product_groups - GROUPS;
    size_t over = 0;
    while (over < fiber.products.size() && fiber.products[over].group < end) ++over;
    if (over > 0) host::wait(host::kAtLast);
    for (size_t at = 0; at < over; ++at) {
        const host::Multiplication& one = fiber.products[at];
        one.perform(one);
    }
    fiber.products.erase(fiber.products.begin(), fiber.products.begin() + static_cast<long>(over));
    host::wait(host::kAtWarp);
}

}  // namespace gemmtune
