// Quantised weights in registers: how they are stored (kernels/weights.py), and their conversion to pairs of
// 16-bit floats for tensor cores.
//
// An integer becomes a float by placing its bits in the mantissa of a power of two whose last bits are worth
// one: bf16 128 + q for q < 128, fp16 1024 + q for q < 1024. One subtraction, which is exact, removes the power
// and the zero point together. Where bf16's mantissa is too short, the bits alone are the number: q 2^-133 for
// q < 256, because bf16's first binade continues its subnormal numbers. A multiplication by 2^127 leaves q / 64.
//
// A 4-bit float (e2m1) becomes one of 16 bits by moving its sign, exponent and mantissa to where that has them. The
// other bias makes it smaller by a power of two, by which it is multiplied; its subnormal number 0.5 is subnormal
// there, too. That is exact, and so are sums that are multiplied by the group's scale, a power of two, in fp32. Weights
// are not: 6 times 2^127 is beyond bf16, and fp16 has five of the scales' eight bits of exponent.
//
// An 8-bit float (e4m3) is moved alike, with its subnormal numbers. Its NaN has the bits of 480, the next number beyond
// the largest, 448. A factor takes the one beyond the range of 16 bits and the other not, and zero times infinity is
// NaN.
//
// Both halves of a word are converted at once, in one of two orders. The order of memory, (0, 1), (2, 3), ..., takes
// a byte permutation a pair. A mask alone gives (0, 4), (1, 5), (2, 6), (3, 7) of eight 4-bit integers; paired()
// orders activations alike.
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
    static constexpr int kBits = BITS, kGroup = GROUP, kSide = 1;
    static constexpr bool kSigned = SIGNED;
    static constexpr Zero kZero = ZERO;
    static constexpr bool kStoredZeros = ZERO == kWords || ZERO == kSubtracted || ZERO == kAdded;
    static constexpr int kWide = 128 / BITS;  // integers in 16 bytes
    static constexpr bool kFloat = false, kFp8 = false;
};

// OCP's e4m3. Elements of k that share a scale, 0 for a whole row; rows of blocks that do; the type of scales.
template <int GROUP, int SIDE, typename SCALE>
struct Fp8Weights {
    static_assert(GROUP == 0 || GROUP == 32 || GROUP == 64 || GROUP == 128, "groups");
    static_assert(SIDE == 1 || (SIDE == 128 && GROUP == 128), "blocks are 128 x 128");
    using Scale = SCALE;
    static constexpr int kBits = 8, kGroup = GROUP, kSide = SIDE, kWide = 16;
    static constexpr Zero kZero = kNoZero;
    static constexpr bool kSigned = true, kStoredZeros = false, kFloat = false, kFp8 = true;
};

// OCP's e8m0, the type of MXFP4's scales: 2^(bits - 127), and NaN for 255.
struct E8m0 {
    unsigned char bits;
};
GEMMTUNE_DEVICE float widen(E8m0 value) {
    // The exponents of 2^-127 and of NaN have numbers of fp32 only with a bit of the mantissa.
    const unsigned bits = value.bits, more = bits - 1u >= 254u ? 0x00400000u : 0u;
    return as_float(bits << 23 | more);
}

// MXFP4: e2m1 in groups of 32. 16 bytes are a group.
struct Mxfp4 {
    using Scale = E8m0;
    static constexpr int kBits = 4, kGroup = 32, kSide = 1, kWide = 32;
    static constexpr Zero kZero = kNoZero;
    static constexpr bool kSigned = true, kStoredZeros = false, kFloat = true, kFp8 = false;
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
inline unsigned permuted_by(unsigned bytes, unsigned a, unsigned b) {
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned from = bytes >> 4 * i & 7u;
        out |= ((from < 4 ? a : b) >> from % 4 * 8 & 0xffu) << 8 * i;
    }
    return out;
}
template <unsigned BYTES>
inline unsigned permuted(unsigned a, unsigned b) { return permuted_by(BYTES, a, b); }
template <int PAIR>
inline unsigned sign_extended(unsigned word) {
    unsigned out = 0;
    for (int i = 0; i < 2; ++i)
        out |= (static_cast<unsigned>(static_cast<signed char>(word >> 8 * (2 * PAIR + i))) & 0xffffu) << 16 * i;
    return out;
}
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
// Four bytes of the eight of two words, `b` above `a`: digit i of BYTES is the number of byte i.
__device__ __forceinline__ unsigned permuted_by(unsigned bytes, unsigned a, unsigned b) {
    return __byte_perm(a, b, bytes);
}
template <unsigned BYTES>
__device__ __forceinline__ unsigned permuted(unsigned a, unsigned b) { return permuted_by(BYTES, a, b); }
// Bytes 2 PAIR and 2 PAIR + 1 of a word, each in half a word, whose upper byte repeats its sign.
template <int PAIR>
__device__ __forceinline__ unsigned sign_extended(unsigned word) {
    unsigned out;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(out) : "r"(word), "n"(PAIR == 0 ? 0x9180 : 0xb3a2));
    return out;
}
#endif

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

