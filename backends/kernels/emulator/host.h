// portable.h's vocabulary on the host, for tests, executed by fibers (host_machine.h). Where a GPU would fault
// or compute garbage, the launch ends with a message: a misaligned wide load, a barrier or a shuffle that not
// every thread reaches.
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#ifndef GEMMTUNE_WARP
#define GEMMTUNE_WARP 32
#endif
#define GEMMTUNE_DEVICE inline
#define GEMMTUNE_UNROLL
#define GEMMTUNE_ROLL
#define GEMMTUNE_UNROLL_BY(TIMES)

namespace gemmtune {

constexpr int kWarp = GEMMTUNE_WARP;

}  // namespace gemmtune

#include "emulator/host_machine.h"

namespace gemmtune {

inline unsigned thread_index() { return static_cast<unsigned>(host::machine.current - host::machine.first); }
inline unsigned block_x() { return host::block().at[0]; }
inline unsigned block_y() { return host::block().at[1]; }
inline unsigned block_z() { return host::block().at[2]; }
inline void block_barrier() { host::wait(host::kAtBlock); }
template <int THREADS>
inline void named_barrier_sync() { block_barrier(); }
template <int THREADS>
inline void named_barrier_sync(int) { block_barrier(); }

// Called for every element: inlined even where nothing is optimized.
#define GEMMTUNE_INLINED inline __attribute__((always_inline))
template <typename To, typename From>
GEMMTUNE_INLINED To same_bits(From value) {
    return __builtin_bit_cast(To, value);
}
GEMMTUNE_INLINED float as_float(unsigned bits) { return same_bits<float>(bits); }
GEMMTUNE_INLINED unsigned as_unsigned(float value) { return same_bits<unsigned>(value); }
inline void warp_barrier() { host::wait(host::kAtWarp); }
inline float shuffle_xor(float value, int mask) {
    return host::exchange(value).of(static_cast<int>(thread_index() % kWarp) ^ mask);
}
inline bool warp_any(bool condition) {
    const auto found = host::exchange(condition);
    for (int lane = 0; lane < kWarp; ++lane)
        if (found.of(lane)) return true;
    return false;
}

template <typename T>
inline T aligned_load(const void* p, unsigned bytes) {
    if (reinterpret_cast<u64>(p) % bytes) host::fail("a wide load from a misaligned address");
    T out;
    memcpy(&out, p, bytes);
    return out;
}
inline Words stream16(const void* p) { return aligned_load<Words>(p, 16); }
inline void stream8(const void* p, unsigned (&out)[2]) {
    const u64 both = aligned_load<u64>(p, 8);
    memcpy(out, &both, 8);
}
inline unsigned stream4(const void* p) { return aligned_load<unsigned>(p, 4); }
inline Words read16(const void* p) { return aligned_load<Words>(p, 16); }
// A load that is not wanted returns NaN. One that is wanted must lie in an operand, not a byte before or behind
// it.
inline void within_operand(const void* p, int size) {
    const char* const from = static_cast<const char*>(p);
    bool within = false;
    for (const auto& one : host::machine.operands) within |= one.first <= from && from + size <= one.end;
    if (!within) host::fail("a load that begins or ends beyond its operand");
}
inline Words read16_if(bool wanted, const void* p) {
    if (!wanted) return {{~0u, ~0u, ~0u, ~0u}};
    within_operand(p, 16);
    return read16(p);
}
inline unsigned short read2_if(bool wanted, const void* p) {
    if (!wanted) return 0;
    within_operand(p, 2);
    return aligned_load<unsigned short>(p, 2);
}
inline void prefetch_l2(const void*) {}
inline void write16(void* p, Words v) {
    if (reinterpret_cast<u64>(p) % 16) host::fail("a wide store to a misaligned address");
    memcpy(p, &v, 16);
}
inline void write_global16(void* p, Words v) { write16(p, v); }
inline void write_shared16_if(bool wanted, void* p, Words v) {
    if (wanted) write16(p, v);
}
inline void write8(void* p, const unsigned (&v)[2]) {
    if (reinterpret_cast<u64>(p) % 8) host::fail("a wide store to a misaligned address");
    memcpy(p, v, 8);
}

inline void copy_async16(void* shared, const void* global, int bytes = 16) {
    host::start_copy(shared, global, 16, bytes);
}
inline void copy_async16_if(bool wanted, void* shared, const void* global, int bytes = 16) {
    if (wanted) copy_async16(shared, global, bytes);
}
inline void copy_part(void* shared, const void* global, int bytes) {
    memset(shared, 0, 16);
    memcpy(shared, global, static_cast<size_t>(bytes));
}
inline void copy_first(void* shared, const char* global, int bytes, const char* end) {
    if (bytes % 16 == 0 || global + 16 <= end) return copy_async16(shared, global, bytes);
    copy_part(shared, global, bytes);
}
inline void copy_async4(void* shared, const void* global, int bytes = 4) {
    host::start_copy(shared, global, 4, bytes);
}
inline void commit_copies() { ++host::machine.fibers[host::machine.current].groups; }
template <int N>
inline void wait_copies() {
    host::finish_copies(N);
}

// Counts bank conflicts as a GPU would have them: 32 banks of 4 bytes; as many lanes are served together as
// read 128 bytes; a word is broadcast to all lanes that read it.
template <typename T>
inline T read_shared(const void* p) {
    if (reinterpret_cast<u64>(p) % sizeof(T)) host::fail("shared memory is read at a misaligned address");
    constexpr int kWords = sizeof(T) > 4 ? static_cast<int>(sizeof(T)) / 4 : 1, kTogether = 32 / kWords;
    const auto lanes = host::exchange(p);
    const int first = host::machine.current % kWarp;
    u64 words[32];
    int ways[32] = {}, known = 0;
    if (first % kTogether == 0) {  // one lane counts for all that are served with it
        for (int at = 0; at < 32; ++at) {
            const u64 word = reinterpret_cast<u64>(lanes.of(first + at / kWords)) / 4 + at % kWords;
            bool again = false;
            for (int other = 0; other < known; ++other) again = again || words[other] == word;
            if (again) continue;
            words[known++] = word;
            const int here = ++ways[word % 32];
            if (here > host::machine.ways) host::machine.ways = here;
        }
    }
    T out;
    memcpy(&out, p, sizeof out);
    return out;
}

inline float half_to_float(unsigned short bits) { return static_cast<float>(same_bits<_Float16>(bits)); }
inline unsigned short float_to_half(float value) {
    return same_bits<unsigned short>(static_cast<_Float16>(value));
}
inline float exponential(float x) { return expf(x); }
inline float quotient(float x, float y) { return x / y; }

}  // namespace gemmtune

