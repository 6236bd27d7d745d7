// Streaming GEMM for few columns (the decode shapes of language models). It is bound by reading the
// large op(A), which is therefore read once, in place, by all threads together. Only the small
// op(B) is packed, as a whole.
//
//   k contiguous in A: dot products of RM rows by NB columns, with vectors along k.
//   m contiguous in A: axpys of RM vectors of rows by NB columns, with op(B) broadcast.
//
// Both keep an RM x NB tile of vectors of sums in registers (the register blocking of Goto & van de
// Geijn, without packing A) and process k in chunks of kc, so that the chunks of A and op(B) stay
// in L1 for all column blocks. k is never split over threads. Run-time parameters: mc is the number
// of rows whose sums are kept before the epilogue; nc is the distance in bytes at which every row
// of A is prefetched to L2 (prefetching to L1 evicts data in use). The axpys ignore nc and prefetch
// their next tile.
//
// A problem with few rows is run as D^T = op(B)^T op(A)^T (`mirrored`), if A and B have one type.
// GEMMTUNE_UNSUPPORTED: more than 64 columns after that, or int32 sums as in packed.h.
#ifndef GEMMTUNE_STREAM_H
#define GEMMTUNE_STREAM_H

#include "abi.h"
#include "epilogue.h"
#include "launch.h"
#include "operand.h"
#include "threads.h"

namespace gemmtune {

// One step of the reduction tree below: folds every block of Block lanes of x, then of y, in half.
template <int Block, typename T, int N, int... I>
GEMMTUNE_INLINE Vec<T, N> fold(Vec<T, N> x, Vec<T, N> y, std::integer_sequence<int, I...>) {
  constexpr int H = Block / 2;
  return __builtin_shufflevector(x, y, (I / (N / 2) * N + I % (N / 2) / H * Block + I % H)...) +
         __builtin_shufflevector(x, y, (I / (N / 2) * N + I % (N / 2) / H * Block + I % H + H)...);
}

// Lane i of the result is the sum of the lanes of vectors[i]. Takes about 3 operations per vector.
template <int Block, typename T, int N>
GEMMTUNE_INLINE void horizontal_sums(Vec<T, N> *vectors) {
  if constexpr (Block > 1) {
#pragma GCC unroll 16
    for (int i = 0; i < Block / 2; ++i)
      vectors[i] = fold<Block, T, N>(vectors[2 * i], vectors[2 * i + 1],
                                     std::make_integer_sequence<int, N>{});
    horizontal_sums<Block / 2, T, N>(vectors);
  }
}

template <typename A, typename B, typename C, typename D, typename Bias, typename Acc, int RM,
          int NB, typename Policy>
class StreamGemm {
  using OpA = Operand<Policy, A, Acc, true>;
  using OpB = Operand<Policy, B, Acc, false>;
  using Packed = typename OpA::Packed;
  using Finish = Epilogue<C, D, Bias, Acc>;
  using Sums = Vec<Acc, lanes<Acc>>;

  static constexpr int L = lanes<Acc>, G = Policy::group;
  static constexpr int64_t kMaxColumns = 64;

  // The GEMM with the large operand as A.
  struct Problem {
    bool mirrored, a_along_k, b_along_k;
    int64_t m, n, lda, ldb, stride_a, stride_b;
    const void *a, *b;

    explicit Problem(const GemmArgs &args)
        : mirrored(std::is_same_v<A, B> && args.n > args.m),
          a_along_k(args.trans_a != 0), b_along_k(args.trans_b == 0), m(args.m), n(args.n),
          lda(args.lda), ldb(args.ldb), stride_a(args.stride_a), stride_b(args.stride_b),
          a(args.a), b(args.b) {
      if (!mirrored) return;
      std::swap(a_along_k, b_along_k);
      std::swap(m, n);
      std::swap(lda, ldb);
      std::swap(stride_a, stride_b);
      std::swap(a, b);
    }
  };

 public:
  using Accumulator = Acc;
  static bool supports(const GemmArgs &args) { return Problem(args).n <= kMaxColumns; }

  struct Plan {
    Problem problem;
    Grid grid;
    int64_t tile_rows, row_tiles, mc, kc, prefetch, groups;
    int64_t bytes_b, bytes_offsets, bytes_strip, bytes_turned;

