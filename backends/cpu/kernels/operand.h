// Conversion of an operand's elements to packed elements, and the multiply-add of packed elements.
//
// A packed element holds `group` consecutive elements along k of one row of op(A) or one column of
// op(B): a single element upcast to the accumulator type, or the pair or quad that one lane of a
// native dot instruction takes. Packing and streaming handle an operand in one of two
// orientations: k contiguous in memory (a vector of packed elements runs along k), or k strided
// (a vector runs across rows or columns, and a group's elements come from `group` lines).
#ifndef GEMMTUNE_OPERAND_H
#define GEMMTUNE_OPERAND_H

#include "types.h"

namespace gemmtune {

// For any element type: convert to the accumulator type, then fused multiply-add.
struct Upcast {
  static constexpr int group = 1;
  static constexpr bool offset = false;
  template <typename Acc>
  using Packed = Acc;

  template <typename Acc, int N, typename T>
  static GEMMTUNE_INLINE Vec<Acc, N> along_k(const T *p) {
    return load<Acc, N>(p);
  }
  template <typename Acc, int N, typename T>
  static GEMMTUNE_INLINE Vec<Acc, N> across_k(const T *p, int64_t) {
    return load<Acc, N>(p);
  }
  template <typename Acc, int N>
  static GEMMTUNE_INLINE Vec<Acc, N> multiply_add(Vec<Acc, N> sum, Vec<Acc, N> a, Vec<Acc, N> b) {
    return sum + a * b;
  }
};

// Narrow elements packed into the 32-bit lanes of a dot instruction.
template <typename Element, int Group>
struct DotGroup {
  static constexpr int group = Group;
  template <typename Acc>
  using Packed = uint32_t;
  static_assert(sizeof(Element) * Group == 4, "dot instructions work on 32-bit lanes");

