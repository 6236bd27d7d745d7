// Matrix times vector, or times a few columns, with persistent blocks; A contiguous along k. The WARPS warps of
// a block span k, UNROLL loads of 16 bytes a thread, so a thread needs the same elements of B in every row: it
// loads them once and keeps them in registers. A block processes ROWS rows at a time in a grid-stride loop, so
// that all blocks together read A from beginning to end, side by side. The next rows are loaded while the
// threads' sums of the current ones are reduced. A GEMV takes microseconds, of which the time before the first
// load and after the last is a good part: both are kept short.
//
// COLUMNS: n rounded up to a power of two. FULL: every thread has all of its UNROLL loads of a row; otherwise
// some lack the last one. AHEAD: the first loads are prefetched to L2 before the previous launch has ended.
#pragma once

#include "device/unaligned_loads.h"

namespace gemmtune {

template <typename TYPES, bool B_ALONG_K, bool FULL, int COLUMNS, int ROWS, int UNROLL, int WARPS, bool AHEAD>
struct GemvPersistent {
    using T = typename TYPES::Input;
    static constexpr int kThreads = kWarp * WARPS, kMinBlocks = 0;
    static constexpr int kSums = ROWS * COLUMNS;                    // sums of a warp
    static constexpr int kParts = WARPS == 1 ? 0 : WARPS * kSums;  // partial sums of an iteration
    static constexpr int kSharedBytes = 2 * kParts * 4;
    static constexpr int V = kChunk<T>, kStride = kThreads * V;  // elements in a load, and from load to load

    // Work that needs no memory is done while the previous launch ends.
    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Task task(args);
        const bool beyond = task.beyond(args);
        const i64 ahead = static_cast<i64>(args.blocks) * ROWS;  // rows to the next iteration
        const int step = ahead < args.m ? static_cast<int>(ahead) : args.m;
        const unsigned first = block_x() * ROWS;
        Mine mine(args, task, first);
        Out out(args, task, first);
        if (AHEAD && !beyond) mine.fetch_all();
        const T* const from_b = static_cast<const T*>(args.b) + task.batch * args.stride_b;
        wait_for_launches();
        if (beyond) return;
        Words a[ROWS][UNROLL], b[COLUMNS][UNROLL];
        mine.load(a);
        load_b(args, from_b, mine, b);
        float* const parts = reinterpret_cast<float*>(shared);
        // A loop even for a single iteration: in straight-line code the compiler delays the loads until their
        // use, to save registers, and few are in flight.
        for (int turn = 0;; turn ^= 1) {
            float sum[kSums] = {};
            multiply(a, b, sum);
            mine.move(step);
            if (mine.rows > 0) mine.load(a);
            store(args, task, out, sum, parts + turn * kParts);
            if (mine.rows <= 0) break;
            out.move(step);
        }
    }

private:
    using Sums = WarpSums<kSums>;

    // This thread's loads of A in an iteration.
    struct Mine {
        const T* from;  // the thread's first element of the first row
        i64 lda;
        int rows;      // from that row to A's last
        int elements;  // from that element to the row's end; lines are whole loads

        GEMMTUNE_DEVICE Mine(const GemmArgs& args, Task task, unsigned first)
            : from(static_cast<const T*>(args.a) + task.batch * args.stride_a + first * args.lda + begin()),
              lda(args.lda), rows(args.m - static_cast<int>(first)), elements(args.k - begin()) {
            from = opaque(from);
        }

        static GEMMTUNE_DEVICE int begin() { return static_cast<int>(thread_index()) * V; }

        GEMMTUNE_DEVICE void move(int step) { from += step * lda, rows -= step; }
        GEMMTUNE_DEVICE bool within(int u) const { return FULL || u + 1 < UNROLL || u * kStride < elements; }
        GEMMTUNE_DEVICE const T* at(int r, int u) const { return from + r * lda + u * kStride; }

        GEMMTUNE_DEVICE void fetch_all() const {
            GEMMTUNE_UNROLL
            for (int r = 0; r < ROWS; ++r) {
                GEMMTUNE_UNROLL
                for (int u = 0; u < UNROLL; ++u)
                    if (r < rows && within(u)) prefetch_l2(at(r, u));
            }
        }

        GEMMTUNE_DEVICE void load(Words (&out)[ROWS][UNROLL]) const {
            GEMMTUNE_UNROLL
            for (int r = 0; r < ROWS; ++r) {
                GEMMTUNE_UNROLL
                for (int u = 0; u < UNROLL; ++u) out[r][u] = stream16(at(r, u), r < rows && within(u));
            }
        }
    };

