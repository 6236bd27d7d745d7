// Matrix cores of CDNA GPUs (v_mfma_*, wavefronts of 64): D[M, M] += A[M, K] B[K, M].
//
//   M   K (16-bit floats)   K (int8)     K (8-bit floats)
//   16  16, gfx950: 32      16 (gfx90a), 32 (gfx942, gfx950), gfx950: 64     32 (gfx942, gfx950)
//   32   8, gfx950: 16       8 (gfx90a), 16 (gfx942, gfx950), gfx950: 32     16 (gfx942, gfx950)
//
// gfx942 multiplies the FNUZ formats of small_types.h, gfx950 the OCP formats, by the same instructions.
//
// Layout (AMD CDNA2, CDNA3 and CDNA4 ISA guides; AMD matrix instruction calculator). The wavefront's 64 lanes
// are 64 / M groups of M lanes. A lane has K M / 64 neighbours along k of one line:
//   A[lane % M, (K M / 64) (lane / M) + e]     B[(K M / 64) (lane / M) + e, lane % M]
// and M M / 64 sums of one column, four neighbouring rows at a time:
//   D[(256 / M) (i / 4) + 4 (lane / M) + i % 4, lane % M]
#pragma once

#include "device/matrix_core.h"

namespace gemmtune {

#if !defined(GEMMTUNE_HOST)
// The instruction of two types, M, and the words of a lane's operand. Primary: none.
template <typename A, typename B, int M, int WORDS>
struct MfmaInstruction;

typedef _Float16 Half4 __attribute__((ext_vector_type(4)));
typedef _Float16 Half8 __attribute__((ext_vector_type(8)));
typedef short Short4 __attribute__((ext_vector_type(4)));
typedef __bf16 Bfloat8 __attribute__((ext_vector_type(8)));
typedef int Int4 __attribute__((ext_vector_type(4)));

#define GEMMTUNE_MFMA(A, B, M, WORDS, OPERAND, NAME)                                                 \
    template <>                                                                                      \
    struct MfmaInstruction<A, B, M, WORDS> {                                                         \
        template <typename SUMS>                                                                     \
        static GEMMTUNE_DEVICE SUMS run(SUMS d, Packed<WORDS> a, Packed<WORDS> b) {                  \
            return __builtin_amdgcn_mfma_##NAME(__builtin_bit_cast(OPERAND, a),                      \
                                                __builtin_bit_cast(OPERAND, b), d, 0, 0, 0);         \
        }                                                                                            \
    };
#define GEMMTUNE_MFMA_FLOAT8(E4M3, E5M2)                                                             \
    GEMMTUNE_MFMA(E4M3, E4M3, 16, 2, long, f32_16x16x32_fp8_fp8)                                     \
    GEMMTUNE_MFMA(E4M3, E5M2, 16, 2, long, f32_16x16x32_fp8_bf8)                                     \
    GEMMTUNE_MFMA(E5M2, E4M3, 16, 2, long, f32_16x16x32_bf8_fp8)                                     \
    GEMMTUNE_MFMA(E5M2, E5M2, 16, 2, long, f32_16x16x32_bf8_bf8)                                     \
    GEMMTUNE_MFMA(E4M3, E4M3, 32, 2, long, f32_32x32x16_fp8_fp8)                                     \
    GEMMTUNE_MFMA(E4M3, E5M2, 32, 2, long, f32_32x32x16_fp8_bf8)                                     \
    GEMMTUNE_MFMA(E5M2, E4M3, 32, 2, long, f32_32x32x16_bf8_fp8)                                     \
    GEMMTUNE_MFMA(E5M2, E5M2, 32, 2, long, f32_32x32x16_bf8_bf8)
GEMMTUNE_MFMA(Half, Half, 16, 2, Half4, f32_16x16x16f16)
GEMMTUNE_MFMA(Half, Half, 32, 2, Half4, f32_32x32x8f16)
GEMMTUNE_MFMA(Bf16, Bf16, 16, 2, Short4, f32_16x16x16bf16_1k)
GEMMTUNE_MFMA(Bf16, Bf16, 32, 2, Short4, f32_32x32x8bf16_1k)
GEMMTUNE_MFMA(Int8, Int8, 16, 1, int, i32_16x16x16i8)
GEMMTUNE_MFMA(Int8, Int8, 32, 1, int, i32_32x32x8i8)
GEMMTUNE_MFMA(Int8, Int8, 16, 2, long, i32_16x16x32_i8)
GEMMTUNE_MFMA(Int8, Int8, 32, 2, long, i32_32x32x16_i8)
GEMMTUNE_MFMA_FLOAT8(E4m3Fnuz, E5m2Fnuz)
GEMMTUNE_MFMA_FLOAT8(E4m3, E5m2)
#if __has_builtin(__builtin_amdgcn_mfma_f32_16x16x32_f16)  // compilers that know gfx950
GEMMTUNE_MFMA(Half, Half, 16, 4, Half8, f32_16x16x32_f16)
GEMMTUNE_MFMA(Half, Half, 32, 4, Half8, f32_32x32x16_f16)
GEMMTUNE_MFMA(Bf16, Bf16, 16, 4, Bfloat8, f32_16x16x32_bf16)
GEMMTUNE_MFMA(Bf16, Bf16, 32, 4, Bfloat8, f32_32x32x16_bf16)
GEMMTUNE_MFMA(Int8, Int8, 16, 4, Int4, i32_16x16x64_i8)
GEMMTUNE_MFMA(Int8, Int8, 32, 4, Int4, i32_32x32x32_i8)
#endif
#undef GEMMTUNE_MFMA_FLOAT8
#undef GEMMTUNE_MFMA
#endif

template <typename TYPE_A, typename TYPE_B, int M, int K>
struct Mfma {
    using A = TYPE_A;
    using B = TYPE_B;
    using Sum = typename SumOf<A>::Type;
    static constexpr int kWave = 64, kLines = M, kDepth = K, kGroups = 64 / M, kCopies = 1;
    static constexpr int kElements = K / kGroups;
    static constexpr int kWords = kElements * static_cast<int>(sizeof(A)) / 4, kSums = M * M / 64;
    using Sums = typename VectorOf<Sum, kSums>::Type;
    static_assert(M == 16 || M == 32, "instructions of one block have 16 or 32 rows");
    static_assert(sizeof(A) == sizeof(B) && kInteger<A> == kInteger<B>, "operands of one kind");
    static_assert(kWords == 2 || (kWords == 1 && kInteger<A>) ||
                      (kWords == 4 && (sizeof(A) == 2 || kInteger<A>)),
                  "instructions have 2 words of an operand; int8 1 as well, all but 8-bit floats 4");

    static GEMMTUNE_DEVICE constexpr int lane(int line, int k) { return k / kElements * M + line; }
    static GEMMTUNE_DEVICE constexpr int element(int k) { return k % kElements; }
    static GEMMTUNE_DEVICE constexpr int row(int lane, int i) {
        return i / 4 * (4 * kGroups) + lane / M * 4 + i % 4;
    }
    static GEMMTUNE_DEVICE constexpr int column(int lane) { return lane % M; }

    static GEMMTUNE_DEVICE void multiply(Sums& d, const Packed<kWords>& a, const Packed<kWords>& b) {
#if defined(GEMMTUNE_HOST)
        emulate<Mfma>(d, a, b);
#else
        d = MfmaInstruction<A, B, M, kWords>::run(d, a, b);
#endif
    }
};

}  // namespace gemmtune