    explicit Plan(const GemmArgs &args) : problem(args) {
      tile_rows = problem.a_along_k ? RM : RM * L;
      row_tiles = divide_up(problem.m, tile_rows);
      grid = choose_grid(args.threads, args.batch, row_tiles, 1, tile_rows, 1, problem.m, L * G);
      mc = balanced_block(divide_up(row_tiles, grid.rows) * tile_rows, args.mc, tile_rows);
      kc = balanced_block(args.k, args.kc, L * G);
      prefetch = least(args.nc, 1 << 20);
      groups = round_up(divide_up(args.k, G), L);
      bytes_b = round_up(problem.n * groups * int64_t(sizeof(Packed)), 64);
      bytes_offsets = Policy::offset ? round_up(problem.n * 4, 64) : 0;
      bytes_strip = round_up(round_up(mc, L) * problem.n * int64_t(sizeof(Acc)), 64);
      bytes_turned =
          problem.mirrored ? round_up(mc * round_up(problem.n, L) * int64_t(sizeof(Acc)), 64) : 0;
    }
    int64_t teams() const { return grid.batches; }
    int64_t bytes() const {
      return teams() * bytes_b + grid.used() * (bytes_offsets + bytes_strip + bytes_turned);
    }
  };

  static void work(const GemmArgs &args, const Plan &plan, Barrier *barriers, char *base,
                   int32_t thread) {
    const Problem &problem = plan.problem;
    const int64_t team = thread / plan.grid.rows, member = thread % plan.grid.rows;
    const int32_t members = int32_t(plan.grid.rows);
    Barrier &barrier = barriers[team];
    Packed *packed_b = reinterpret_cast<Packed *>(base + team * plan.bytes_b);
    base += plan.teams() * plan.bytes_b;
    int32_t *offsets = reinterpret_cast<int32_t *>(base + team * members * plan.bytes_offsets);
    base += plan.grid.used() * plan.bytes_offsets;
    Acc *strip = reinterpret_cast<Acc *>(base + thread * plan.bytes_strip);
    base += plan.grid.used() * plan.bytes_strip;
    Acc *turned = reinterpret_cast<Acc *>(base + thread * plan.bytes_turned);

    const Range batches = share(args.batch, plan.grid.batches, team);
    const Range tiles = share(plan.row_tiles, members, member);
    const int64_t row_end = least(tiles.end * plan.tile_rows, problem.m);
    for (int64_t batch = batches.begin; batch < batches.end; ++batch) {
      const A *a = static_cast<const A *>(problem.a) + batch * problem.stride_a;
      const Finish finish(args, batch);
      barrier.wait(members);  // all members are done with the previous op(B)
      pack_b(plan, static_cast<const B *>(problem.b) + batch * problem.stride_b, args.k,
             share(plan.groups / L, members, member), packed_b,
             offsets + member * plan.bytes_offsets / 4);
      barrier.wait(members);
      for (int64_t row = tiles.begin * plan.tile_rows; row < row_end; row += plan.mc) {
        const int64_t rows = least(plan.mc, row_end - row), ld = round_up(rows, L);
        start(strip, ld, problem.n, offsets, plan.bytes_offsets / 4, members);
        if (problem.a_along_k) {
          along_k(plan, a + row * problem.lda, rows, args.k, packed_b, strip, ld);
        } else {
          across_k(plan, a + row, rows, args.k, packed_b, strip, ld);
        }
        if (problem.mirrored) {
          const int64_t ld_turned = round_up(problem.n, L);
          for (int64_t j = 0; j < rows; ++j)
            for (int64_t i = 0; i < ld_turned; ++i)
              turned[i + j * ld_turned] = i < problem.n ? strip[j + i * ld] : Acc(0);
          finish.scale(turned, ld_turned, 0, row, problem.n, rows);
          finish.finish(turned, ld_turned, 0, row, problem.n, rows);
        } else {
          finish.scale(strip, ld, row, 0, rows, problem.n);
          finish.finish(strip, ld, row, 0, rows, problem.n);
        }
      }
    }
  }

 private:
  // Column blocks are NB wide; the remainder uses the widths NB/2, NB/4, ..., 1.
  template <int W = NB, typename Body>
  static GEMMTUNE_INLINE void column_blocks(int64_t n, int64_t first, const Body &body) {
    for (; first + W <= n; first += W) body(first, std::integral_constant<int, W>{});
    if constexpr (W > 1) column_blocks<W / 2>(n, first, body);
  }

