// The number formats of operands: fp32, fp16 and bf16. Arithmetic is in fp32; a result is rounded once, to
// nearest even, when it is stored.
#pragma once

#include "device/portable.h"

namespace gemmtune {

struct Half {
    unsigned short bits;
};
struct Bf16 {
    unsigned short bits;
};

GEMMTUNE_DEVICE float widen(float value) { return value; }
GEMMTUNE_DEVICE float widen(Half value) { return half_to_float(value.bits); }
GEMMTUNE_DEVICE float widen(Bf16 value) { return as_float(static_cast<unsigned>(value.bits) << 16); }

template <typename T>
GEMMTUNE_DEVICE T narrow(float value);
template <>
GEMMTUNE_DEVICE float narrow<float>(float value) {
    return value;
}
template <>
GEMMTUNE_DEVICE Half narrow<Half>(float value) {
    return {float_to_half(value)};
}
template <>
GEMMTUNE_DEVICE Bf16 narrow<Bf16>(float value) {
    return {float_to_bf16(value)};
}

// Elements in 16 bytes.
template <typename T>
constexpr int kChunk = 16 / static_cast<int>(sizeof(T));

// The elements of one 32-bit word, widened to fp32: one fp32, or two 16-bit elements (the lower half first).
template <typename T>
struct Word;
template <>
struct Word<float> {
    static constexpr int kElements = 1;
    static GEMMTUNE_DEVICE void unpack(unsigned word, float* out) { out[0] = as_float(word); }
    static GEMMTUNE_DEVICE unsigned pack(const float* in) { return as_unsigned(in[0]); }
};
template <>
struct Word<Half> {
    static constexpr int kElements = 2;
    static GEMMTUNE_DEVICE void unpack(unsigned word, float* out) {
        out[0] = half_to_float(static_cast<unsigned short>(word));
        out[1] = half_to_float(static_cast<unsigned short>(word >> 16));
    }
    static GEMMTUNE_DEVICE unsigned pack(const Half* in) {
        return in[0].bits | static_cast<unsigned>(in[1].bits) << 16;
    }
};
template <>
struct Word<Bf16> {
    static constexpr int kElements = 2;
    static GEMMTUNE_DEVICE void unpack(unsigned word, float* out) {
        out[0] = as_float(word << 16);
        out[1] = as_float(word & 0xffff0000u);
    }
    static GEMMTUNE_DEVICE unsigned pack(const Bf16* in) {
        return in[0].bits | static_cast<unsigned>(in[1].bits) << 16;
    }
};

// Widens the elements of WORDS words.
template <typename T, int WORDS>
GEMMTUNE_DEVICE void unpack(const unsigned (&words)[WORDS], float* out) {
    GEMMTUNE_UNROLL
    for (int i = 0; i < WORDS; ++i) Word<T>::unpack(words[i], out + i * Word<T>::kElements);
}

}  // namespace gemmtune
