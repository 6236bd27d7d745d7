// GEMMs with few columns of B (1 to 16) on FMAs. Memory bandwidth is the bound, so A is read once.
//
// SkinnyAlongK: A is contiguous along k (F.linear's weight). A warp has ROWS rows of A. Its lanes traverse k
// side by side, 16 bytes each, with UNROLL loads issued before the first is used; a value of B is loaded once
// for all of the warp's rows. WARPS_M warps have different rows; WARPS_K warps share the same rows, a slice of
// k each. SkinnyAcrossK: A is contiguous along m. A lane has the rows of one load (16 bytes; fewer if there are
// many columns, whose sums need the registers) and traverses k, UNROLL steps at a time.
//
// ALIGNED: every line of A, and of B if contiguous along k, starts at a multiple of 16 bytes; otherwise loads
// are assembled (unaligned_loads.h: load_any()). WHOLE: in addition lines consist of whole loads; otherwise
// they are loaded by elements. COLUMNS is n rounded up to a power of two. k may also be split among blocks
// (grid.y; epilogue.h: Reduce).
#pragma once

#include "device/unaligned_loads.h"

namespace gemmtune {

template <typename TYPES, bool B_ALONG_K, bool ALIGNED, int COLUMNS, int ROWS, int UNROLL, int WARPS_M,
          int WARPS_K, bool AHEAD>
struct SkinnyAlongK {
    using T = typename TYPES::Input;
    static constexpr int kThreads = kWarp * WARPS_M * WARPS_K, kMinBlocks = 0;
    static constexpr int kRows = ROWS * WARPS_M;  // rows of a block
    static constexpr int kSums = ROWS * COLUMNS;  // sums of a warp
    static constexpr int kSharedBytes = WARPS_K == 1 ? 0 : WARPS_K * WARPS_M * kSums * 4;
    static constexpr int V = kChunk<T>, kStep = kWarp * UNROLL;  // elements in a load; loads of a row in a step

    // Before the previous launch has ended a warp computes its row addresses and, with AHEAD, prefetches the
    // first step's loads of A to L2.
    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Task task(args);
        const bool beyond = task.beyond(args);
        const T* row[ROWS];
        find_rows(args, task, warp_index() % WARPS_M, row);
        const Slice<V> mine(args, task, chunks(args));
        if (AHEAD && !beyond) fetch_first(row, mine);
        wait_for_launches();
        if (!beyond) product(args, task, row, mine, shared);
    }

private:
    // The number of whole loads in a line.
    static GEMMTUNE_DEVICE unsigned chunks(const GemmArgs& args) { return static_cast<unsigned>(args.k) / V; }

