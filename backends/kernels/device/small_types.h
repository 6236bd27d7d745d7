// Number formats beside types.h's: 8-bit floats, 8-bit and 32-bit integers.
//
//   E4m3, E5m2            OCP "8-bit Floating Point Specification": e4m3 has one NaN (all ones) and no
//                         infinity; e5m2 has IEEE's infinities and NaNs
//   E4m3Fnuz, E5m2Fnuz    the exponent's bias is one more; no infinity and no negative zero, whose bits are
//                         the only NaN (AMD CDNA3 ISA guide)
//
// Floats are rounded to nearest, ties to even. A float beyond the range becomes infinity, or NaN in a format
// without infinities. Integers are rounded to nearest, ties to even, and saturate.
#pragma once

#include "device/types.h"

namespace gemmtune {

struct Int8 {
    signed char value;
};
struct Int32 {
    int value;
};
template <int EXPONENT, bool FNUZ>
struct Float8 {
    static constexpr int kMantissa = 7 - EXPONENT, kBias = (1 << (EXPONENT - 1)) - 1 + FNUZ;
    static constexpr bool kInfinite = EXPONENT == 5 && !FNUZ;
    unsigned char bits;
};
using E4m3 = Float8<4, false>;
using E5m2 = Float8<5, false>;
using E4m3Fnuz = Float8<4, true>;
using E5m2Fnuz = Float8<5, true>;

GEMMTUNE_DEVICE float widen(Int8 value) { return static_cast<float>(value.value); }
GEMMTUNE_DEVICE float widen(Int32 value) { return static_cast<float>(value.value); }

template <int EXPONENT, bool FNUZ>
GEMMTUNE_DEVICE float widen(Float8<EXPONENT, FNUZ> value) {
    using T = Float8<EXPONENT, FNUZ>;
    constexpr unsigned kMantissas = (1u << T::kMantissa) - 1, kExponents = (1u << EXPONENT) - 1;
    const unsigned sign = static_cast<unsigned>(value.bits >> 7) << 31, magnitude = value.bits & 0x7fu;
    const unsigned exponent = magnitude >> T::kMantissa, mantissa = magnitude & kMantissas;
    const bool nan = FNUZ ? value.bits == 0x80 : T::kInfinite ? exponent == kExponents && mantissa != 0
                                                              : magnitude == 0x7f;
    if (nan) return as_float(0x7fc00000u);
    if (T::kInfinite && exponent == kExponents) return as_float(sign | 0x7f800000u);
    // A subnormal is its mantissa times a power of two, exactly.
    const float least = as_float(static_cast<unsigned>(127 + 1 - T::kBias - T::kMantissa) << 23);
    if (exponent == 0) return as_float(sign | as_unsigned(static_cast<float>(mantissa) * least));
    return as_float(sign | (exponent + (127 - T::kBias)) << 23 | mantissa << (23 - T::kMantissa));
}

template <typename T>
GEMMTUNE_DEVICE T narrow_float8(float value) {
    constexpr int kExponent = 7 - T::kMantissa;
    // The first magnitude that is no finite number, and what a value beyond the range becomes.
    constexpr bool kFnuz = T::kBias == 1 << (kExponent - 1);
    constexpr unsigned kTop = kFnuz ? 0x80u : T::kInfinite ? 0x7cu : 0x7fu, kNan = kFnuz ? 0x80u : 0x7fu;
    const unsigned bits = as_unsigned(value), sign = bits >> 31 << 7, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return {static_cast<unsigned char>(kNan)};
    if (size == 0x7f800000u) return {static_cast<unsigned char>(kFnuz ? kTop : sign | kTop)};
    const int exponent = static_cast<int>(size >> 23) - 127 + T::kBias;
    // A subnormal result shifts its significand further; below half of the least number all is zero.
    const int shift = 23 - T::kMantissa + (exponent >= 1 ? 0 : 1 - exponent);
    unsigned magnitude = 0;
    if (shift <= 24) {
        unsigned significand = exponent >= 1 ? static_cast<unsigned>(exponent) << 23 | (size & 0x7fffffu)
                                             : (size & 0x7fffffu) | 0x800000u;
        significand += (1u << (shift - 1)) - 1 + (significand >> shift & 1);
        magnitude = significand >> shift;  // a carry moves into the exponent
    }
    if (magnitude >= kTop) return {static_cast<unsigned char>(kFnuz ? kTop : sign | kTop)};
    return {static_cast<unsigned char>(kFnuz && magnitude == 0 ? 0 : sign | magnitude)};
}
template <>
GEMMTUNE_DEVICE E4m3 narrow<E4m3>(float value) { return narrow_float8<E4m3>(value); }
template <>
GEMMTUNE_DEVICE E5m2 narrow<E5m2>(float value) { return narrow_float8<E5m2>(value); }
template <>
GEMMTUNE_DEVICE E4m3Fnuz narrow<E4m3Fnuz>(float value) { return narrow_float8<E4m3Fnuz>(value); }
template <>
GEMMTUNE_DEVICE E5m2Fnuz narrow<E5m2Fnuz>(float value) { return narrow_float8<E5m2Fnuz>(value); }

// 2147483648 is the least float beyond an int's range.
template <>
GEMMTUNE_DEVICE Int32 narrow<Int32>(float value) {
    if (value >= 2147483648.0f) return {0x7fffffff};
    if (value < -2147483648.0f) return {-0x7fffffff - 1};
    return {static_cast<int>(GEMMTUNE_NEAREST(value))};
}
template <>
GEMMTUNE_DEVICE Int8 narrow<Int8>(float value) {
    value = value > 127.0f ? 127.0f : value;
    value = value < -128.0f ? -128.0f : value;
    return {static_cast<signed char>(static_cast<int>(GEMMTUNE_NEAREST(value)))};
}

// Whole numbers, saturated.
template <typename T>
GEMMTUNE_DEVICE T saturate(i64 value);
template <>
GEMMTUNE_DEVICE Int32 saturate<Int32>(i64 value) {
    value = value > 0x7fffffff ? 0x7fffffff : value;
    value = value < -0x7fffffff - 1 ? -0x7fffffff - 1 : value;
    return {static_cast<int>(value)};
}
template <>
GEMMTUNE_DEVICE Int8 saturate<Int8>(i64 value) {
    value = value > 127 ? 127 : value;
    value = value < -128 ? -128 : value;
    return {static_cast<signed char>(value)};
}

// Whether a type is an integer.
template <typename T>
constexpr bool kInteger = false;
template <>
constexpr bool kInteger<Int8> = true;
template <>
constexpr bool kInteger<Int32> = true;

// The type that products of two elements are added in.
template <typename T>
struct SumOf {
    using Type = float;
};
template <>
struct SumOf<Int8> {
    using Type = int;
};

// The bits of an element.
GEMMTUNE_DEVICE unsigned bits_of(float value) { return as_unsigned(value); }
GEMMTUNE_DEVICE unsigned bits_of(Half value) { return value.bits; }
GEMMTUNE_DEVICE unsigned bits_of(Bf16 value) { return value.bits; }
GEMMTUNE_DEVICE unsigned bits_of(Int8 value) { return static_cast<unsigned char>(value.value); }
GEMMTUNE_DEVICE unsigned bits_of(Int32 value) { return static_cast<unsigned>(value.value); }
template <int EXPONENT, bool FNUZ>
GEMMTUNE_DEVICE unsigned bits_of(Float8<EXPONENT, FNUZ> value) { return value.bits; }

}  // namespace gemmtune