#define GEMMTUNE_CLUSTER(X, Y) X, Y
// launch_NAME(args, grid, threads, shared bytes, reversed) returns null or an error message. The kernel's
// argument is a copy with the alignment of the kernel's type. The qualifiers are the cluster's shape, or none.
#define GEMMTUNE_KERNEL(NAME, FAMILY, ...)                                                              \
    static void NAME(const void* args, char* shared) {                                                  \
        gemmtune::begin<FAMILY>();                                                                      \
        FAMILY::run(*static_cast<const gemmtune::ArgsOf<FAMILY>*>(args), shared);                       \
    }                                                                                                   \
    extern "C" const unsigned long long argument_bytes_##NAME;                                          \
    const unsigned long long argument_bytes_##NAME = sizeof(gemmtune::ArgsOf<FAMILY>);                  \
    extern "C" const char* launch_##NAME(const void* args, const unsigned* grid, int threads,           \
                                         unsigned long long shared, int reversed) {                     \
        const unsigned sizes[3] = {grid[0], grid[1], grid[2]}, cluster[2] = {__VA_ARGS__};              \
        gemmtune::ArgsOf<FAMILY> own;                                                                   \
        memcpy(static_cast<void*>(&own), args, sizeof own);                                             \
        gemmtune::host::forget_operands();                                                              \
        gemmtune::host::tell_operands(&own);                                                            \
        return gemmtune::host::launch(NAME, &own, sizes, cluster, threads, shared, reversed != 0);      \
    }
