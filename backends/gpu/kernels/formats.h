// Number formats of GEMM operands in our own bit arithmetic: independent of vendor headers and vendor rounding.
#pragma once

#include "words.h"

namespace gemmtune {

// backends/gpu/device_reference.py:CODES
enum Format {
    FP64 = 0, FP32 = 1, FP16 = 2, BF16 = 3, E4M3 = 4, E5M2 = 5, INT8 = 6, INT32 = 7, E4M3_FNUZ = 8, E5M2_FNUZ = 9,
    INT4 = 10, UINT4 = 11, E2M1 = 12,  // two to a byte, the even index in the low half
    E8M0 = 13                          // OCP's scales: powers of two, without a sign; 255 is NaN
};

// 2**power as a float, for -126 <= power <= 127.
GEMMTUNE_DEVICE float power_of_two(int power) { return as_float(unsigned(power + 127) << 23); }

// Widens a float of EXPONENT and MANTISSA bits, with IEEE's infinities and NaNs (INFINITE) or, as in e4m3fn,
// without infinities and with all ones as the only NaN.
template <int EXPONENT, int MANTISSA, bool INFINITE>
GEMMTUNE_DEVICE float widen_bits(unsigned bits) {
    const int bias = (1 << (EXPONENT - 1)) - 1;
    const unsigned exponents = (1u << EXPONENT) - 1, mantissas = (1u << MANTISSA) - 1;
    unsigned sign = (bits >> (EXPONENT + MANTISSA)) << 31;
    unsigned exponent = (bits >> MANTISSA) & exponents, mantissa = bits & mantissas;
    if (exponent == 0) {  // subnormal: an exact product of floats
        float value = float(int(mantissa)) * power_of_two(1 - bias - MANTISSA);
        return as_float(sign | as_unsigned(value));
    }
    if (exponent == exponents && (INFINITE || mantissa == mantissas))
        return as_float(sign | 0x7f800000u | (INFINITE ? mantissa << (23 - MANTISSA) : 0x400000u));
    return as_float(sign | (exponent - bias + 127) << 23 | mantissa << (23 - MANTISSA));
}

// Widens a float without infinity and NaN: every exponent is a number's.
template <int EXPONENT, int MANTISSA>
GEMMTUNE_DEVICE float widen_finite(unsigned bits) {
    const int bias = (1 << (EXPONENT - 1)) - 1;
    const unsigned mantissas = (1u << MANTISSA) - 1;
    unsigned sign = (bits >> (EXPONENT + MANTISSA)) << 31;
    unsigned exponent = (bits >> MANTISSA) & ((1u << EXPONENT) - 1), mantissa = bits & mantissas;
    if (exponent == 0) return as_float(sign | as_unsigned(float(int(mantissa)) * power_of_two(1 - bias - MANTISSA)));
    return as_float(sign | (exponent - bias + 127) << 23 | mantissa << (23 - MANTISSA));
}

// The inverse, rounded once, to nearest even; values that are too large become infinity, or NaN if there is
// none.
template <int EXPONENT, int MANTISSA, bool INFINITE>
GEMMTUNE_DEVICE unsigned narrow_bits(float value) {
    const int bias = (1 << (EXPONENT - 1)) - 1, all = EXPONENT + MANTISSA;
    const unsigned top = INFINITE ? ((1u << EXPONENT) - 1) << MANTISSA : (1u << all) - 1;
    unsigned bits = as_unsigned(value), sign = (bits >> 31) << all, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | (INFINITE ? top | 1u << (MANTISSA - 1) : top);
    if (size == 0x7f800000u) return sign | top;
    int exponent = int(size >> 23) - 127 + bias, shift = 23 - MANTISSA;
    unsigned significand;
    if (exponent >= 1) {
        significand = unsigned(exponent) << 23 | (size & 0x7fffffu);
    } else {  // subnormal in this format; a float's own subnormals are below half of its smallest
        shift += 1 - exponent;
        if (shift > 25) return sign;
        significand = (size & 0x7fffffu) | 0x800000u;
    }
    significand += (1u << (shift - 1)) - 1 + (significand >> shift & 1);
    unsigned rounded = significand >> shift;  // a carry correctly moves into the exponent
    return sign | (rounded < top ? rounded : top);
}

// The FNUZ formats (finite, no negative zero: AMD's CDNA 3): the exponent's bias is one more, every exponent is
// a number's, and the pattern of a negative zero is the only NaN.
template <int EXPONENT, int MANTISSA>
GEMMTUNE_DEVICE float widen_fnuz(unsigned bits) {
    const int bias = 1 << (EXPONENT - 1);
    unsigned sign = (bits >> (EXPONENT + MANTISSA)) << 31;
    unsigned exponent = (bits >> MANTISSA) & ((1u << EXPONENT) - 1), mantissa = bits & ((1u << MANTISSA) - 1);
    if (bits == 1u << (EXPONENT + MANTISSA)) return as_float(0x7fc00000u);
    if (exponent == 0) return as_float(sign | as_unsigned(float(int(mantissa)) * power_of_two(1 - bias - MANTISSA)));
    return as_float(sign | (exponent - bias + 127) << 23 | mantissa << (23 - MANTISSA));
}

// The inverse, rounded once, to nearest even; values that are too large become NaN, and negative ones that
// round to zero become zero.
template <int EXPONENT, int MANTISSA>
GEMMTUNE_DEVICE unsigned narrow_fnuz(float value) {
    const int bias = 1 << (EXPONENT - 1), all = EXPONENT + MANTISSA;
    const unsigned nan = 1u << all;
    unsigned bits = as_unsigned(value), sign = (bits >> 31) << all, size = bits & 0x7fffffffu;
    if (size >= 0x7f800000u) return nan;
    int exponent = int(size >> 23) - 127 + bias, shift = 23 - MANTISSA;
    unsigned significand;
    if (exponent >= 1) {
        significand = unsigned(exponent) << 23 | (size & 0x7fffffu);
    } else {  // subnormal in this format
        shift += 1 - exponent;
        if (shift > 25) return 0;
        significand = (size & 0x7fffffu) | 0x800000u;
    }
    significand += (1u << (shift - 1)) - 1 + (significand >> shift & 1);
    unsigned rounded = significand >> shift;
    return rounded == 0 ? 0 : rounded < nan ? sign | rounded : nan;
}

GEMMTUNE_DEVICE unsigned narrow_bf16(float value) {
    unsigned bits = as_unsigned(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

GEMMTUNE_DEVICE int load_nibble(const void* base, i64 index) {
    return static_cast<const unsigned char*>(base)[index >> 1] >> (index & 1) * 4 & 15;
}

// 2^(bits - 127). A float has no normal 2^-127.
GEMMTUNE_DEVICE double widen_e8m0(unsigned bits) {
    if (bits == 255) return as_float(0x7fc00000u);
    return bits == 0 ? as_float(0x00400000u) : power_of_two(int(bits) - 127);
}

template <int FORMAT>
GEMMTUNE_DEVICE double load(const void* base, i64 index) {
    switch (FORMAT) {
        case FP64: return static_cast<const double*>(base)[index];
        case FP32: return static_cast<const float*>(base)[index];
        case FP16: return widen_bits<5, 10, true>(static_cast<const unsigned short*>(base)[index]);
        case BF16: return as_float(unsigned(static_cast<const unsigned short*>(base)[index]) << 16);
        case E4M3: return widen_bits<4, 3, false>(static_cast<const unsigned char*>(base)[index]);
        case E5M2: return widen_bits<5, 2, true>(static_cast<const unsigned char*>(base)[index]);
        case E4M3_FNUZ: return widen_fnuz<4, 3>(static_cast<const unsigned char*>(base)[index]);
        case E5M2_FNUZ: return widen_fnuz<5, 2>(static_cast<const unsigned char*>(base)[index]);
        case INT8: return static_cast<const signed char*>(base)[index];
        case INT4: return (load_nibble(base, index) ^ 8) - 8;
        case UINT4: return load_nibble(base, index);
        case E2M1: return widen_finite<2, 1>(unsigned(load_nibble(base, index)));
        case E8M0: return widen_e8m0(static_cast<const unsigned char*>(base)[index]);
        default: return static_cast<const int*>(base)[index];
    }
}

GEMMTUNE_DEVICE double load(int format, const void* base, i64 index) {
    switch (format) {
        case FP64: return load<FP64>(base, index);
        case FP32: return load<FP32>(base, index);
        case FP16: return load<FP16>(base, index);
        case BF16: return load<BF16>(base, index);
        case E4M3: return load<E4M3>(base, index);
        case E5M2: return load<E5M2>(base, index);
        case E4M3_FNUZ: return load<E4M3_FNUZ>(base, index);
        case E5M2_FNUZ: return load<E5M2_FNUZ>(base, index);
        case INT8: return load<INT8>(base, index);
        case INT4: return load<INT4>(base, index);
        case UINT4: return load<UINT4>(base, index);
        case E2M1: return load<E2M1>(base, index);
        case E8M0: return load<E8M0>(base, index);
        default: return load<INT32>(base, index);
    }
}

// For the integer formats `value` must be whole and in range.
GEMMTUNE_DEVICE void store(int format, void* base, i64 index, float value) {
    switch (format) {
        case FP64: static_cast<double*>(base)[index] = value; break;
        case FP32: static_cast<float*>(base)[index] = value; break;
        case FP16: static_cast<unsigned short*>(base)[index] = narrow_bits<5, 10, true>(value); break;
        case BF16: static_cast<unsigned short*>(base)[index] = narrow_bf16(value); break;
        case E4M3: static_cast<unsigned char*>(base)[index] = narrow_bits<4, 3, false>(value); break;
        case E5M2: static_cast<unsigned char*>(base)[index] = narrow_bits<5, 2, true>(value); break;
        case E4M3_FNUZ: static_cast<unsigned char*>(base)[index] = narrow_fnuz<4, 3>(value); break;
        case E5M2_FNUZ: static_cast<unsigned char*>(base)[index] = narrow_fnuz<5, 2>(value); break;
        case INT8: static_cast<signed char*>(base)[index] = int(value); break;
        case INT4: case UINT4: case E2M1:  // two of them
            static_cast<unsigned char*>(base)[index] = int(value);
            break;
        case E8M0: static_cast<unsigned char*>(base)[index] = as_unsigned(value) >> 23; break;  // a power of two
        default: static_cast<int*>(base)[index] = int(value); break;
    }
}

GEMMTUNE_DEVICE void store_bytes(int format, void* base, i64 index, unsigned value) {
    u64 word = value * 0x0101010101010101ull;
    switch (format) {
        case FP64: static_cast<u64*>(base)[index] = word; break;
        case FP32: case INT32: static_cast<unsigned*>(base)[index] = unsigned(word); break;
        case FP16: case BF16: static_cast<unsigned short*>(base)[index] = word; break;
        default: static_cast<unsigned char*>(base)[index] = word; break;
    }
}

}  // namespace gemmtune
