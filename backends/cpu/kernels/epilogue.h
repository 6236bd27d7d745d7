// The epilogue of a tile of sums: D = activation(alpha * sum + beta * C + bias), in the accumulator
// type, rounded once on the store to D.
//
// The micro-kernels leave their sums in a small column-major tile in L1, and the passes below run
// over it column by column. This costs a store and a load per vector of sums, which is negligible
// beside the k loop, and keeps all branches on options out of the micro-kernels.
#ifndef GEMMTUNE_EPILOGUE_H
#define GEMMTUNE_EPILOGUE_H

#include <cmath>

#include "abi.h"
#include "types.h"

namespace gemmtune {

// e^x for every lane, within about 1 ulp: x = n ln2 + r, and a polynomial in r scaled by 2^n.
template <int N>
GEMMTUNE_INLINE Vec<float, N> exponential(Vec<float, N> x) {
  using F = Vec<float, N>;
  using I = Vec<int32_t, N>;
  x = x > 90.0f ? splat<float, N>(90.0f) : x;  // comparisons with NaN are false: NaN is kept
  x = x < -104.0f ? splat<float, N>(-104.0f) : x;
  const float round = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const F shifted = x * 0x1.715476p0f + round;
  const F n = shifted - round;
  const F r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  F p = r * 1.9875691500e-4f + 1.3981999507e-3f;  // the minimax coefficients of Cephes' expf
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // Scale in two steps, so that results can overflow to infinity or become subnormal.
  const I power = bit_cast<I>(shifted) - bit_cast<I>(splat<float, N>(round)), half = power >> 1;
  const F low = bit_cast<F>(I((half + 127) << 23));
  const F high = bit_cast<F>(I((power - half + 127) << 23));
  return p * low * high;
}

// x / (1 + e^-s): silu with s = x, and gelu's 0.5 x (1 + tanh(u)) with s = 2u.
template <typename Acc, int N>
GEMMTUNE_INLINE Vec<Acc, N> times_sigmoid(Vec<Acc, N> x, Vec<Acc, N> s) {
  if constexpr (std::is_same_v<Acc, float>) {
    return x / (1.0f + exponential<N>(-s));
  } else {
    for (int i = 0; i < N; ++i) x[i] /= 1 + std::exp(-s[i]);
    return x;
  }
}

enum Activation : int32_t { kIdentity, kRelu, kGelu, kSilu };

template <typename C, typename D, typename Bias, typename Acc>
class Epilogue {
 public:
  Epilogue(const GemmArgs &args, int64_t batch)
      : alpha_(Acc(args.alpha)),
        beta_(Acc(args.beta)),
        c_(static_cast<const C *>(args.c) + (args.beta == 0 ? 0 : batch * args.stride_c)),
        d_(static_cast<D *>(args.d) + batch * args.stride_d),
        bias_(static_cast<const Bias *>(args.bias)),
        ldc_(args.ldc),
        ldd_(args.ldd),
        bias_axis_(args.bias_axis),
        activation_(args.activation) {}

  D *at(int64_t row, int64_t column) const { return d_ + row + column * ldd_; }
  int64_t ldd() const { return ldd_; }

  // tile = alpha * tile + beta * C. For the first k block.
  void scale(Acc *tile, int64_t ld, int64_t row, int64_t column, int64_t rows,
             int64_t columns) const {
    multiply(tile, ld, rows, columns);
    if (beta_ != 0) accumulate(tile, ld, c_ + row + column * ldc_, ldc_, rows, columns, beta_);
  }

  // tile = alpha * tile + partial. For the later k blocks.
  template <typename Partial>
  void add(Acc *tile, int64_t ld, const Partial *partial, int64_t ld_partial, int64_t rows,
           int64_t columns) const {
    multiply(tile, ld, rows, columns);
    accumulate(tile, ld, partial, ld_partial, rows, columns, Acc(1));
  }

  // Applies bias and activation, and stores to D.
  void finish(Acc *tile, int64_t ld, int64_t row, int64_t column, int64_t rows,
              int64_t columns) const {
    if (bias_axis_ != 0) add_bias(tile, ld, row, column, rows, columns);
    if (activation_ != kIdentity) activate(tile, ld, rows, columns);
    save(tile, ld, at(row, column), ldd_, rows, columns);
  }

  template <typename To>
  static void save(const Acc *tile, int64_t ld, To *to, int64_t ld_to, int64_t rows,
                   int64_t columns) {
    for (int64_t j = 0; j < columns; ++j) {
      const Acc *t = tile + j * ld;
      To *line = to + j * ld_to;
      int64_t i = 0;
      for (; i + N <= rows; i += N) store<To, N, Acc>(line + i, get(t + i));
      if (i < rows) store_partial<To, N, Acc>(line + i, get(t + i), rows - i);
    }
  }

 private:
  static constexpr int N = lanes<Acc>;
  using V = Vec<Acc, N>;
  static GEMMTUNE_INLINE V get(const Acc *p) { return load_bits<V>(p); }
  static GEMMTUNE_INLINE void put(Acc *p, V v) { std::memcpy(p, &v, sizeof(v)); }

  // Tiles are a whole number of vectors high, so tails may be computed; they are never stored.
  void multiply(Acc *tile, int64_t ld, int64_t rows, int64_t columns) const {
    if (alpha_ == 1) return;
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t i = 0; i < rows; i += N) put(tile + i + j * ld, get(tile + i + j * ld) * alpha_);
  }

  template <typename From>
  static void accumulate(Acc *tile, int64_t ld, const From *from, int64_t ld_from, int64_t rows,
                         int64_t columns, Acc factor) {
    for (int64_t j = 0; j < columns; ++j) {
      Acc *t = tile + j * ld;
      const From *line = from + j * ld_from;
      int64_t i = 0;
      for (; i + N <= rows; i += N) put(t + i, get(t + i) + load<Acc, N>(line + i) * factor);
      if (i < rows) put(t + i, get(t + i) + load_partial<Acc, N>(line + i, rows - i) * factor);
    }
  }

  void add_bias(Acc *tile, int64_t ld, int64_t row, int64_t column, int64_t rows,
                int64_t columns) const {
    for (int64_t i = 0; i < rows; i += N) {
      V bias = {};
      if (bias_axis_ == 1) {
        const Bias *p = bias_ + row + i;
        bias = i + N <= rows ? load<Acc, N>(p) : load_partial<Acc, N>(p, rows - i);
      }
      for (int64_t j = 0; j < columns; ++j) {
        if (bias_axis_ == 2) bias = splat<Acc, N>(load_partial<Acc, N>(bias_ + column + j, 1)[0]);
        put(tile + i + j * ld, get(tile + i + j * ld) + bias);
      }
    }
  }

  void activate(Acc *tile, int64_t ld, int64_t rows, int64_t columns) const {
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; i += N) {
        Acc *t = tile + i + j * ld;
        V x = get(t);
        if (activation_ == kRelu) {
          x = x < 0 ? V{} : x;  // keeps NaN
        } else if constexpr (std::is_floating_point_v<Acc>) {
          V s = x;
          if (activation_ == kGelu) {
            const Acc outer = Acc(1.5957691216057308), inner = Acc(0.044715);  // 2 sqrt(2/pi)
            s = x * (outer + (outer * inner) * (x * x));
          }
          x = times_sigmoid<Acc, N>(x, s);
        }
        put(t, x);
      }
    }
  }

  Acc alpha_, beta_;
  const C *c_;
  D *d_;
  const Bias *bias_;
  int64_t ldc_, ldd_;
  int32_t bias_axis_, activation_;
};

}  // namespace gemmtune

#endif