  // Packs this member's vectors of k. A block of W columns is laid out as [k][W][vector along k]
  // for the dot products and as [k][W] for the axpys.
  static void pack_b(const Plan &plan, const B *b, int64_t k, Range vectors, Packed *packed_b,
                     int32_t *offsets) {
    const Problem &problem = plan.problem;
    column_blocks(problem.n, 0, [&](int64_t first, auto width) {
      constexpr int W = decltype(width)::value;
      Packed *block = packed_b + first * plan.groups;
      for (int j = 0; j < W; ++j) {
        alignas(64) int32_t sums[L] = {};
        for (int64_t v = vectors.begin; v < vectors.end; ++v) {
          const int64_t p = v * L * G, rest = k - p;
          Vec<Packed, L> vector;
          if (problem.b_along_k) {
            const B *from = b + (first + j) * problem.ldb + p;
            vector = rest >= L * G ? OpB::template along_k<L>(from)
                                   : OpB::template along_k<L>(from, rest);
          } else {
            B gathered[L * G] = {};
            for (int64_t i = 0; i < L * G && i < rest; ++i)
              gathered[i] = b[(p + i) * problem.ldb + first + j];
            vector = OpB::template along_k<L>(gathered);
          }
          if constexpr (Policy::offset) {
            alignas(64) Packed quads[L];
            std::memcpy(quads, &vector, sizeof(vector));
            Policy::template add_quads<L>(sums, quads);
          }
          if (problem.a_along_k) {
            std::memcpy(block + (v * W + j) * L, &vector, sizeof(vector));
          } else {
            for (int i = 0; i < L; ++i) block[(v * L + i) * W + j] = vector[i];
          }
        }
        if constexpr (Policy::offset) {
          uint32_t sum = 0;
          for (int i = 0; i < L; ++i) sum += uint32_t(sums[i]);
          offsets[first + j] = int32_t(-128u * sum);
        }
      }
    });
  }

  // Initialises the strip of sums: to zero, or to the correction of Int8Dot's offset.
  static void start(Acc *strip, int64_t ld, int64_t n, const int32_t *offsets, int64_t ld_offsets,
                    int32_t members) {
    for (int64_t j = 0; j < n; ++j) {
      Acc value = 0;
      if constexpr (Policy::offset) {
        uint32_t sum = 0;
        for (int32_t i = 0; i < members; ++i) sum += uint32_t(offsets[i * ld_offsets + j]);
        value = Acc(sum);
      }
      for (int64_t i = 0; i < ld; ++i) strip[i + j * ld] = value;
    }
  }

  static void along_k(const Plan &plan, const A *a, int64_t rows, int64_t k, const Packed *packed_b,
                      Acc *strip, int64_t ld) {
    const int64_t n = plan.problem.n, lda = plan.problem.lda;
    alignas(64) Sums sums[kMaxColumns * RM + L];
    const int64_t count = n * RM, padded = round_up(count, L);
    const int64_t distance = plan.prefetch / int64_t(sizeof(A));
    for (int64_t row = 0; row < rows; row += RM) {
      const A *lines[RM];  // past the end, the last row is repeated: computed, but never stored
      for (int64_t r = 0; r < RM; ++r) lines[r] = a + least(row + r, rows - 1) * lda;
      for (int64_t i = 0; i < padded; ++i) sums[i] = Sums{};
      for (int64_t p = 0; p < k; p += plan.kc) {
        const int64_t depth = least(plan.kc, k - p);
        // Past the end of these rows, prefetching continues at the start of the next rows.
        const int64_t ahead = p + distance < k ? distance : distance - k + RM * lda;
        column_blocks(n, 0, [&](int64_t first, auto width) {
          constexpr int W = decltype(width)::value;
          dots<W>(lines, p, depth, first == 0 ? ahead : 0,
                  packed_b + first * plan.groups + p / G * W, sums + first * RM);
        });
      }
      const int64_t tile = least(RM, rows - row);
      for (int64_t i = 0; i < padded; i += L) {
        horizontal_sums<L, Acc, L>(sums + i);
        for (int64_t l = 0; l < L && i + l < count; ++l) {
          const int64_t column = (i + l) / RM, r = (i + l) % RM;
          if (r < tile) strip[row + r + column * ld] += sums[i][l];
        }
      }
    }
  }

  template <int W>
  static __attribute__((noinline)) void dots(const A *const *rows, int64_t p, int64_t depth,
                                             int64_t ahead, const Packed *b, Sums *sums) {
    const A *lines[RM];
    Sums tile[W][RM];
#pragma GCC unroll 16
    for (int r = 0; r < RM; ++r) lines[r] = rows[r] + p;
#pragma GCC unroll 16
    for (int j = 0; j < W; ++j)
#pragma GCC unroll 16
      for (int r = 0; r < RM; ++r) tile[j][r] = sums[j * RM + r];
    const auto step = [&](const auto &load_line) GEMMTUNE_LAMBDA_INLINE {
      Vec<Packed, L> vectors[RM];
#pragma GCC unroll 16
      for (int r = 0; r < RM; ++r) vectors[r] = load_line(r);
#pragma GCC unroll 16
      for (int j = 0; j < W; ++j) {
        const auto factor = load_bits<Vec<Packed, L>>(b + j * L);
#pragma GCC unroll 16
        for (int r = 0; r < RM; ++r)
          tile[j][r] = Policy::template multiply_add<Acc, L>(tile[j][r], vectors[r], factor);
      }
      b += W * L;
    };
    int64_t i = 0;
#pragma GCC unroll 2
    for (; i + L * G <= depth; i += L * G) {
      step([&](int r) GEMMTUNE_LAMBDA_INLINE {
        __builtin_prefetch(lines[r] + i + ahead, 0, 2);
        return OpA::template along_k<L>(lines[r] + i);
      });
    }
    if (i < depth)
      step([&](int r) { return OpA::template along_k<L>(lines[r] + i, depth - i); });
#pragma GCC unroll 16
    for (int j = 0; j < W; ++j)
#pragma GCC unroll 16
      for (int r = 0; r < RM; ++r) sums[j * RM + r] = tile[j][r];
  }

