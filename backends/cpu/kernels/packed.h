// Packed, cache-blocked GEMM: the algorithm of Goto & van de Geijn (Anatomy of High-Performance
// Matrix Multiplication, ACM TOMS 34(3), 2008) in the five loops of BLIS (Van Zee & van de Geijn,
// ACM TOMS 41(3), 2015).
//
// For a block of NC columns and KC of k, op(B) is packed into panels of NR columns (L3). For a
// block of MC rows, op(A) is packed into panels of MR rows (L2). The micro-kernel multiplies an A
// panel by a B panel (L1) and keeps an MR x NR tile of sums in registers. Block sizes (mc, nc, kc)
// are run-time parameters, rounded to MR, NR and the dot group and evened out over the extents.
//
// All threads of a team pack op(B)'s panels together and own disjoint rows. With several k blocks,
// sums are kept in D if it has the accumulator's type, else in the workspace, and are rounded once.
//
// Returns GEMMTUNE_UNSUPPORTED only for int32 sums with gelu, silu, or a fractional alpha or beta.
#ifndef GEMMTUNE_PACKED_H
#define GEMMTUNE_PACKED_H

#include "abi.h"
#include "epilogue.h"
#include "launch.h"
#include "operand.h"
#include "threads.h"

namespace gemmtune {

// Packs `width` <= W lines of `depth` elements along k into a panel of W packed elements per group
// of k. Lines past `width` have undefined values, since their sums are never stored. k is padded
// with zeros.
template <typename Op, int W, typename T>
void pack_panel(typename Op::Packed *panel, const T *from, int64_t ld, bool k_contiguous,
                int64_t width, int64_t depth) {
  using Packed = typename Op::Packed;
  constexpr int G = Op::G, L = lanes<Packed>;
  constexpr int N = W >= L ? L : W >= 8 ? 8 : W >= 4 ? 4 : 2;
  static_assert(W >= N, "panels are at least 2 wide");
  const int64_t groups = divide_up(depth, G);
  if (k_contiguous) {
    // Chunks of N lines; the last overlaps the previous one if N does not divide W.
    for (int64_t chunk = 0; chunk < W; chunk += N) {
      const int64_t first = chunk + N <= W ? chunk : W - N;
      const T *lines[N];
      for (int j = 0; j < N; ++j) lines[j] = from + least(first + j, width - 1) * ld;
      for (int64_t p = 0; p < groups; p += N) {
        const int64_t rest = depth - p * G;
        Vec<Packed, N> rows[N];
        if (rest >= N * G) {
#pragma GCC unroll 16
          for (int j = 0; j < N; ++j) rows[j] = Op::template along_k<N>(lines[j] + p * G);
        } else {
          for (int j = 0; j < N; ++j) rows[j] = Op::template along_k<N>(lines[j] + p * G, rest);
        }
        transpose<Packed, N>(rows);
        Packed *to = panel + p * W + first;
        const int64_t count = groups - p < N ? groups - p : N;
        if (count == N) {
#pragma GCC unroll 16
          for (int j = 0; j < N; ++j) std::memcpy(to + j * W, &rows[j], sizeof(rows[j]));
        } else {
          for (int j = 0; j < count; ++j) std::memcpy(to + j * W, &rows[j], sizeof(rows[j]));
        }
      }
    }
    return;
  }
  for (int64_t p = 0; p < groups; ++p) {
    const T *line = from + p * G * ld;
    Packed *to = panel + p * W;
    const bool whole = (p + 1) * G <= depth;
#pragma GCC unroll 4
    for (int chunk = 0; chunk < W; chunk += N) {
      const int first = chunk + N <= W ? chunk : W - N;
      const T *chunk_line = line + first;
      const auto row = whole && first + N <= width
                           ? Op::template across_k<N>(chunk_line, ld)
                           : Op::template across_k<N>(chunk_line, ld, width - first, depth - p * G);
      std::memcpy(to + first, &row, sizeof(row));
    }
  }
}

template <typename A, typename B, typename C, typename D, typename Bias, typename Acc, int MR,
          int NR, typename Policy>
class PackedGemm {
  using OpA = Operand<Policy, A, Acc, true>;
  using OpB = Operand<Policy, B, Acc, false>;
  using Packed = typename OpA::Packed;
  using Finish = Epilogue<C, D, Bias, Acc>;

  static constexpr int L = lanes<Acc>, G = Policy::group;
  static constexpr int kHead = Policy::offset ? NR : 0;  // elements for a B panel's column sums
  static constexpr bool kSumsInD = std::is_same_v<D, Acc>;
  static_assert(MR % L == 0, "MR is a whole number of vectors");

 public:
  using Accumulator = Acc;
  static bool supports(const GemmArgs &) { return true; }

