// Tensor cores on 8-bit elements in the fragments of mma.h: D[16, 8] += A[16, 64] B[64, 8], where a lane holds 16
// elements of a row of A, of another one eight below it, and of a column of B (ByteProducts). Every instruction sums
// over k in any order, as long as A and B have the same one.
//
// int8: mma.m16n8k32 (sm_80 and later), sums of int32. A lane's words, of four elements each:
//   a[0]: A[group, 4 member...]  a[1]: A[group + 8, ...]  a[2], a[3]: the same at k + 16
//   b[0]: B[4 member..., group]  b[1]: at k + 16
// 8-bit floats are converted to fp16, exactly, and multiplied by mma.m16n8k16, which sums in fp32. The conversion is an
// instruction from sm_89 on. On sm_90 mma.m16n8k32 of 8-bit floats is compiled to the same instructions; here weights
// are converted once for all columns. On sm_89 it is an instruction whose sums are narrower than fp32.
//
// mma_16x8x32_unsigned(): A is of uint8, D = A B + C. sum_of_bytes(): adds four int8 to a sum.
//
// MmaBytes is that instruction on elements as they are stored, for tile_product.h. A lane's words are int8's.
#pragma once

#include "device/mma.h"
#include "device/small_types.h"

namespace gemmtune {

#if defined(GEMMTUNE_HOST)
template <typename A>
inline void add_bytes(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    static_assert(kWarp == 32, "fragments are of 32 lanes");
    const auto lanes = host::exchange(Fragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    const int group = lane_index() / 4, member = lane_index() % 4;
    for (int i = 0; i < 4; ++i) {
        const int row = group + (i / 2) * 8, column = 2 * member + i % 2;
        for (int k = 0; k < 32; ++k) {
            const int from = k % 16 / 4;
            d[i] += static_cast<A>(lanes.of(row % 8 * 4 + from).a[row / 8 + k / 16 * 2] >> k % 4 * 8) *
                    static_cast<signed char>(lanes.of(column * 4 + from).b[k / 16] >> k % 4 * 8);
        }
    }
}
inline void mma_16x8x32(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { add_bytes<signed char>(d, a, b); }
inline void mma_16x8x32_unsigned(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const int (&c)[4]) {
    int sum[4] = {c[0], c[1], c[2], c[3]};
    add_bytes<unsigned char>(sum, a, b);
    for (int i = 0; i < 4; ++i) d[i] = sum[i];
}
inline int sum_of_bytes(unsigned word, int sum) {
    for (int i = 0; i < 4; ++i) sum += static_cast<signed char>(word >> 8 * i);
    return sum;
}
template <typename A, typename B>
inline void mma_16x8x32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    static_assert(kWarp == 32, "fragments are of 32 lanes");
    const auto lanes = host::exchange(Fragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    const int group = lane_index() / 4, member = lane_index() % 4;
    const auto byte = [](unsigned word, int at) { return static_cast<unsigned char>(word >> 8 * at); };
    for (int i = 0; i < 4; ++i) {
        const int row = group + (i / 2) * 8, column = 2 * member + i % 2;
        for (int k = 0; k < 32; ++k) {
            const int from = k % 16 / 4;
            d[i] += widen(A{byte(lanes.of(row % 8 * 4 + from).a[row / 8 + k / 16 * 2], k % 4)}) *
                    widen(B{byte(lanes.of(column * 4 + from).b[k / 16], k % 4)});
        }
    }
}
// Four 8-bit floats as four of fp16, in their order.
template <typename T>
inline void widen_bytes(unsigned word, unsigned (&out)[2]) {
    for (int i = 0; i < 2; ++i) {
        Half pair[2];
        for (int e = 0; e < 2; ++e)
            pair[e] = narrow<Half>(widen(T{static_cast<unsigned char>(word >> (16 * i + 8 * e))}));
        out[i] = Word<Half>::pack(pair);
    }
}
#else
GEMMTUNE_DEVICE void mma_16x8x32(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
GEMMTUNE_DEVICE void mma_16x8x32_unsigned(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                          const int (&c)[4]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
                   "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
GEMMTUNE_DEVICE int sum_of_bytes(unsigned word, int sum) {
    int found;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(found) : "r"(word), "r"(0x01010101), "r"(sum));
    return found;
}
template <typename A, typename B>
GEMMTUNE_DEVICE void mma_16x8x32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
#define GEMMTUNE_MMA_BYTES(A, B, NAMES)                                                                  \
    template <>                                                                                          \
    GEMMTUNE_DEVICE void mma_16x8x32<A, B>(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
        asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." NAMES ".f32 "                              \
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                      \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                             \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                         \
    }
GEMMTUNE_MMA_BYTES(E4m3, E4m3, "e4m3.e4m3")
GEMMTUNE_MMA_BYTES(E4m3, E5m2, "e4m3.e5m2")
GEMMTUNE_MMA_BYTES(E5m2, E4m3, "e5m2.e4m3")
GEMMTUNE_MMA_BYTES(E5m2, E5m2, "e5m2.e5m2")
#undef GEMMTUNE_MMA_BYTES
template <typename T>
GEMMTUNE_DEVICE void widen_bytes(unsigned word, unsigned (&out)[2]);
#define GEMMTUNE_WIDEN(TYPE, NAME)                                                                       \
    template <>                                                                                          \
    GEMMTUNE_DEVICE void widen_bytes<TYPE>(unsigned word, unsigned (&out)[2]) {                          \
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2;\n"                                          \
            "cvt.rn.f16x2." NAME " %0, low; cvt.rn.f16x2." NAME " %1, high; }"                           \
            : "=r"(out[0]), "=r"(out[1]) : "r"(word));                                                   \
    }
GEMMTUNE_WIDEN(E4m3, "e4m3x2")
GEMMTUNE_WIDEN(E5m2, "e5m2x2")
#undef GEMMTUNE_WIDEN
#endif

// The elements' type, of one size in A and B, the type of sums, and the instruction (tile_product.h: PRODUCTS).
template <typename A, typename B>
struct MmaBytes {
    using T = A;
    using Sum = typename SumOf<A>::Type;
    static GEMMTUNE_DEVICE void add(Sum (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        if constexpr (kInteger<A>) mma_16x8x32(sum, a, b);
        else mma_16x8x32<A, B>(sum, a, b);
    }
};

// Elements of A and B on their way from 16-byte loads to sums. A Fragment is a load as instructions take it.
template <typename A, typename B>
struct ByteProducts {
    using Sum = float;
    struct Fragment {
        unsigned at[8];
    };
    static GEMMTUNE_DEVICE Fragment of_a(Words raw) { return converted<A>(raw); }
    static GEMMTUNE_DEVICE Fragment of_b(Words raw) { return converted<B>(raw); }
    static GEMMTUNE_DEVICE void add(float (&sum)[4], const Fragment& upper, const Fragment& lower, const Fragment& b) {
        GEMMTUNE_UNROLL
        for (int i = 0; i < 8; i += 2) {
            const unsigned rows[4] = {upper.at[i], lower.at[i], upper.at[i + 1], lower.at[i + 1]};
            const unsigned columns[2] = {b.at[i], b.at[i + 1]};
            mma_16x8x16<Half>(sum, rows, columns);
        }
    }

private:
    template <typename T>
    static GEMMTUNE_DEVICE Fragment converted(Words raw) {
        Fragment out;
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) {
            unsigned pairs[2];
            widen_bytes<T>(raw.at[i], pairs);
            out.at[2 * i] = pairs[0], out.at[2 * i + 1] = pairs[1];
        }
        return out;
    }
};
template <>
struct ByteProducts<Int8, Int8> {
    using Sum = int;
    using Fragment = Words;
    static GEMMTUNE_DEVICE Fragment of_a(Words raw) { return raw; }
    static GEMMTUNE_DEVICE Fragment of_b(Words raw) { return raw; }
    static GEMMTUNE_DEVICE void add(int (&sum)[4], const Fragment& upper, const Fragment& lower, const Fragment& b) {
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; i += 2) {
            const unsigned rows[4] = {upper.at[i], lower.at[i], upper.at[i + 1], lower.at[i + 1]};
            const unsigned columns[2] = {b.at[i], b.at[i + 1]};
            mma_16x8x32(sum, rows, columns);
        }
    }
};

}  // namespace gemmtune