    // A warp's rows. Those beyond the last are read as the last, and not stored.
    static GEMMTUNE_DEVICE void find_rows(const GemmArgs& args, Task task, int warp_m,
                                          const T* (&row)[ROWS]) {
        const unsigned first = block_x() * kRows + warp_m * ROWS, most = static_cast<unsigned>(args.m) - 1;
        const T* const a = static_cast<const T*>(args.a) + task.batch * args.stride_a;
        GEMMTUNE_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const unsigned i = first + r;
            row[r] = a + (i < most ? i : most) * args.lda;
        }
    }

    static GEMMTUNE_DEVICE void fetch_first(const T* const (&row)[ROWS], Slice<V> mine) {
        const int at = mine.begin + warp_index() / WARPS_M * kStep + lane_index();
        GEMMTUNE_UNROLL
        for (int u = 0; u < UNROLL; ++u) {
            if (at + u * kWarp >= mine.end) break;
            GEMMTUNE_UNROLL
            for (int r = 0; r < ROWS; ++r) prefetch_l2(row[r] + (at + static_cast<i64>(u) * kWarp) * V);
        }
    }

    static GEMMTUNE_DEVICE void product(const GemmArgs& args, Task task, const T* const (&row)[ROWS],
                                        Slice<V> mine, char* shared) {
        const int lane = lane_index(), warp = warp_index();
        const int warp_m = warp % WARPS_M, warp_k = warp / WARPS_M;
        const T* const b = static_cast<const T*>(args.b) + task.batch * args.stride_b;
        float sum[kSums] = {};
        for (int at = mine.begin + warp_k * kStep; at < mine.end; at += WARPS_K * kStep) {
            if (mine.end - at >= kStep) step<false>(args, row, b, at + lane, mine.end, sum);
            else step<true>(args, row, b, at + lane, mine.end, sum);
        }
        const i64 last = static_cast<i64>(chunks(args)) * V + lane;  // the elements after the last whole load
        if (last < args.k && warp_k == 0 && task.slice + 1 == static_cast<unsigned>(args.splits)) {
            GEMMTUNE_UNROLL
            for (int c = 0; c < COLUMNS; ++c) {
                if (c >= args.n) continue;
                const float x = widen(B_ALONG_K ? b[last + c * args.ldb] : b[last * args.ldb + c]);
                GEMMTUNE_UNROLL
                for (int r = 0; r < ROWS; ++r) sum[r * COLUMNS + c] += widen(row[r][last]) * x;
            }
        }
        release_reduce(args);
        store(args, task, sum, shared, lane, warp_m, warp_k);
    }

    // One step: UNROLL loads of every row, from load `at` of the line on. EDGE: some may lie at or beyond
    // `end`.
    template <bool EDGE>
    static GEMMTUNE_DEVICE void step(const GemmArgs& args, const T* const (&row)[ROWS], const T* b, int at,
                                     int end, float (&sum)[kSums]) {
        const char* const a_begin = static_cast<const char*>(args.a);
        const char* const b_begin = static_cast<const char*>(args.b);
        Words weights[UNROLL][ROWS];
        GEMMTUNE_UNROLL
        for (int u = 0; u < UNROLL; ++u) {
            const i64 p = (at + static_cast<i64>(u) * kWarp) * V;
            GEMMTUNE_UNROLL
            for (int r = 0; r < ROWS; ++r) {
                if (!EDGE || at + u * kWarp < end)
                    weights[u][r] = load_once<ALIGNED>(row[r] + p, a_begin, a_begin + args.a_bytes);
                else
                    weights[u][r] = Words{{0, 0, 0, 0}};
            }
        }
        GEMMTUNE_UNROLL
        for (int u = 0; u < UNROLL; ++u) {
            if (EDGE && at + u * kWarp >= end) continue;
            const i64 p = (at + static_cast<i64>(u) * kWarp) * V;
            float w[ROWS][V];
            GEMMTUNE_UNROLL
            for (int r = 0; r < ROWS; ++r) unpack<T>(weights[u][r].at, w[r]);
            GEMMTUNE_UNROLL
            for (int c = 0; c < COLUMNS; ++c) {
                if (COLUMNS > 1 && c >= args.n) continue;
                const T* const from = B_ALONG_K ? b + c * args.ldb + p : b + p * args.ldb + c;
                float x[V];
                load_again<B_ALONG_K, ALIGNED>(from, args.ldb, b_begin, b_begin + args.b_bytes, x);
                GEMMTUNE_UNROLL
                for (int r = 0; r < ROWS; ++r) {
                    GEMMTUNE_UNROLL
                    for (int v = 0; v < V; ++v) sum[r * COLUMNS + c] += w[r][v] * x[v];
                }
            }
        }
    }

    static GEMMTUNE_DEVICE void store(const GemmArgs& args, Task task, float (&sum)[kSums], char* shared,
                                      int lane, int warp_m, int warp_k) {
        using Sums = WarpSums<kSums>;
        Sums::run(sum, lane);
        const int index = Sums::index(lane);
        const i64 block_row = static_cast<i64>(block_x()) * kRows;
        const bool speaks = lane % Sums::kSharers == 0;
        if constexpr (WARPS_K == 1) {
            if (!speaks) return;
            GEMMTUNE_UNROLL
            for (int i = 0; i < Sums::kKept; ++i) {
                const int element = index + i;
                const i64 r = block_row + warp_m * ROWS + element / COLUMNS;
                finish_slice<TYPES>(args, task, r, element % COLUMNS, sum[i]);
            }
        } else {
            constexpr int kAll = WARPS_M * kSums;
            float* const parts = reinterpret_cast<float*>(shared);
            if (speaks) {
                GEMMTUNE_UNROLL
                for (int i = 0; i < Sums::kKept; ++i)
                    parts[warp_k * kAll + warp_m * kSums + index + i] = sum[i];
            }
            block_barrier();
            for (int i = static_cast<int>(thread_index()); i < kAll; i += kThreads) {
                float whole = 0.0f;
                GEMMTUNE_UNROLL
                for (int part = 0; part < WARPS_K; ++part) whole += parts[part * kAll + i];
                finish_slice<TYPES>(args, task, block_row + i / COLUMNS, i % COLUMNS, whole);
            }
        }
    }
};

template <typename TYPES, bool B_ALONG_K, bool WHOLE, int COLUMNS, int UNROLL, int WARPS_M, int WARPS_K>
struct SkinnyAcrossK {
    using T = typename TYPES::Input;
    static constexpr int kThreads = kWarp * WARPS_M * WARPS_K, kMinBlocks = 0;
    static constexpr int kWords = COLUMNS <= 4 ? 4 : COLUMNS == 8 ? 2 : 1;  // words of a load
    static constexpr int V = kWords * Word<T>::kElements;                   // rows of a lane
    static constexpr int kRows = kWarp * V * WARPS_M;                       // rows of a block
    static constexpr int kSharedBytes = WARPS_K * kRows * COLUMNS * 4;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Task task(args);
        if (!task.beyond(args)) product(args, task, shared);
    }

