// Element types and the vector types used to compute with them.
//
// The code uses GCC/Clang vector extensions, so that one source serves every ISA and vector width.
// Intrinsics appear here only for the half-precision conversions, which vector extensions cannot
// express. Storage-only types (Half, Bf16) hold bits; loads and stores convert them, rounding to
// nearest even.
#ifndef GEMMTUNE_TYPES_H
#define GEMMTUNE_TYPES_H

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// ISO mode (-std=c++17) disables contraction in GCC, and with it every fused multiply-add.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

#ifndef GEMMTUNE_VECTOR_BYTES
#define GEMMTUNE_VECTOR_BYTES 16
#endif

#define GEMMTUNE_INLINE inline __attribute__((always_inline))
#define GEMMTUNE_LAMBDA_INLINE __attribute__((always_inline))

namespace gemmtune {

struct Half {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

template <typename T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * N)));
};
template <typename T, int N>
using Vec = typename VectorOf<T, N>::type;

// Lanes of a full vector of the accumulator type.
template <typename T>
constexpr int lanes = GEMMTUNE_VECTOR_BYTES / int(sizeof(T));

template <typename To, typename From>
GEMMTUNE_INLINE To bit_cast(const From &from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename V>
GEMMTUNE_INLINE V load_bits(const void *p) {
  V v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <typename T, int N>
GEMMTUNE_INLINE Vec<T, N> splat(T value) {
  return value - Vec<T, N>{};  // folds to a broadcast, unlike value + 0, which turns -0 into 0
}

// ---- Half <-> float -----------------------------------------------------------------------------

template <int N>
GEMMTUNE_INLINE Vec<float, N> half_to_float(Vec<uint16_t, N> half) {
#if defined(__AVX512F__)
  // Masked forms, since GCC 12 warns about the undefined destination of the plain ones.
  if constexpr (N == 16)
    return bit_cast<Vec<float, N>>(_mm512_maskz_cvtph_ps(0xffff, bit_cast<__m256i>(half)));
#endif
#if defined(__F16C__)
  if constexpr (N == 8) return bit_cast<Vec<float, N>>(_mm256_cvtph_ps(bit_cast<__m128i>(half)));
  if constexpr (N == 4) {
    const Vec<uint64_t, 2> wide = {bit_cast<uint64_t>(half), 0};
    return bit_cast<Vec<float, N>>(_mm_cvtph_ps(bit_cast<__m128i>(wide)));
  }
#endif
  using Bits = Vec<uint32_t, N>;
  const Bits bits = __builtin_convertvector(half, Bits);
  const Bits magnitude = bits & 0x7fff;
  // Shift the fields into place and scale by 2^112 to correct the exponent bias. This is exact and
  // normalises subnormals. The mask restores the exponent of infinities and NaNs.
  const Vec<float, N> scaled = bit_cast<Vec<float, N>>(Bits(magnitude << 13)) * 0x1p112f;
  const Bits special = Bits(magnitude >= 0x7c00) & 0x7f800000u;
  return bit_cast<Vec<float, N>>(
      Bits(bit_cast<Bits>(scaled) | special | ((bits & 0x8000) << 16)));
}

template <int N>
GEMMTUNE_INLINE Vec<uint16_t, N> float_to_half(Vec<float, N> value) {
#if defined(__AVX512F__)
  if constexpr (N == 16)
    return bit_cast<Vec<uint16_t, N>>(_mm512_maskz_cvtps_ph(0xffff, bit_cast<__m512>(value), 8));
#endif
#if defined(__F16C__)
  if constexpr (N == 8)
    return bit_cast<Vec<uint16_t, N>>(_mm256_cvtps_ph(bit_cast<__m256>(value), 8));
  if constexpr (N == 4) {
    const auto wide = bit_cast<Vec<uint64_t, 2>>(_mm_cvtps_ph(bit_cast<__m128>(value), 8));
    return bit_cast<Vec<uint16_t, N>>(uint64_t(wide[0]));
  }
#endif
  using Bits = Vec<uint32_t, N>;
  const Bits bits = bit_cast<Bits>(value), magnitude = bits & 0x7fffffffu;
  // Adding 0.5 leaves the correctly rounded fraction of a subnormal half in the low bits.
  const Bits subnormal = bit_cast<Bits>(bit_cast<Vec<float, N>>(magnitude) + 0.5f) - 0x3f000000u;
  const Bits normal = (magnitude - 0x38000000u + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const Bits nan = Bits(magnitude > 0x7f800000u);
  const Bits large = Bits(magnitude >= 0x47800000u), small = Bits(magnitude < 0x38800000u);
  Bits half = (small & subnormal) | (~small & normal);
  half = (large & (0x7c00u | (nan & 0x200u))) | (~large & half);
  return __builtin_convertvector(Bits(half | ((bits & 0x80000000u) >> 16)), Vec<uint16_t, N>);
}

// ---- Bf16 <-> float -----------------------------------------------------------------------------

template <int N>
GEMMTUNE_INLINE Vec<float, N> bf16_to_float(Vec<uint16_t, N> value) {
  using Bits = Vec<uint32_t, N>;
  return bit_cast<Vec<float, N>>(Bits(__builtin_convertvector(value, Bits) << 16));
}

template <int N>
GEMMTUNE_INLINE Vec<uint16_t, N> float_to_bf16(Vec<float, N> value) {
  // vcvtneps2bf16 is not used, because it flushes subnormals.
  using Bits = Vec<uint32_t, N>;
  const Bits bits = bit_cast<Bits>(value);
  const Bits nan = Bits((bits & 0x7fffffffu) > 0x7f800000u);
  const Bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return __builtin_convertvector(Bits(((nan & (bits | 0x400000u)) | (~nan & rounded)) >> 16),
                                 Vec<uint16_t, N>);
}

// Integers are widened in steps of a factor of two: GCC 12 scalarises direct conversion from 8 to
// 32 bits.
template <typename To, int N, typename From>
GEMMTUNE_INLINE Vec<To, N> widen(Vec<From, N> value) {
  static_assert(sizeof(To) == 4 && sizeof(From) < 4, "widens to 32 bits");
  using Middle = std::conditional_t<std::is_signed_v<From>, int16_t, uint16_t>;
  return __builtin_convertvector(__builtin_convertvector(value, Vec<Middle, N>), Vec<To, N>);
}

// ---- Loads and stores that convert --------------------------------------------------------------

template <typename Acc, int N, typename T>
GEMMTUNE_INLINE Vec<Acc, N> load(const T *p) {
  if constexpr (std::is_same_v<T, Acc>) {
    return load_bits<Vec<Acc, N>>(p);
  } else if constexpr (std::is_same_v<T, Half>) {
    return __builtin_convertvector(half_to_float<N>(load_bits<Vec<uint16_t, N>>(p)), Vec<Acc, N>);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return __builtin_convertvector(bf16_to_float<N>(load_bits<Vec<uint16_t, N>>(p)), Vec<Acc, N>);
  } else if constexpr (std::is_same_v<T, int8_t> && std::is_same_v<Acc, int32_t>) {
    return widen<int32_t, N, int8_t>(load_bits<Vec<int8_t, N>>(p));
  } else {
    return __builtin_convertvector(load_bits<Vec<T, N>>(p), Vec<Acc, N>);
  }
}

template <typename T, int N, typename Acc>
GEMMTUNE_INLINE void store(T *p, Vec<Acc, N> value) {
  static_assert(std::is_same_v<T, Acc> || std::is_same_v<Acc, float>, "no such rounding");
  if constexpr (std::is_same_v<T, Half>) {
    const auto bits = float_to_half<N>(value);
    std::memcpy(p, &bits, sizeof(bits));
  } else if constexpr (std::is_same_v<T, Bf16>) {
    const auto bits = float_to_bf16<N>(value);
    std::memcpy(p, &bits, sizeof(bits));
  } else {
    std::memcpy(p, &value, sizeof(value));
  }
}

// Tails go through a buffer, since memory past `count` elements may be on an unmapped page or
// belong to another thread.
template <typename Acc, int N, typename T>
GEMMTUNE_INLINE Vec<Acc, N> load_partial(const T *p, int64_t count) {
  T buffer[N] = {};
  for (int64_t i = 0; i < count; ++i) buffer[i] = p[i];
  return load<Acc, N>(buffer);
}

template <typename T, int N, typename Acc>
GEMMTUNE_INLINE void store_partial(T *p, Vec<Acc, N> value, int64_t count) {
  T buffer[N];
  store<T, N, Acc>(buffer, value);
  for (int64_t i = 0; i < count; ++i) p[i] = buffer[i];
}

// ---- Shuffles -----------------------------------------------------------------------------------

// Lanes First, First + N, First + 1, First + N + 1, ... of the pair (x, y).
template <int First, typename T, int N, int... I>
GEMMTUNE_INLINE Vec<T, N> interleave(Vec<T, N> x, Vec<T, N> y, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(x, y, (First + I / 2 + (I % 2) * N)...);
}

// Transposes N vectors of N lanes: log2(N) perfect shuffles of the rows.
template <typename T, int N>
GEMMTUNE_INLINE void transpose(Vec<T, N> (&rows)[N]) {
  using Lanes = std::make_integer_sequence<int, N>;
#pragma GCC unroll 8
  for (int step = 1; step < N; step *= 2) {
    Vec<T, N> shuffled[N];
#pragma GCC unroll 16
    for (int i = 0; i < N / 2; ++i) {
      shuffled[2 * i] = interleave<0, T, N>(rows[i], rows[i + N / 2], Lanes{});
      shuffled[2 * i + 1] = interleave<N / 2, T, N>(rows[i], rows[i + N / 2], Lanes{});
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) rows[i] = shuffled[i];
  }
}

}  // namespace gemmtune

#endif