  template <typename Acc, int N, typename T>
  static GEMMTUNE_INLINE Vec<uint32_t, N> along_k(const T *p) {
    static_assert(std::is_same_v<T, Element>, "this dot instruction has another element type");
    return load_bits<Vec<uint32_t, N>>(p);
  }
  template <typename Acc, int N, typename T>
  static GEMMTUNE_INLINE Vec<uint32_t, N> across_k(const T *p, int64_t ld) {
    static_assert(std::is_same_v<T, Element>, "this dot instruction has another element type");
    using Bits = std::conditional_t<sizeof(T) == 1, uint8_t, uint16_t>;
    Vec<uint32_t, N> packed = {};
#pragma GCC unroll 4
    for (int g = 0; g < Group; ++g) {
      const auto line = load_bits<Vec<Bits, N>>(p + g * ld);
      packed |= widen<uint32_t, N, Bits>(line) << int(8 * sizeof(T) * g);
    }
    return packed;
  }
};

// vdpbf16ps: two bf16 products per lane, added to fp32 (the instruction flushes subnormals).
struct Bf16Dot : DotGroup<Bf16, 2> {
  static constexpr bool offset = false;
  template <typename Acc, int N>
  static GEMMTUNE_INLINE Vec<float, N> multiply_add(Vec<float, N> sum, Vec<uint32_t, N> a,
                                                    Vec<uint32_t, N> b) {
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
    if constexpr (N == 16) {
      return bit_cast<Vec<float, N>>(_mm512_dpbf16_ps(bit_cast<__m512>(sum), bit_cast<__m512bh>(a),
                                                      bit_cast<__m512bh>(b)));
    } else if constexpr (N == 8) {
      return bit_cast<Vec<float, N>>(_mm256_dpbf16_ps(bit_cast<__m256>(sum), bit_cast<__m256bh>(a),
                                                      bit_cast<__m256bh>(b)));
    } else {
      return bit_cast<Vec<float, N>>(_mm_dpbf16_ps(bit_cast<__m128>(sum), bit_cast<__m128bh>(a),
                                                   bit_cast<__m128bh>(b)));
    }
#else
    static_assert(N < 0, "Bf16Dot needs -mavx512bf16 -mavx512vl");
    return sum;
#endif
  }
};

// vpdpbusd: four u8 x s8 products per lane, added to int32. The kernels flip the sign bits of A's
// packed elements, which adds 128 to each (`offset`), and initialise the sums with -128 times the
// column sums of op(B). This is exact for every input, since int32 arithmetic wraps.
struct Int8Dot : DotGroup<int8_t, 4> {
  static constexpr bool offset = true;
  template <typename Acc, int N>
  static GEMMTUNE_INLINE Vec<int32_t, N> multiply_add(Vec<int32_t, N> sum, Vec<uint32_t, N> a,
                                                      Vec<uint32_t, N> b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    if constexpr (N == 16) {
      return bit_cast<Vec<int32_t, N>>(_mm512_dpbusd_epi32(
          bit_cast<__m512i>(sum), bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
    } else if constexpr (N == 8) {
      return bit_cast<Vec<int32_t, N>>(_mm256_dpbusd_epi32(
          bit_cast<__m256i>(sum), bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
    } else {
      return bit_cast<Vec<int32_t, N>>(
          _mm_dpbusd_epi32(bit_cast<__m128i>(sum), bit_cast<__m128i>(a), bit_cast<__m128i>(b)));
    }
#else
    static_assert(N < 0, "Int8Dot needs -mavx512vnni -mavx512vl");
    return sum;
#endif
  }

  // Adds each quad's sum to the lanes of `sums`.
  template <int N>
  static GEMMTUNE_INLINE void add_quads(int32_t *sums, const uint32_t *quads) {
    for (int i = 0; i < N; ++i) {
      const int32_t quad = int32_t(quads[i]);
      sums[i] += int8_t(quad) + int8_t(quad >> 8) + int8_t(quad >> 16) + (quad >> 24);
    }
  }
};

constexpr uint32_t kSignBits = 0x80808080u;

// Loads vectors of packed elements. Element (line j, depth p) is at p[j * ld + p] if k is
// contiguous, else at p[p * ld + j]. IsA applies the offset of Int8Dot.
template <typename Policy, typename T, typename Acc, bool IsA>
struct Operand {
  using Packed = typename Policy::template Packed<Acc>;
  static constexpr int G = Policy::group;

  template <int N>
  static GEMMTUNE_INLINE Vec<Packed, N> adjust(Vec<Packed, N> packed) {
    if constexpr (IsA && Policy::offset) packed ^= kSignBits;
    return packed;
  }
  template <int N>
  static GEMMTUNE_INLINE Vec<Packed, N> along_k(const T *p) {
    return adjust<N>(Policy::template along_k<Acc, N>(p));
  }
  // Loads `depth` < N * G elements, followed by zeros.
  template <int N>
  static GEMMTUNE_INLINE Vec<Packed, N> along_k(const T *p, int64_t depth) {
    T buffer[N * G] = {};
    for (int64_t i = 0; i < depth; ++i) buffer[i] = p[i];
    return along_k<N>(buffer);
  }
  template <int N>
  static GEMMTUNE_INLINE Vec<Packed, N> across_k(const T *p, int64_t ld) {
    return adjust<N>(Policy::template across_k<Acc, N>(p, ld));
  }
  // Loads the first `width` of N lines and `depth` of G elements, with zeros elsewhere.
  template <int N>
  static GEMMTUNE_INLINE Vec<Packed, N> across_k(const T *p, int64_t ld, int64_t width,
                                                 int64_t depth) {
    T buffer[N * G] = {};
    for (int64_t g = 0; g < G && g < depth; ++g)
      for (int64_t i = 0; i < N && i < width; ++i) buffer[g * N + i] = p[g * ld + i];
    return across_k<N>(buffer, N);
  }
};

}  // namespace gemmtune

#endif
