// Quantised weights in registers as pairs of 16-bit floats for AMD's matrix instructions: eight at a time, in the order
// in which one mask selects those of 4 bits: (0, 4), (1, 5), (2, 6), (3, 7). paired() orders activations alike.
//
// An integer becomes a float by placing its bits in the mantissa of a power of two whose last bit is worth one
// (dequantise.h). fp16 subtracts the power with the zero point by one packed addition. Most AMD GPUs have no such
// instruction for bf16: the power stays, and is subtracted from sums (weight_tile.h). bf16's mantissa has no room for
// eight bits beside a power: a byte is converted to fp32, of which the upper half is all.
//
// A 4-bit float (e2m1) has eight magnitudes. v_perm_b32 looks up their bytes in two registers, four at a time. No
// weight is subnormal: gfx90a's matrix instructions would take it as zero.
#pragma once

#include "device/dequantise.h"
#include "device/matrix_core.h"

namespace gemmtune {

#if defined(GEMMTUNE_HOST)
inline unsigned add_halves(unsigned a, unsigned b) { return fma_pair<Half>(a, PairBits<Half>::kOne, b); }
#else
typedef _Float16 Half2 __attribute__((ext_vector_type(2)));
GEMMTUNE_DEVICE unsigned add_halves(unsigned a, unsigned b) {
    return __builtin_bit_cast(unsigned, __builtin_bit_cast(Half2, a) + __builtin_bit_cast(Half2, b));
}
#endif

// Eight activations of T, or any eight 16-bit elements, in the order of weights.
GEMMTUNE_DEVICE void paired(const unsigned (&x)[4], Words& out) {
    constexpr unsigned kLow = 0x05040100, kHigh = 0x07060302;  // halves of two words
    GEMMTUNE_UNROLL
    for (int i = 0; i < 2; ++i) {
        out.at[2 * i] = permute_bytes(x[i + 2], x[i], kLow);
        out.at[2 * i + 1] = permute_bytes(x[i + 2], x[i], kHigh);
    }
}

// What T's integers hold beside themselves: a power of two, whose bits these are. kLeft: what is left to subtract from
// their sums.
template <typename T>
struct PowerOf;
template <>
struct PowerOf<Bf16> {
    static constexpr unsigned kBits = 0x43004300u;  // 128
    static constexpr float kLeft = 128.0f;
};
template <>
struct PowerOf<Half> {
    static constexpr unsigned kBits = 0x64006400u;  // 1024
    static constexpr float kLeft = 0.0f;
};

// The bytes of e2m1's magnitudes in T: the upper ones and the lower ones, of the first four and of the last four.
template <typename T>
struct MagnitudesOf;
template <>
struct MagnitudesOf<Bf16> {
    static constexpr unsigned kUpper[2] = {0x3f3f3f00u, 0x40404040u}, kLower[2] = {0xc0800000u, 0xc0804000u};
};
template <>
struct MagnitudesOf<Half> {
    static constexpr unsigned kUpper[2] = {0x3e3c3800u, 0x46444240u};  // the lower ones are zero
};

// The power of two that stays in bf16's integers.
template <typename T, typename QUANT>
constexpr float kLeft = QUANT::kBits == 4 ? PowerOf<T>::kLeft : 0.0f;

// The eight weights of a word of 4-bit ones. Integers are minus the whole zero point `zero` in fp16; in bf16 they are
// themselves plus PowerOf::kLeft. Signed ones are larger by kConstantZero, which is part of `zero`.
template <typename T, typename QUANT>
GEMMTUNE_DEVICE void paired_weights(unsigned word, unsigned zero, unsigned (&out)[4]) {
    if constexpr (QUANT::kFloat) {
        using Of = MagnitudesOf<T>;
        constexpr unsigned kSigns = 0x80808080u, kCodes = 0x07070707u;
        constexpr unsigned kFirst = 0x06020400, kSecond = 0x07030501;  // bytes 0 and 2 of two words, bytes 1 and 3
        const unsigned codes[2] = {word & kCodes, word >> 4 & kCodes}, signs[2] = {word << 4 & kSigns, word & kSigns};
        GEMMTUNE_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
            const unsigned upper = permute_bytes(Of::kUpper[1], Of::kUpper[0], codes[odd]) | signs[odd];
            unsigned lower = 0;
            if constexpr (kSame<T, Bf16>) lower = permute_bytes(Of::kLower[1], Of::kLower[0], codes[odd]);
            out[odd] = permute_bytes(upper, lower, kFirst);
            out[2 + odd] = permute_bytes(upper, lower, kSecond);
        }
    } else {
        const unsigned raised = QUANT::kSigned ? word ^ 0x88888888u : word;
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) {
            out[i] = (raised >> 4 * i & 0x000f000fu) | PowerOf<T>::kBits;
            if constexpr (kSame<T, Half>) out[i] = add_halves(out[i], both(0xe400u + zero));
        }
    }
}

// The eight 8-bit integers of two words: themselves in fp16; in bf16 larger by kConstantZero.
template <typename T>
GEMMTUNE_DEVICE void paired_bytes(unsigned low, unsigned high, unsigned (&out)[4]) {
    const unsigned first = low ^ 0x80808080u, second = high ^ 0x80808080u;
    GEMMTUNE_UNROLL
    for (int i = 0; i < 4; ++i) {
        if constexpr (kSame<T, Half>) {
            const unsigned pair = permute_bytes(second, first, 0x04040000u + 0x01010101u * static_cast<unsigned>(i));
            out[i] = add_halves((pair & 0x00ff00ffu) | PowerOf<Half>::kBits, both(0xe480u));  // 1024 + 128
        } else {
            const float lower = static_cast<float>(first >> 8 * i & 0xffu);
            const float upper = static_cast<float>(second >> 8 * i & 0xffu);
            out[i] = permute_bytes(as_unsigned(upper), as_unsigned(lower), 0x07060302);  // the upper halves
        }
    }
}

}  // namespace gemmtune
