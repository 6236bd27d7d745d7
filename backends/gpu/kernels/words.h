// What the kernels of the shared GPU layer need beyond portable.h's vocabulary: the size of the grid, atomics
// across the launch, double-precision mathematics, and a funnel shift. CUDA provides all of it; elsewhere it is
// our own arithmetic (no device library is linked), accurate to a few units in the last place.
//
//   grid_x()                              blocks along x
//   atomic_add() atomic_max()             on global memory, across the whole launch
//   square_root() natural_log() exponential_of() tangent_h() cosine_pi()   of doubles
//   rounded_up()                          the smallest float that is not below a double
//   read_operand16()                      16 aligned bytes of an operand, all of them within it
//   funnel(low, high, bits)               32 bits of high:low from bit `bits` (0 to 31) on
#pragma once

#include "device/args.h"

namespace gemmtune {

#if defined(GEMMTUNE_HOST)
inline unsigned grid_x() { return host::machine.grid[0]; }
inline Words read_operand16(const void* p) {
    within_operand(p, 16);
    return read16(p);
}
inline void atomic_add(u64* at, u64 value) { *at += value; }
inline void atomic_add(double* at, double value) { *at += value; }
inline void atomic_max(u64* at, u64 value) { *at = value > *at ? value : *at; }
inline double as_double(u64 bits) { return same_bits<double>(bits); }
inline u64 as_bits(double value) { return same_bits<u64>(value); }
#elif defined(__HIP__) || defined(__HIPCC_RTC__)
GEMMTUNE_DEVICE unsigned grid_x() {
    return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}
GEMMTUNE_DEVICE void atomic_add(u64* at, u64 value) {
    __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
GEMMTUNE_DEVICE void atomic_add(double* at, double value) {
    __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
GEMMTUNE_DEVICE void atomic_max(u64* at, u64 value) {
    __hip_atomic_fetch_max(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
GEMMTUNE_DEVICE double as_double(u64 bits) { return __builtin_bit_cast(double, bits); }
GEMMTUNE_DEVICE u64 as_bits(double value) { return __builtin_bit_cast(u64, value); }
#else
GEMMTUNE_DEVICE unsigned grid_x() { return gridDim.x; }
GEMMTUNE_DEVICE void atomic_add(u64* at, u64 value) { atomicAdd(at, value); }
GEMMTUNE_DEVICE void atomic_add(double* at, double value) { atomicAdd(at, value); }
GEMMTUNE_DEVICE void atomic_max(u64* at, u64 value) { atomicMax(at, value); }
GEMMTUNE_DEVICE double as_double(u64 bits) { return __longlong_as_double(static_cast<i64>(bits)); }
GEMMTUNE_DEVICE u64 as_bits(double value) { return static_cast<u64>(__double_as_longlong(value)); }
#endif

#if !defined(GEMMTUNE_HOST)
GEMMTUNE_DEVICE Words read_operand16(const void* p) { return read16(p); }
#endif

GEMMTUNE_DEVICE double absolute(double x) { return as_double(as_bits(x) & 0x7fffffffffffffffull); }
GEMMTUNE_DEVICE double larger(double x, double y) { return y > x ? y : x; }

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
GEMMTUNE_DEVICE double multiply_add(double x, double y, double z) { return fma(x, y, z); }
GEMMTUNE_DEVICE double square_root(double x) { return sqrt(x); }
GEMMTUNE_DEVICE double natural_log(double x) { return log(x); }
GEMMTUNE_DEVICE double exponential_of(double x) { return exp(x); }
GEMMTUNE_DEVICE double tangent_h(double x) { return tanh(x); }
GEMMTUNE_DEVICE double cosine_pi(double x) { return cospi(x); }
GEMMTUNE_DEVICE float natural_log(float x) { return logf(x); }
GEMMTUNE_DEVICE float square_root(float x) { return sqrtf(x); }
GEMMTUNE_DEVICE float cosine_pi(float x) { return cospif(x); }
GEMMTUNE_DEVICE float rounded_up(double x) { return __double2float_ru(x); }
GEMMTUNE_DEVICE unsigned funnel(unsigned low, unsigned high, unsigned bits) {
    return __funnelshift_r(low, high, bits);
}
#else
GEMMTUNE_DEVICE double multiply_add(double x, double y, double z) { return __builtin_fma(x, y, z); }
GEMMTUNE_DEVICE double square_root(double x) { return __builtin_sqrt(x); }

// x 2^power, with gradual underflow to zero and overflow to infinity.
GEMMTUNE_DEVICE double scaled(double x, int power) {
    for (; power > 1000; power -= 1000) x *= 0x1p1000;
    for (; power < -1000; power += 1000) x *= 0x1p-1000;
    return x * as_double(static_cast<u64>(power + 1023) << 52);
}

// e^x = 2^n e^r with |r| <= log(2) / 2, by 14 terms of the series of e^r.
GEMMTUNE_DEVICE double exponential_of(double x) {
    if (!(x <= 709.79)) return x == x ? as_double(0x7ff0000000000000ull) : x;
    if (x < -745.2) return 0;
    const double fraction = x * 1.4426950408889634;
    const int n = static_cast<int>(fraction < 0 ? fraction - 0.5 : fraction + 0.5);
    const double r = multiply_add(-n, 1.9082149292705877e-10, multiply_add(-n, 0.6931471803691238, x));
    double sum = 1.0;
    for (int i = 14; i > 0; --i) sum = multiply_add(sum, r / i, 1.0);
    return scaled(sum, n);
}

// log(2^n m) with m in [sqrt(1/2), sqrt(2)): 2 atanh((m - 1) / (m + 1)) by 12 terms. For x > 0 and normal.
GEMMTUNE_DEVICE double natural_log(double x) {
    const u64 bits = as_bits(x);
    int n = static_cast<int>(bits >> 52) - 1023;
    double m = as_double((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) m *= 0.5, ++n;
    const double s = (m - 1) / (m + 1), square = s * s;
    double sum = 0;
    for (int i = 23; i > 0; i -= 2) sum = multiply_add(sum, square, 1.0 / i);
    return multiply_add(n, 1.9082149292705877e-10, multiply_add(n, 0.6931471803691238, 2 * s * sum));
}

GEMMTUNE_DEVICE double tangent_h(double x) {
    const double size = absolute(x);
    if (size < 0.25) {  // (e^2x - 1) would cancel: the series of sinh and cosh instead
        const double square = x * x;
        double sinh = 1, cosh = 1;
        for (int i = 16; i > 0; i -= 2) {
            sinh = multiply_add(sinh, square / (i * (i + 1)), 1.0);
            cosh = multiply_add(cosh, square / (i * (i - 1)), 1.0);
        }
        return x * sinh / cosh;
    }
    const double found = 1 - 2 / (exponential_of(2 * size) + 1);
    return x < 0 ? -found : x == x ? found : x;
}

// cos(pi x) for 0 <= x <= 2^31, by 12 terms of the cosine's or the sine's series within pi / 4.
GEMMTUNE_DEVICE double cosine_pi(double x) {
    const i64 quarter = static_cast<i64>(2 * x + 0.5);
    const double r = (x - 0.5 * static_cast<double>(quarter)) * 3.141592653589793, square = r * r;
    double cosine = 1, sine = 1;
    for (int i = 22; i > 0; i -= 2) {
        cosine = multiply_add(cosine, -square / (i * (i - 1)), 1.0);
        sine = multiply_add(sine, -square / (i * (i + 1)), 1.0);
    }
    sine *= r;
    const int turn = static_cast<int>(quarter & 3);
    return turn == 0 ? cosine : turn == 1 ? -sine : turn == 2 ? -cosine : sine;
}

GEMMTUNE_DEVICE float natural_log(float x) { return static_cast<float>(natural_log(static_cast<double>(x))); }
GEMMTUNE_DEVICE float square_root(float x) { return static_cast<float>(square_root(static_cast<double>(x))); }
GEMMTUNE_DEVICE float cosine_pi(float x) { return static_cast<float>(cosine_pi(static_cast<double>(x))); }
GEMMTUNE_DEVICE float rounded_up(double x) {
    const float out = static_cast<float>(x);
    if (!(static_cast<double>(out) < x)) return out;
    const unsigned bits = as_unsigned(out);
    return as_float(out >= 0 ? bits + 1 : bits - 1);
}
GEMMTUNE_DEVICE unsigned funnel(unsigned low, unsigned high, unsigned bits) {
    return static_cast<unsigned>((static_cast<u64>(high) << 32 | low) >> bits);
}
#endif

// For blocks of THREADS threads: the index at which a thread starts a grid-stride loop over all items, and the
// stride.
template <int THREADS>
GEMMTUNE_DEVICE i64 first_index() { return static_cast<i64>(block_x()) * THREADS + thread_index(); }
template <int THREADS>
GEMMTUNE_DEVICE i64 all_threads() { return static_cast<i64>(grid_x()) * THREADS; }

}  // namespace gemmtune