    // Where this thread stores in an iteration, if it does: with several warps the thread that adds up a sum,
    // with one warp a lane that holds a complete sum.
    struct Out {
        typename TYPES::D* at;
        i64 apart, row;  // elements from row to row; the row's index
        int rows;        // from that row to D's last
        int column, plain;  // plain: whether the epilogue is alpha times the sum
        float alpha;

        GEMMTUNE_DEVICE Out(const GemmArgs& args, Task task, unsigned first)
            : apart(args.d_row), row(static_cast<i64>(first) + mine() / COLUMNS), column(mine() % COLUMNS),
              alpha(args.alpha) {
            const int there = args.m - static_cast<int>(first) - mine() / COLUMNS;
            rows = mine() < kSums && column < args.n ? there : 0;
            plain = opaque(static_cast<int>(args.beta == 0.0f && !args.bias && args.activation == kNone));
            at = static_cast<typename TYPES::D*>(args.d) + task.batch * args.stride_d + row * apart +
                 column * args.d_column;
        }

        // The index of this thread's sum in an iteration; none if kSums or more.
        static GEMMTUNE_DEVICE int mine() {
            if (WARPS > 1) return static_cast<int>(thread_index());
            const bool speaks = lane_index() % Sums::kSharers == 0;
            return speaks ? Sums::index(lane_index()) : kSums;
        }

        GEMMTUNE_DEVICE void move(int step) { at += step * apart, row += step, rows -= step; }
    };

    // Columns beyond the last are read as the last, and not stored.
    static GEMMTUNE_DEVICE void load_b(const GemmArgs& args, const T* b, const Mine& mine,
                                       Words (&out)[COLUMNS][UNROLL]) {
        GEMMTUNE_UNROLL
        for (int c = 0; c < COLUMNS; ++c) {
            const int column = COLUMNS == 1 || c < args.n ? c : args.n - 1;
            const T* const from = B_ALONG_K ? b + Mine::begin() + column * args.ldb
                                            : b + Mine::begin() * args.ldb + column;
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) {
                out[c][u] = Words{{0, 0, 0, 0}};
                if (!mine.within(u)) continue;
                if constexpr (B_ALONG_K) {
                    out[c][u] = read16(from + u * kStride);
                } else {
                    T element[V];
                    GEMMTUNE_UNROLL
                    for (int v = 0; v < V; ++v) element[v] = from[(u * kStride + v) * args.ldb];
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i)
                        out[c][u].at[i] = Word<T>::pack(element + i * Word<T>::kElements);
                }
            }
        }
    }

    static GEMMTUNE_DEVICE void multiply(const Words (&a)[ROWS][UNROLL], const Words (&b)[COLUMNS][UNROLL],
                                         float (&sum)[kSums]) {
        GEMMTUNE_UNROLL
        for (int u = 0; u < UNROLL; ++u) {
            float x[COLUMNS][V];
            GEMMTUNE_UNROLL
            for (int c = 0; c < COLUMNS; ++c) unpack<T>(b[c][u].at, x[c]);
            GEMMTUNE_UNROLL
            for (int r = 0; r < ROWS; ++r) {
                float w[V];
                unpack<T>(a[r][u].at, w);
                GEMMTUNE_UNROLL
                for (int c = 0; c < COLUMNS; ++c) {
                    GEMMTUNE_UNROLL
                    for (int v = 0; v < V; ++v) sum[r * COLUMNS + c] += w[v] * x[c][v];
                }
            }
        }
    }

    // `parts` alternates between two buffers: a thread that adds up an iteration's sums does so before the next
    // iteration's barrier, and this buffer is not written before that barrier.
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, Task task, const Out& out, float (&sum)[kSums],
                                      float* parts) {
        static_assert(Sums::kKept == 1, "a lane keeps one");
        const int lane = lane_index();
        Sums::run(sum, lane);
        float whole = sum[0];
        if constexpr (WARPS > 1) {
            if (lane % Sums::kSharers == 0) parts[warp_index() * kSums + Sums::index(lane)] = whole;
            block_barrier();
        }
        if (out.rows <= 0) return;
        if constexpr (WARPS > 1) {
            whole = 0.0f;
            GEMMTUNE_UNROLL
            for (int warp = 0; warp < WARPS; ++warp) whole += parts[warp * kSums + thread_index()];
        }
        if (GEMMTUNE_RARELY(!out.plain)) finish<TYPES>(args, task.batch, out.row, out.column, whole);
        else *out.at = narrow<typename TYPES::D>(out.alpha * whole);
    }
};

}  // namespace gemmtune