// What is subtracted from every converted integer but floating-point zero points.
template <typename QUANT>
constexpr unsigned kConstantZero = QUANT::kSigned ? 1u << (QUANT::kBits - 1)
                                   : QUANT::kZero == kEight || QUANT::kZero == kAdded ? 8u : 0u;

// Whether two types are one.
template <typename T, typename U>
constexpr bool kSame = false;
template <typename T>
constexpr bool kSame<T, T> = true;

// A constant in a register. Compilers would load it anew for every instruction that has a second constant, and see
// through opaque(). So the sign of a size, which is never negative, is added.
GEMMTUNE_DEVICE unsigned kept(unsigned bits, int size) { return bits + static_cast<unsigned>(size >> 31); }

#if !defined(__HIP__) && !defined(__HIPCC_RTC__)
// Eight activations in four words, in the order of 4-bit integers that a mask selects.
GEMMTUNE_DEVICE void paired(const unsigned (&x)[4], unsigned (&out)[4]) {
    GEMMTUNE_UNROLL
    for (int i = 0; i < 2; ++i) {
        out[2 * i] = permuted<0x5410>(x[i], x[i + 2]);
        out[2 * i + 1] = permuted<0x7632>(x[i], x[i + 2]);
    }
}

// What converted integers are smaller by than they are: a power of two, which their scale makes up for. Floats are not.
template <typename T>
constexpr float kShrunk = 1.0f;
template <>
constexpr float kShrunk<Bf16> = 64.0f;
template <typename T, typename QUANT>
constexpr float kShrunkOf = QUANT::kFloat || QUANT::kFp8 ? 1.0f : kShrunk<T>;

// A scale that multiplies weights, as pairs of T. One of fp32 beside fp8 is two numbers of bf16, of which the second is
// what the first leaves of it: both have 16 bits of a significand together, so that a weight, which is the sum of its
// products by them, is rounded once, but for 2^-8 of that rounding.
template <typename T, typename QUANT>
struct PairScale {
    static constexpr bool kSplit = QUANT::kFp8 && sizeof(typename QUANT::Scale) == 4 && kSame<T, Bf16>;
    unsigned first, rest;

    GEMMTUNE_DEVICE void set(float factor) {
        const T whole = narrow<T>(factor);
        first = both(whole.bits);
        if constexpr (kSplit) rest = both(narrow<T>(factor - widen(whole)).bits);
    }
    // A pair of weights by the scale, and what is added.
    GEMMTUNE_DEVICE unsigned times(unsigned weights, unsigned added) const {
        if constexpr (kSplit) added = fma_pair<T>(weights, rest, added);
        return fma_pair<T>(weights, first, added);
    }
};

// Eight 4-bit integers of a 16-byte load, those from 8 j on, as bf16 with their power of two left, for sums from which
// it is subtracted later: four pairs, in the order of paired(). The top bit of signed ones is inverted, which makes
// them unsigned and larger by kConstantZero.
constexpr float kPower = 128.0f;
constexpr unsigned kLiftedMask = 0x000f000fu;
template <bool SIGNED>
GEMMTUNE_DEVICE void lifted_pairs(const unsigned (&raw)[4], unsigned mask, int j, unsigned (&out)[4]) {
    GEMMTUNE_UNROLL
    for (int i = 0; i < 4; ++i) out[i] = (raw[j] >> 4 * i & mask) ^ (SIGNED ? 0x43084308u : 0x43004300u);
}

// Eight integers of a 16-byte load, those from 8 j on, minus the whole zero point `z` and divided by kShrunk, as four
// pairs of T in the order of memory: exact. (8-bit integers have no zero point.)
template <typename T, int BITS, bool FP8 = false>
struct Convert;
// Of a type of weights.
template <typename T, typename QUANT>
using ConvertOf = Convert<T, QUANT::kBits, QUANT::kFp8>;