private:
    static GEMMTUNE_DEVICE void product(const GemmArgs& args, Task task, char* shared) {
        const int lane = lane_index(), warp = warp_index();
        const int warp_m = warp % WARPS_M, warp_k = warp / WARPS_M;
        const int place = (warp_m * kWarp + lane) * V;  // the lane's first row in the block
        const i64 first = static_cast<i64>(block_x()) * kRows + place, left = args.m - first;
        const int rows = left <= 0 ? 0 : left < V ? static_cast<int>(left) : V;
        const T* const a = static_cast<const T*>(args.a) + task.batch * args.stride_a + first;
        const T* const b = static_cast<const T*>(args.b) + task.batch * args.stride_b;
        const Slice<1> mine(args, task, static_cast<unsigned>(args.k));
        float sum[V * COLUMNS] = {};
        if (rows > 0) walk(args, a, rows, b, mine, warp_k, sum);  // walk() has no exchange between lanes

        release_reduce(args);
        float* const parts = reinterpret_cast<float*>(shared) + warp_k * kRows * COLUMNS;
        GEMMTUNE_UNROLL
        for (int c = 0; c < COLUMNS; ++c) {
            GEMMTUNE_UNROLL
            for (int v = 0; v < V; ++v) parts[c * kRows + v * (kRows / V) + place / V] = sum[v * COLUMNS + c];
        }
        block_barrier();
        for (int i = static_cast<int>(thread_index()); i < kRows * COLUMNS; i += kThreads) {
            // Threads take rows in memory order. In shared memory a lane's rows lie apart, so that the lanes'
            // stores have no bank conflicts.
            const int r = i % kRows, c = i / kRows, at = c * kRows + r % V * (kRows / V) + r / V;
            float whole = 0.0f;
            GEMMTUNE_UNROLL
            for (int part = 0; part < WARPS_K; ++part)
                whole += reinterpret_cast<float*>(shared)[part * kRows * COLUMNS + at];
            finish_slice<TYPES>(args, task, static_cast<i64>(block_x()) * kRows + r, c, whole);
        }
    }

    static GEMMTUNE_DEVICE void walk(const GemmArgs& args, const T* a, int rows, const T* b, Slice<1> mine,
                                     int warp_k, float (&sum)[V * COLUMNS]) {
        const i64 along = B_ALONG_K ? 1 : args.ldb, across = B_ALONG_K ? args.ldb : 1;
        const unsigned end = static_cast<unsigned>(mine.end);  // unsigned: a step beyond it does not overflow
        const unsigned begin = static_cast<unsigned>(mine.begin) + static_cast<unsigned>(warp_k * UNROLL);
        for (unsigned p = begin; p < end; p += WARPS_K * UNROLL) {
            unsigned weights[UNROLL][kWords];
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) {
                if (p + u < end) load(a + (p + static_cast<i64>(u)) * args.lda, rows, weights[u]);
            }
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) {
                if (p + u >= end) continue;
                float w[V];
                unpack<T>(weights[u], w);
                GEMMTUNE_UNROLL
                for (int c = 0; c < COLUMNS; ++c) {
                    if (COLUMNS > 1 && c >= args.n) continue;
                    const float x = widen(b[(p + static_cast<i64>(u)) * along + c * across]);
                    GEMMTUNE_UNROLL
                    for (int v = 0; v < V; ++v) sum[v * COLUMNS + c] += w[v] * x;
                }
            }
        }
    }

    // Loads `rows` elements of a line, or if lines are whole loads all of a load.
    static GEMMTUNE_DEVICE void load(const T* source, int rows, unsigned (&out)[kWords]) {
        if constexpr (WHOLE && kWords == 4) {
            const Words all = stream16(source);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) out[i] = all.at[i];
        } else if constexpr (WHOLE && kWords == 2) {
            stream8(source, out);
        } else if constexpr (WHOLE) {
            out[0] = stream4(source);
        } else {
            T element[V];
            GEMMTUNE_UNROLL
            for (int v = 0; v < V; ++v) element[v] = v < rows ? source[v] : T{};
            GEMMTUNE_UNROLL
            for (int i = 0; i < kWords; ++i) out[i] = Word<T>::pack(element + i * Word<T>::kElements);
        }
    }
};

}  // namespace gemmtune
