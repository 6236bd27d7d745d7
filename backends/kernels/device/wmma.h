// Matrix cores of RDNA GPUs (v_wmma_*, wavefronts of 32): D[16, 16] += A[16, 16] B[16, 16] of 16-bit floats,
// int8, and on gfx12 the OCP 8-bit floats.
//
// Layout (AMD RDNA3 and RDNA4 ISA guides; AMD matrix instruction calculator), with `half` = lane / 16:
//   gfx11                                   A[lane % 16, e], e < 16: both half-waves hold the same
//                                           D[2 i + half, lane % 16]
//   gfx12, 16-bit elements                  A[lane % 16, 8 (e / 4) + 4 half + e % 4], e < 8
//   gfx12, 8-bit elements                   A[lane % 16, 8 half + e], e < 8
//                                           D[8 half + i, lane % 16]
// B's columns lie as A's rows do. A lane has eight sums.
#pragma once

#include "device/matrix_core.h"

namespace gemmtune {

#if !defined(GEMMTUNE_HOST)
// The instruction of two types and a generation. Primary: none.
template <typename A, typename B, int GENERATION>
struct WmmaInstruction;

typedef int Int2 __attribute__((ext_vector_type(2)));
typedef int Int4 __attribute__((ext_vector_type(4)));
typedef _Float16 Half8 __attribute__((ext_vector_type(8)));
typedef _Float16 Half16 __attribute__((ext_vector_type(16)));
typedef short Short8 __attribute__((ext_vector_type(8)));
typedef short Short16 __attribute__((ext_vector_type(16)));

#define GEMMTUNE_WMMA(A, B, GENERATION, WORDS, OPERAND, NAME)                                        \
    template <>                                                                                      \
    struct WmmaInstruction<A, B, GENERATION> {                                                       \
        template <typename SUMS>                                                                     \
        static GEMMTUNE_DEVICE SUMS run(SUMS d, Packed<WORDS> a, Packed<WORDS> b) {                  \
            return __builtin_amdgcn_wmma_##NAME(__builtin_bit_cast(OPERAND, a),                      \
                                                __builtin_bit_cast(OPERAND, b), d);                  \
        }                                                                                            \
    };
// Both operands are signed; sums do not saturate.
#define GEMMTUNE_WMMA_INT8(GENERATION, WORDS, OPERAND, NAME)                                         \
    template <>                                                                                      \
    struct WmmaInstruction<Int8, Int8, GENERATION> {                                                 \
        template <typename SUMS>                                                                     \
        static GEMMTUNE_DEVICE SUMS run(SUMS d, Packed<WORDS> a, Packed<WORDS> b) {                  \
            return __builtin_amdgcn_wmma_##NAME(true, __builtin_bit_cast(OPERAND, a), true,          \
                                                __builtin_bit_cast(OPERAND, b), d, false);           \
        }                                                                                            \
    };
GEMMTUNE_WMMA(Half, Half, 11, 8, Half16, f32_16x16x16_f16_w32)
GEMMTUNE_WMMA(Bf16, Bf16, 11, 8, Short16, f32_16x16x16_bf16_w32)
GEMMTUNE_WMMA_INT8(11, 4, Int4, i32_16x16x16_iu8_w32)
GEMMTUNE_WMMA(Half, Half, 12, 4, Half8, f32_16x16x16_f16_w32_gfx12)
GEMMTUNE_WMMA(Bf16, Bf16, 12, 4, Short8, f32_16x16x16_bf16_w32_gfx12)
GEMMTUNE_WMMA_INT8(12, 2, Int2, i32_16x16x16_iu8_w32_gfx12)
GEMMTUNE_WMMA(E4m3, E4m3, 12, 2, Int2, f32_16x16x16_fp8_fp8_w32_gfx12)
GEMMTUNE_WMMA(E4m3, E5m2, 12, 2, Int2, f32_16x16x16_fp8_bf8_w32_gfx12)
GEMMTUNE_WMMA(E5m2, E4m3, 12, 2, Int2, f32_16x16x16_bf8_fp8_w32_gfx12)
GEMMTUNE_WMMA(E5m2, E5m2, 12, 2, Int2, f32_16x16x16_bf8_bf8_w32_gfx12)
#undef GEMMTUNE_WMMA_INT8
#undef GEMMTUNE_WMMA
#endif

template <typename TYPE_A, typename TYPE_B, int GENERATION>
struct Wmma {
    using A = TYPE_A;
    using B = TYPE_B;
    using Sum = typename SumOf<A>::Type;
    static constexpr bool kTwice = GENERATION == 11, kByte = sizeof(A) == 1;
    static constexpr int kWave = 32, kLines = 16, kDepth = 16;
    static constexpr int kGroups = kTwice ? 1 : 2, kCopies = kTwice ? 2 : 1;
    static constexpr int kElements = kDepth / kGroups;
    static constexpr int kWords = kElements * static_cast<int>(sizeof(A)) / 4, kSums = 8;
    using Sums = typename VectorOf<Sum, kSums>::Type;
    static_assert(GENERATION == 11 || GENERATION == 12, "gfx11 or gfx12");
    static_assert(sizeof(A) == sizeof(B) && kInteger<A> == kInteger<B>, "operands of one kind");
    static_assert(sizeof(A) == 2 || kInteger<A> || (kByte && !kTwice), "gfx11 has no 8-bit floats");

    static GEMMTUNE_DEVICE constexpr int lane(int line, int k) {
        return (kTwice ? 0 : kByte ? k / 8 : k / 4 % 2) * 16 + line;
    }
    static GEMMTUNE_DEVICE constexpr int element(int k) {
        return kTwice ? k : kByte ? k % 8 : k / 8 * 4 + k % 4;
    }
    static GEMMTUNE_DEVICE constexpr int row(int lane, int i) {
        return kTwice ? 2 * i + lane / 16 : lane / 16 * 8 + i;
    }
    static GEMMTUNE_DEVICE constexpr int column(int lane) { return lane % 16; }

    static GEMMTUNE_DEVICE void multiply(Sums& d, const Packed<kWords>& a, const Packed<kWords>& b) {
#if defined(GEMMTUNE_HOST)
        emulate<Wmma>(d, a, b);
#else
        d = WmmaInstruction<A, B, GENERATION>::run(d, a, b);
#endif
    }
};

}  // namespace gemmtune