constexpr unsigned kConvertMask = 0x00f0000fu;  // an integer stays where it is in its byte
// The four bytes of a word, each in both halves of a word of its own.
GEMMTUNE_DEVICE void bytes_of(unsigned word, unsigned (&out)[4]) {
    out[0] = permuted<0x4040>(word, 0), out[1] = permuted<0x4141>(word, 0);
    out[2] = permuted<0x4242>(word, 0), out[3] = permuted<0x4343>(word, 0);
}
template <>
struct Convert<Bf16, 4> {
    template <bool SIGNED>
    static GEMMTUNE_DEVICE void run(const unsigned (&raw)[4], unsigned mask, int j, unsigned z, unsigned (&out)[4]) {
        unsigned byte[4];
        bytes_of(raw[j], byte);
        pairs<SIGNED>(byte, mask, z, out);
    }
    // Of bytes as bytes_of() gives them.
    template <bool SIGNED>
    static GEMMTUNE_DEVICE void pairs(const unsigned (&byte)[4], unsigned mask, unsigned z, unsigned (&out)[4]) {
        // 2 - (2 + z / 64)
        const unsigned zero = fma_pair<Bf16>(both(0xc000u + z), PairBits<Bf16>::kOne, 0x40004000u);
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i)
            out[i] = fma_pair<Bf16>((byte[i] & mask) ^ (SIGNED ? 0x00800008u : 0u), 0x7d007f00u, zero);
    }
};
template <>
struct Convert<Half, 4> {
    template <bool SIGNED>
    static GEMMTUNE_DEVICE void run(const unsigned (&raw)[4], unsigned mask, int j, unsigned z, unsigned (&out)[4]) {
        unsigned byte[4];
        bytes_of(raw[j], byte);
        pairs<SIGNED>(byte, mask, z, out);
    }
    // 1024 + q and 1024 + 16 q; an exact division by 16 turns that into 64 + q.
    template <bool SIGNED>
    static GEMMTUNE_DEVICE void pairs(const unsigned (&byte)[4], unsigned mask, unsigned z, unsigned (&out)[4]) {
        const unsigned zero = (0xe400u + z) | (0xd400u + (z << 4)) << 16;
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i)
            out[i] = fma_pair<Half>((byte[i] & mask) ^ (SIGNED ? 0x64806408u : 0x64006400u), 0x2c003c00u, zero);
    }
};
// Four pairs of e2m1, each number in the top four bits of its half of a word, whatever is below, as pairs of T.
template <typename T>
GEMMTUNE_DEVICE void float_pairs(const unsigned (&top)[4], unsigned (&out)[4]) {
    constexpr int kDown = kSame<T, Bf16> ? 6 : 3;                             // of exponent and mantissa
    constexpr unsigned kPower = kSame<T, Bf16> ? 0x7e807e80u : 0x74007400u;  // 2^126, 2^14
    GEMMTUNE_UNROLL
    for (int i = 0; i < 4; ++i) {
        const unsigned bits = (top[i] & 0x80008000u) | (top[i] & 0x70007000u) >> kDown;
        out[i] = fma_pair<T>(bits, kPower, PairBits<T>::kMinusZero);
    }
}
// The eight of a word, in the order of memory.
template <typename T>
GEMMTUNE_DEVICE void eight_floats(unsigned word, unsigned (&out)[4]) {
    const unsigned even = word << 4;  // the even ones where the odd ones are
    const unsigned top[4] = {permuted<0x4000>(even, word), permuted<0x5010>(even, word), permuted<0x6020>(even, word),
                             permuted<0x7030>(even, word)};
    float_pairs<T>(top, out);
}

template <typename T>
struct Convert<T, 8, false> {
    // As unsigned numbers, larger by 128: in bf16 their bits alone, minus 128 / 64; in fp16 1024 + q.
    template <bool SIGNED>
    static GEMMTUNE_DEVICE void run(const unsigned (&raw)[4], unsigned, int j, unsigned, unsigned (&out)[4]) {
        constexpr bool kBits = kSame<T, Bf16>;
        constexpr unsigned kAbove = kBits ? 0u : 0x64646464u;
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; i += 2) {
            const unsigned word = raw[2 * j + i / 2] ^ 0x80808080u;
            out[i] = permuted<0x4140>(word, kAbove), out[i + 1] = permuted<0x4342>(word, kAbove);
        }
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i)
            out[i] = fma_pair<T>(out[i], kBits ? 0x7f007f00u : PairBits<T>::kOne, kBits ? 0xc000c000u : 0xe480e480u);
    }
};
template <typename T>
struct Convert<T, 8, true> {
    // Copies of the sign reach up to the place of the sign, as exponent and mantissa reach theirs.
    template <bool SIGNED>
    static GEMMTUNE_DEVICE void run(const unsigned (&raw)[4], unsigned, int j, unsigned, unsigned (&out)[4]) {
        constexpr bool kWide = kSame<T, Bf16>;
        constexpr int kUp = kWide ? 4 : 7;
        constexpr unsigned kPlaces = kWide ? 0x87f087f0u : 0xbf80bf80u;
        constexpr unsigned kPower = kWide ? 0x7b807b80u : 0x5c005c00u;   // 2^120, 2^8
        constexpr unsigned kBeyond = kWide ? 0x7b097b09u : 0x58485848u;  // 137/128 of 2^119, of 2^7
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; i += 2) {
            const unsigned word = raw[2 * j + i / 2];
            out[i] = sign_extended<0>(word) << kUp & kPlaces, out[i + 1] = sign_extended<1>(word) << kUp & kPlaces;
        }
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) {
            const unsigned number = fma_pair<T>(out[i], kPower, PairBits<T>::kMinusZero);
            out[i] = fma_pair<T>(fma_pair<T>(number, kBeyond, PairBits<T>::kMinusZero), 0u, number);
        }
    }
};
#endif

}  // namespace gemmtune
