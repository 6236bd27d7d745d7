// Quantised weights in registers: how they are stored (oriented_weights.py), and their conversion to pairs of
// 16-bit floats for tensor cores.
//
// An integer becomes a float by placing its bits in the mantissa of a power of two whose last bits are worth
// one: bf16 128 + q for q < 128, fp16 1024 + q for q < 1024. One subtraction, which is exact, removes the power
// and the zero point together. Masks that leave the low bits of both halves of a word convert two integers at
// once, which are not neighbours: a word of 4-bit integers gives (0, 4), (1, 5), (2, 6), (3, 7), two words of
// 8-bit ones (0, 2), (1, 3), (4, 6), (5, 7). paired() orders activations alike.
#pragma once

#include "device/args.h"

namespace gemmtune {

// backends/quantisation.py: ZEROS. kWords: 4-bit zero points, those of eight rows in a word.
enum Zero { kNoZero = 0, kEight = 1, kWords = 2, kSubtracted = 3, kAdded = 4 };

// BITS of an integer; whether it is signed; its zero point; elements of k that share a scale, 0 for a whole row;
// the type of scales and of floating-point zero points.
template <int BITS, bool SIGNED, Zero ZERO, int GROUP, typename SCALE>
struct Quantised {
    static_assert(BITS == 4 || BITS == 8, "4-bit and 8-bit integers");
    static_assert(!SIGNED || ZERO == kNoZero, "signed integers have no zero point");
    static_assert(BITS == 4 || SIGNED, "8-bit integers are signed");
    static_assert(GROUP == 0 || GROUP == 32 || GROUP == 64 || GROUP == 128, "groups");
    using Scale = SCALE;
    static constexpr int kBits = BITS, kGroup = GROUP;
    static constexpr bool kSigned = SIGNED;
    static constexpr Zero kZero = ZERO;
    static constexpr bool kStoredZeros = ZERO == kWords || ZERO == kSubtracted || ZERO == kAdded;
    static constexpr int kWide = 128 / BITS;  // integers in 16 bytes
};

// The argument of the families for quantised weights. `scale_row`: scales from a row to the next; 0 for a single
// scale. Bytes: of all scales and zero points.
struct WeightArgs {
    GemmArgs gemm;
    const void *scales, *zeros;
    i64 scale_row, scale_bytes, zero_bytes;
};

// a b + c of two pairs, each rounded once.
#if defined(GEMMTUNE_HOST)
template <typename T>
inline unsigned fma_pair(unsigned a, unsigned b, unsigned c) {
    float x[2], y[2], z[2];
    Word<T>::unpack(a, x), Word<T>::unpack(b, y), Word<T>::unpack(c, z);
    const T out[2] = {narrow<T>(__builtin_fmaf(x[0], y[0], z[0])), narrow<T>(__builtin_fmaf(x[1], y[1], z[1]))};
    return Word<T>::pack(out);
}
inline unsigned interleave_low(unsigned a, unsigned b) { return (a & 0xffffu) | b << 16; }
inline unsigned interleave_high(unsigned a, unsigned b) { return a >> 16 | (b & 0xffff0000u); }
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
template <typename T>
__device__ __forceinline__ unsigned fma_pair(unsigned a, unsigned b, unsigned c);
template <>
__device__ __forceinline__ unsigned fma_pair<Half>(unsigned a, unsigned b, unsigned c) {
    unsigned out;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}
template <>
__device__ __forceinline__ unsigned fma_pair<Bf16>(unsigned a, unsigned b, unsigned c) {
    unsigned out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}
// The lower (upper) halves of two words.
__device__ __forceinline__ unsigned interleave_low(unsigned a, unsigned b) { return __byte_perm(a, b, 0x5410); }
__device__ __forceinline__ unsigned interleave_high(unsigned a, unsigned b) { return __byte_perm(a, b, 0x7632); }
#endif

#if !defined(__HIP__) && !defined(__HIPCC_RTC__)
GEMMTUNE_DEVICE unsigned both(unsigned half) { return half * 0x10001u; }

// Numbers of T in its own bits.
template <typename T>
struct PairBits;
template <>
struct PairBits<Bf16> {
    static constexpr unsigned kOne = 0x3f803f80u, kMinusZero = 0x80008000u;
};
template <>
struct PairBits<Half> {
    static constexpr unsigned kOne = 0x3c003c00u, kMinusZero = 0x80008000u;
};

// Eight activations in four words, in the order in which weights are converted.
template <int BITS>
GEMMTUNE_DEVICE void paired(const unsigned (&x)[4], unsigned (&out)[4]) {
    constexpr int kFar = BITS == 4 ? 2 : 1, kNext = BITS == 4 ? 1 : 2;
    GEMMTUNE_UNROLL
    for (int i = 0; i < 2; ++i) {
        out[2 * i] = interleave_low(x[i * kNext], x[i * kNext + kFar]);
        out[2 * i + 1] = interleave_high(x[i * kNext], x[i * kNext + kFar]);
    }
}

// What is subtracted from every converted integer but floating-point zero points.
template <typename QUANT>
constexpr unsigned kConstantZero = QUANT::kSigned ? 1u << (QUANT::kBits - 1)
                                   : QUANT::kZero == kEight || QUANT::kZero == kAdded ? 8u : 0u;

// Eight integers of a 16-byte load, those from 8 j on, minus the whole zero point `z`, as four pairs of T: exact.
// (8-bit integers have no zero point.)
template <typename T, int BITS>
struct Convert;

// The same integers with their power of two left, for sums from which it is subtracted later: bf16 of 4 bits.
constexpr float kPower = 128.0f;
template <bool SIGNED>
GEMMTUNE_DEVICE void lifted_pairs(const unsigned (&raw)[4], int j, unsigned (&out)[4]) {
    const unsigned word = SIGNED ? raw[j] ^ 0x88888888u : raw[j];
    GEMMTUNE_UNROLL
    for (int i = 0; i < 4; ++i) out[i] = (word >> 4 * i & 0x000f000fu) | 0x43004300u;
}

// Whether two types are one.
template <typename T, typename U>
constexpr bool kSame = false;
template <typename T>
constexpr bool kSame<T, T> = true;
template <>
struct Convert<Bf16, 4> {
    template <bool SIGNED>
    static GEMMTUNE_DEVICE void run(const unsigned (&raw)[4], int j, unsigned z, unsigned (&out)[4]) {
        const unsigned word = SIGNED ? raw[j] ^ 0x88888888u : raw[j], minus = both(0xc300u + z);
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i)
            out[i] = fma_pair<Bf16>((word >> 4 * i & 0x000f000fu) | 0x43004300u, PairBits<Bf16>::kOne, minus);
    }
};
template <>
struct Convert<Half, 4> {
    // The upper integer of a byte is left where it is: 1024 + 16 q, which an exact division by 16 turns into
    // 64 + q.
    template <bool SIGNED>
    static GEMMTUNE_DEVICE void run(const unsigned (&raw)[4], int j, unsigned z, unsigned (&out)[4]) {
        unsigned word = SIGNED ? raw[j] ^ 0x88888888u : raw[j];
        const unsigned low = both(0xe400u + z), high = both(0xd400u + (z << 4));
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; i += 2) {
            out[i] = fma_pair<Half>((word & 0x000f000fu) | 0x64006400u, PairBits<Half>::kOne, low);
            out[i + 1] = fma_pair<Half>((word & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, high);
            word >>= 8;
        }
    }
};
template <>
struct Convert<Bf16, 8> {
    // Seven bits of the mantissa hold the lower seven of an integer; its sign bit turns the subtracted 128 into
    // 256.
    template <bool SIGNED>
    static GEMMTUNE_DEVICE void run(const unsigned (&raw)[4], int j, unsigned, unsigned (&out)[4]) {
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) {
            const unsigned word = raw[2 * j + i / 2] >> i % 2 * 8;
            out[i] = fma_pair<Bf16>((word & 0x007f007fu) | 0x43004300u, PairBits<Bf16>::kOne,
                                    (word & 0x00800080u) | 0xc300c300u);
        }
    }
};
template <>
struct Convert<Half, 8> {
    template <bool SIGNED>
    static GEMMTUNE_DEVICE void run(const unsigned (&raw)[4], int j, unsigned, unsigned (&out)[4]) {
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) {
            const unsigned word = (raw[2 * j + i / 2] ^ 0x80808080u) >> i % 2 * 8;
            out[i] = fma_pair<Half>((word & 0x00ff00ffu) | 0x64006400u, PairBits<Half>::kOne, 0xe480e480u);
        }
    }
};
#endif

}  // namespace gemmtune
