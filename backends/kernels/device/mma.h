// Tensor cores by mma.sync (sm_80 and later): D[16, 8] += A[16, 16] B[16, 8], accumulated in fp32. Lane (group,
// member) = (lane / 4, lane % 4) of a warp holds these fragments, in 32-bit words of two elements that are
// neighbours along k:
//   a[0]: A[group, 2 member]  a[1]: A[group + 8, 2 member]  a[2], a[3]: the same at k + 8
//   b[0]: B[2 member, group]  b[1]: at k + 8
//   d[0], d[1]: D[group, 2 member and + 1]  d[2], d[3]: D[group + 8, ...]
// TF32: D[16, 8] += A[16, 8] B[8, 8] of the upper 19 bits of fp32. A word holds one element:
//   a[0]: A[group, member]  a[1]: A[group + 8, member]  a[2], a[3]: the same at k + 4
//   b[0]: B[member, group]  b[1]: at k + 4
// load_matrices() (ldmatrix.x4) reads four matrices of 8 rows of 16 bytes from shared memory: lane 8 i + r
// gives the address of row r of matrix i, a multiple of 16 bytes. From each matrix a lane receives word
// `member` of row `group`; TRANSPOSED (16-bit elements), the elements of column `group` in the rows 2 member
// and 2 member + 1.
//
// Hopper's wgmma, which reads its operands from shared memory, is in wgmma.h.
#pragma once

#include "device/types.h"

namespace gemmtune {

#if defined(GEMMTUNE_HOST)
struct Fragments {
    unsigned a[4], b[2];
};

template <typename T>
inline void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    static_assert(kWarp == 32, "fragments are of 32 lanes");
    const auto lanes = host::exchange(Fragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    const int group = lane_index() / 4, member = lane_index() % 4;
    float rows[2][16], columns[2][16];
    for (int pair = 0; pair < 8; ++pair)
        for (int i = 0; i < 2; ++i) {
            float x[2], y[2];
            Word<T>::unpack(lanes.of(group * 4 + pair % 4).a[i + pair / 4 * 2], x);
            Word<T>::unpack(lanes.of((2 * member + i) * 4 + pair % 4).b[pair / 4], y);
            for (int e = 0; e < 2; ++e) rows[i][2 * pair + e] = x[e], columns[i][2 * pair + e] = y[e];
        }
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k) d[i] += rows[i / 2][k] * columns[i % 2][k];
}

// A tensor core ignores the lower 13 bits of an fp32: they are truncated, not rounded.
inline void mma_16x8x8_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const auto lanes = host::exchange(Fragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    const int group = lane_index() / 4, member = lane_index() % 4;
    for (int i = 0; i < 4; ++i) {
        const int row = group + (i / 2) * 8, column = 2 * member + i % 2;
        for (int k = 0; k < 8; ++k) {
            const unsigned x = lanes.of(row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2];
            const unsigned y = lanes.of(column * 4 + k % 4).b[k / 4];
            d[i] += as_float(x & ~0x1fffu) * as_float(y & ~0x1fffu);
        }
    }
}
// Rounds to nearest, ties away from zero; infinities and NaNs are unchanged.
inline unsigned to_tf32(unsigned bits) {
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

template <bool TRANSPOSED>
inline void load_matrices(const void* row, unsigned (&out)[4]) {
    if (reinterpret_cast<u64>(row) % 16) host::fail("a matrix's row at a misaligned address");
    const auto lanes = host::exchange(row);
    const int group = lane_index() / 4, member = lane_index() % 4;
    for (int i = 0; i < 4; ++i) {
        if (TRANSPOSED) {
            const auto element = [&](int r) {
                return static_cast<unsigned>(static_cast<const unsigned short*>(lanes.of(8 * i + r))[group]);
            };
            out[i] = element(2 * member) | element(2 * member + 1) << 16;
        } else {
            out[i] = static_cast<const unsigned*>(lanes.of(8 * i + group))[member];
        }
        unsigned seen = 0;  // which of the eight 16-byte bank groups are read
        for (int r = 0; r < 8; ++r) seen |= 1u << reinterpret_cast<u64>(lanes.of(8 * i + r)) / 16 % 8;
        if (seen != 0xff) host::fail("rows of a matrix share banks of shared memory");
    }
}
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
template <typename T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

#define GEMMTUNE_MMA(TYPE, NAME)                                                                        \
    template <>                                                                                         \
    __device__ __forceinline__ void mma_16x8x16<TYPE>(float (&d)[4], const unsigned (&a)[4],            \
                                                      const unsigned (&b)[2]) {                         \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 "                     \
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                     \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                            \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                        \
    }
GEMMTUNE_MMA(Half, "f16")
GEMMTUNE_MMA(Bf16, "bf16")
#undef GEMMTUNE_MMA

__device__ __forceinline__ void mma_16x8x8_tf32(float (&d)[4], const unsigned (&a)[4],
                                                const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ unsigned to_tf32(unsigned bits) {
    unsigned out;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(as_float(bits)));
    return out;
}

// The memory clobber keeps the load in program order, after any barrier that precedes it.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(const void* row, unsigned (&out)[4]) {
    const unsigned at = shared_address(row);
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(at) : "memory");
}
#else
#error "mma.h is CUDA's; a family for matrix cores of other vendors has a header of its own"
#endif

}  // namespace gemmtune