  static void across_k(const Plan &plan, const A *a, int64_t rows, int64_t k,
                       const Packed *packed_b, Acc *strip, int64_t ld) {
    const int64_t n = plan.problem.n, lda = plan.problem.lda;
    for (int64_t p = 0; p < k; p += plan.kc) {
      const int64_t depth = least(plan.kc, k - p);
      for (int64_t row = 0; row < rows;) {
        const int64_t left = rows - row, tile = left >= RM * L ? RM * L : L;
        // Prefetch the next tile in these columns of A, or the first tile of the next columns.
        const int64_t ahead = row + tile < rows ? tile : plan.kc * lda - row;
        column_blocks(n, 0, [&](int64_t first, auto width) {
          constexpr int W = decltype(width)::value;
          const A *from = a + row + p * lda;
          const Packed *b = packed_b + first * plan.groups + p / G * W;
          Acc *sums = strip + row + first * ld;
          if (left >= RM * L) {
            axpys<W, RM, false>(from, lda, L, depth, first == 0 ? ahead : 0, b, sums, ld);
          } else if (left >= L) {
            axpys<W, 1, false>(from, lda, L, depth, first == 0 ? ahead : 0, b, sums, ld);
          } else {
            axpys<W, 1, true>(from, lda, left, depth, 0, b, sums, ld);
          }
        });
        row += tile;
      }
    }
  }

  template <int W, int V, bool Partial>
  static __attribute__((noinline)) void axpys(const A *a, int64_t lda, int64_t width, int64_t depth,
                                              int64_t ahead, const Packed *b, Acc *sums,
                                              int64_t ld) {
    Sums tile[W][V];
#pragma GCC unroll 16
    for (int j = 0; j < W; ++j)
#pragma GCC unroll 16
      for (int i = 0; i < V; ++i) tile[j][i] = load_bits<Sums>(sums + i * L + j * ld);
    const auto step = [&](const auto &load_vector) GEMMTUNE_LAMBDA_INLINE {
      Vec<Packed, L> vectors[V];
#pragma GCC unroll 16
      for (int i = 0; i < V; ++i) vectors[i] = load_vector(i);
#pragma GCC unroll 16
      for (int j = 0; j < W; ++j) {
        const Vec<Packed, L> factor = splat<Packed, L>(b[j]);
#pragma GCC unroll 16
        for (int i = 0; i < V; ++i)
          tile[j][i] = Policy::template multiply_add<Acc, L>(tile[j][i], vectors[i], factor);
      }
      b += W;
    };
    int64_t p = 0;
    for (; p + G <= depth; p += G, a += G * lda) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g)
#pragma GCC unroll 16
        for (int i = 0; i < V * L; i += 64 / int(sizeof(A)))
          __builtin_prefetch(a + g * lda + i + ahead, 0, 2);
      step([&](int i) GEMMTUNE_LAMBDA_INLINE {
        if constexpr (Partial) return OpA::template across_k<L>(a, lda, width, G);
        else return OpA::template across_k<L>(a + i * L, lda);
      });
    }
    if (p < depth)
      step([&](int i) { return OpA::template across_k<L>(a + i * L, lda, width, depth - p); });
#pragma GCC unroll 16
    for (int j = 0; j < W; ++j)
#pragma GCC unroll 16
      for (int i = 0; i < V; ++i)
        std::memcpy(sums + i * L + j * ld, &tile[j][i], sizeof(tile[j][i]));
  }
};

}  // namespace gemmtune

// DOT is Upcast, Bf16Dot or Int8Dot (operand.h).
#define GEMMTUNE_STREAM(A, B, C, D, BIAS, ACC, RM, NB, DOT)           \
  namespace gemmtune {                                                \
  using Kernel = StreamGemm<A, B, C, D, BIAS, ACC, RM, NB, DOT>;      \
  }                                                                   \
  GEMMTUNE_EXPORT(gemmtune::Kernel)

#endif