  // Block sizes, the thread grid, and the bytes of workspace per team and per thread.
  struct Plan {
    Grid grid;
    int64_t row_tiles, column_tiles, mc, nc, kc, panel_b, bytes_b, bytes_a, bytes_sums;

    explicit Plan(const GemmArgs &args) {
      row_tiles = divide_up(args.m, MR);
      column_tiles = divide_up(args.n, NR);
      grid = choose_grid(args.threads, args.batch, row_tiles, column_tiles, MR, NR,
                         round_up(args.m, L), L * G);
      const int64_t rows = divide_up(row_tiles, grid.rows) * MR;
      mc = balanced_block(rows, args.mc, MR);
      nc = balanced_block(divide_up(column_tiles, grid.columns) * NR, args.nc, NR);
      kc = balanced_block(args.k, args.kc, G);
      panel_b = kHead + kc / G * NR;
      bytes_b = round_up(nc / NR * panel_b * int64_t(sizeof(Packed)), 64);
      bytes_a = round_up(mc * (kc / G) * int64_t(sizeof(Packed)), 64);
      bytes_sums = kSumsInD || kc >= args.k ? 0 : round_up(rows * nc * int64_t(sizeof(Acc)), 64);
    }
    int64_t teams() const { return grid.batches * grid.columns; }
    int64_t bytes() const {
      return teams() * bytes_b + grid.used() * (bytes_a + bytes_sums);
    }
  };

  static void work(const GemmArgs &args, const Plan &plan, Barrier *barriers, char *base,
                   int32_t thread) {
    const int64_t team = thread / plan.grid.rows, member = thread % plan.grid.rows;
    Barrier &barrier = barriers[team];
    Packed *panels_b = reinterpret_cast<Packed *>(base + team * plan.bytes_b);
    base += plan.teams() * plan.bytes_b;
    Packed *panels_a = reinterpret_cast<Packed *>(base + thread * plan.bytes_a);
    base += plan.grid.used() * plan.bytes_a;
    Acc *sums = reinterpret_cast<Acc *>(base + thread * plan.bytes_sums);

    const Range batches = share(args.batch, plan.grid.batches, team / plan.grid.columns);
    const Range columns = share(plan.column_tiles, plan.grid.columns, team % plan.grid.columns);
    const Range rows = share(plan.row_tiles, plan.grid.rows, member);
    const int64_t column_end = least(columns.end * NR, args.n), row_begin = rows.begin * MR,
                  row_end = least(rows.end * MR, args.m);
    const int32_t members = int32_t(plan.grid.rows);

    for (int64_t batch = batches.begin; batch < batches.end; ++batch) {
      const A *a = static_cast<const A *>(args.a) + batch * args.stride_a;
      const B *b = static_cast<const B *>(args.b) + batch * args.stride_b;
      const Finish finish(args, batch);
      for (int64_t jc = columns.begin * NR; jc < column_end; jc += plan.nc) {
        const int64_t nc = least(plan.nc, column_end - jc);
        for (int64_t pc = 0; pc < args.k; pc += plan.kc) {
          const int64_t kc = least(plan.kc, args.k - pc);
          barrier.wait(members);  // all members are done with the previous panels
          const Range panels = share(divide_up(nc, NR), members, member);
          for (int64_t j = panels.begin; j < panels.end; ++j) {
            const int64_t column = jc + j * NR;
            pack_b(panels_b + j * plan.panel_b,
                   b + (args.trans_b ? column + pc * args.ldb : pc + column * args.ldb), args,
                   least(NR, args.n - column), kc);
          }
          barrier.wait(members);
          for (int64_t ic = row_begin; ic < row_end; ic += plan.mc) {
            const int64_t mc = least(plan.mc, row_end - ic);
            const int64_t panel_a = divide_up(kc, G) * MR;
            for (int64_t i = 0; i < mc; i += MR) {
              pack_panel<OpA, MR>(
                  panels_a + i / MR * panel_a,
                  a + (args.trans_a ? pc + (ic + i) * args.lda : ic + i + pc * args.lda), args.lda,
                  args.trans_a != 0, least(MR, mc - i), kc);
            }
            const Block block = {ic, jc, mc, nc, kc, pc == 0, pc + kc == args.k};
            // In the workspace, tiles of partial sums are ordered by rows, then by columns.
            multiply(block, panels_a, panels_b, plan.panel_b,
                     sums + (ic - row_begin) * divide_up(nc, NR) * NR, finish);
          }
        }
      }
    }
  }

 private:
  struct Block {
    int64_t ic, jc, mc, nc, kc;
    bool first, last;  // of the k blocks
  };

