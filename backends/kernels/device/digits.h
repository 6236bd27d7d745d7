// Floats as whole numbers of a unit, and these as three digits of base 256 between -128 and 127, the *slices* that
// instructions for int8 multiply.
//
// A float less than 2^22 that is added to kOfOnes counts in ones: its bits, less kOnes, are the whole number. So the
// bits of the sum are the number's digits, once 128 are added to each lower one, which also rounds the next.
//
//   Digits::cut(x, up, out)   eight numbers times `up`, less than 2^21 each, as digits, the highest first: of each
//                             those that the low halves of a word's bytes multiply (packed_weights.h), and high ones
#pragma once

#include "device/packed_weights.h"

namespace gemmtune {

struct Digits {
    static constexpr int kCount = 3;
    static constexpr unsigned kOnes = 0x4b400000u;
    static constexpr float kOfOnes = 12582912.0f;

    static GEMMTUNE_DEVICE void cut(const float (&x)[8], float up, unsigned (&out)[kCount][2]) {
        constexpr float kHalves = 32896.0f;  // 128 of both lower digits
        unsigned whole[8];
        GEMMTUNE_UNROLL
        for (int i = 0; i < 8; ++i) whole[i] = as_unsigned(x[i] * up + (kOfOnes + kHalves));
        digits<2>(whole, out[0]), digits<1>(whole, out[1]), digits<0>(whole, out[2]);
        GEMMTUNE_UNROLL
        for (int half = 0; half < 2; ++half) {
            // The highest digit is a signed number of seven bits, less its sign bit, beside a bit of the exponent.
            const unsigned seven = out[0][half] ^ 0x40404040u;
            out[0][half] = seven | (seven << 1 & 0x80808080u);
            out[1][half] ^= 0x80808080u, out[2][half] ^= 0x80808080u;
        }
    }

private:
    // Byte BYTE of eight words, in the order of a word's integers (packed_weights.h).
    template <unsigned BYTE>
    static GEMMTUNE_DEVICE void digits(const unsigned (&whole)[8], unsigned (&out)[2]) {
        constexpr unsigned kBoth = BYTE | (BYTE + 4) << 4;
        GEMMTUNE_UNROLL
        for (int half = 0; half < 2; ++half) {
            const unsigned(&w)[8] = whole;
            const unsigned even = permuted<kBoth>(w[half * 2], w[half * 2 + 4]);
            const unsigned odd = permuted<kBoth>(w[half * 2 + 1], w[half * 2 + 5]);
            out[half] = permuted<0x5410>(even, odd);
        }
    }
};

}  // namespace gemmtune
