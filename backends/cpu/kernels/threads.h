// Divides a GEMM among threads without a scheduler: every thread computes its share from its index.
// Threads of a team share packed panels and synchronize at a barrier.
#ifndef GEMMTUNE_THREADS_H
#define GEMMTUNE_THREADS_H

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace gemmtune {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// A block size that divides `extent` into about equal blocks: a multiple of `unit`, at most `limit`
// but at least one unit.
inline int64_t balanced_block(int64_t extent, int64_t limit, int64_t unit) {
  const int64_t units = divide_up(extent, unit);
  int64_t most = limit / unit;
  if (most < 1) most = 1;
  return divide_up(units, divide_up(units, most)) * unit;
}

struct Range {
  int64_t begin, end;
};
inline Range share(int64_t extent, int64_t parts, int64_t index) {
  return {extent * index / parts, extent * (index + 1) / parts};
}

// The barrier of one team. It spins, since the threads arrive at about the same time, and yields
// after a while in case there are more threads than cores.
struct alignas(64) Barrier {
  std::atomic<int32_t> arrived{0};
  std::atomic<int32_t> phase{0};

  void wait(int32_t team) {
    if (team == 1) return;
    const int32_t now = phase.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == team) {
      arrived.store(0, std::memory_order_relaxed);
      phase.store(now + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase.load(std::memory_order_acquire) == now; ++spins) {
      if (spins >= 4096) sched_yield();
#if defined(__x86_64__)
      else __builtin_ia32_pause();
#endif
    }
  }
};

// Threads form a batches x columns x rows grid. The `rows` threads of one batch and column range
// are a team: they share op(B)'s panels, and each owns its rows.
struct Grid {
  int64_t batches, columns, rows;
  int64_t used() const { return batches * columns * rows; }
};

// The grid with the least cost in a simple model: the vector multiply-adds of the busiest thread
// plus its packing (its own rows of A and its share of the team's columns of B). `all_rows` may be
// less than the total of the row tiles, since the last tile's micro-kernel may be shorter.
inline Grid choose_grid(int64_t threads, int64_t batch, int64_t row_tiles, int64_t column_tiles,
                        int64_t tile_rows, int64_t tile_columns, int64_t all_rows, int64_t lanes) {
  Grid best = {1, 1, 1};
  int64_t least_cost = INT64_MAX;
  for (int64_t b = least(threads, batch); b >= 1; --b) {
    for (int64_t r = least(threads / b, row_tiles); r >= 1; --r) {
      const int64_t c = least(threads / (b * r), column_tiles);
      const int64_t rows = least(divide_up(row_tiles, r) * tile_rows, all_rows);
      const int64_t columns = divide_up(column_tiles, c) * tile_columns;
      const int64_t cost =
          divide_up(batch, b) * (rows * columns / lanes + rows + divide_up(columns, r));
      if (cost < least_cost) {
        least_cost = cost;
        best = {b, c, r};
      }
    }
  }
  return best;
}

}  // namespace gemmtune

#endif