  // The two loops around the micro-kernel: a B panel stays in L1 while all A panels pass.
  static void multiply(const Block &block, const Packed *panels_a, const Packed *panels_b,
                       int64_t panel_b, Acc *sums, const Finish &finish) {
    const int64_t groups = divide_up(block.kc, G);
    for (int64_t j = 0; j < block.nc; j += NR, panels_b += panel_b) {
      const int64_t columns = least(NR, block.nc - j);
      const Packed *a = panels_a;
      for (int64_t i = 0; i < block.mc; i += MR, a += groups * MR, sums += kSumsInD ? 0 : MR * NR) {
        const int64_t rows = least(MR, block.mc - i);
        alignas(64) Acc tile[MR * NR];
        D *d = finish.at(block.ic + i, block.jc + j);
        for (int64_t c = 0; c < columns; ++c)
          for (int64_t r = 0; r < rows; r += 64 / int64_t(sizeof(D)))
            __builtin_prefetch(d + r + c * finish.ldd(), 1);
        micro_kernel<MR / L>(rows, groups, a, panels_b, tile);
        store_tile(block, tile, block.ic + i, block.jc + j, rows, columns, sums, finish);
      }
    }
  }

  static void store_tile(const Block &block, Acc *tile, int64_t row, int64_t column, int64_t rows,
                         int64_t columns, Acc *sums, const Finish &finish) {
    Acc *partial = sums;
    int64_t ld = MR;
    if constexpr (kSumsInD) {
      partial = finish.at(row, column);
      ld = finish.ldd();
    }
    if (block.first) {
      finish.scale(tile, MR, row, column, rows, columns);
    } else {
      finish.add(tile, MR, partial, ld, rows, columns);
    }
    if (block.last) {
      finish.finish(tile, MR, row, column, rows, columns);
    } else {
      Finish::save(tile, MR, partial, ld, rows, columns);
    }
  }

  // Computes V vectors of rows by NR columns; the last tile of a block may have fewer vectors.
  template <int V>
  static GEMMTUNE_INLINE void micro_kernel(int64_t rows, int64_t groups, const Packed *a,
                                           const Packed *b, Acc *tile) {
    if constexpr (V > 1) {
      if (rows <= (V - 1) * L) return micro_kernel<V - 1>(rows, groups, a, b, tile);
    }
    micro_kernel<V>(groups, a, b, tile);
  }

  template <int V>
  static __attribute__((noinline)) void micro_kernel(int64_t groups, const Packed *a,
                                                     const Packed *b, Acc *tile) {
    Vec<Acc, L> sums[NR][V];
#pragma GCC unroll 32
    for (int j = 0; j < NR; ++j) {
      Acc start = 0;
      if constexpr (Policy::offset) start = bit_cast<Acc>(b[j]);
#pragma GCC unroll 8
      for (int i = 0; i < V; ++i) sums[j][i] = splat<Acc, L>(start);
    }
    b += kHead;
#pragma GCC unroll 4
    for (int64_t p = 0; p < groups; ++p) {
      Vec<Packed, L> column[V];
#pragma GCC unroll 8
      for (int i = 0; i < V; ++i) column[i] = load_bits<Vec<Packed, L>>(a + i * L);
#pragma GCC unroll 32
      for (int j = 0; j < NR; ++j) {
        const Vec<Packed, L> factor = splat<Packed, L>(b[j]);
#pragma GCC unroll 8
        for (int i = 0; i < V; ++i)
          sums[j][i] = Policy::template multiply_add<Acc, L>(sums[j][i], column[i], factor);
      }
      a += MR;
      b += NR;
    }
#pragma GCC unroll 32
    for (int j = 0; j < NR; ++j)
#pragma GCC unroll 8
      for (int i = 0; i < V; ++i)
        std::memcpy(tile + j * MR + i * L, &sums[j][i], sizeof(sums[j][i]));
  }

  static void pack_b(Packed *panel, const B *from, const GemmArgs &args, int64_t width,
                     int64_t depth) {
    pack_panel<OpB, NR>(panel + kHead, from, args.ldb, args.trans_b == 0, width, depth);
    if constexpr (Policy::offset) {
      int32_t sums[NR] = {};
      for (int64_t p = 0; p < divide_up(depth, G); ++p)
        Policy::template add_quads<NR>(sums, panel + kHead + p * NR);
      for (int j = 0; j < NR; ++j) panel[j] = -128u * uint32_t(sums[j]);
    }
  }
};

}  // namespace gemmtune

// DOT is Upcast, Bf16Dot or Int8Dot (operand.h).
#define GEMMTUNE_PACKED(A, B, C, D, BIAS, ACC, MR, NR, DOT)            \
  namespace gemmtune {                                                 \
  using Kernel = PackedGemm<A, B, C, D, BIAS, ACC, MR, NR, DOT>;       \
  }                                                                    \
  GEMMTUNE_EXPORT(gemmtune::Kernel)

#endif
