// The SGEMM steps that use shared memory: a block computes a BM x BN tile of D, BK of k at a time. Tiles of A
// and B are widened to fp32 and stored to shared memory with their rows (columns) side by side, and every
// thread accumulates its TM x TN elements in registers. Each family adds one optimisation to the previous one:
//
//   shared-tile       TM = TN = 1: each element is read from global memory once per block; two reads of shared
//                     memory for each FMA
//   block-tile-1d     TM > 1: a value of B stays in a register for TM FMAs
//   block-tile-2d     TN > 1: an outer product, TM + TN reads for TM TN FMAs
//   vectorized        WIDE: 16-byte loads from global memory (by elements where it is misaligned or ragged) and
//                     from shared memory; a thread's rows and columns are in groups of 4
//   warp-tile         WM x WN: the threads of a warp form a nearly square patch of the tile, so they read fewer
//                     different words of shared memory
//   double-buffered   BUFFERS = 2: the next tiles are loaded into registers while the current ones are
//                     multiplied
#pragma once

#include "device/unaligned_loads.h"

namespace gemmtune {

// A tile of LINES rows of A (columns of B) by BK of k on its way from global to shared memory: fetch() loads it
// into registers, put() stores it to shared[p * (LINES + kPad) + line]. Elements beyond the operand are zero.
// WIDE: 16-byte loads. WHOLE: lines start at multiples of 16 bytes and consist of whole loads, so a load lies
// entirely within or beyond the operand. Otherwise misaligned loads are assembled from two aligned ones, and
// the end of a line is loaded by elements.
template <typename T, bool ALONG_K, int LINES, int BK, int THREADS, bool WIDE, bool WHOLE>
struct TileStage {
    static constexpr int kPad = WIDE ? 4 : 1, kPitch = LINES + kPad;
    static constexpr int V = WIDE ? kChunk<T> : 1;      // elements in a load
    static constexpr int kWords = WIDE ? 4 : 1;         // registers of a load (one element is kept widened)
    static constexpr int kAlong = (ALONG_K ? BK : LINES) / V;  // loads of a contiguous run
    static constexpr int kLoads = LINES * BK / V, kMine = (kLoads + THREADS - 1) / THREADS;
    static_assert((ALONG_K ? BK : LINES) % V == 0, "a tile's contiguous side is whole loads");

    unsigned kept[kMine][kWords];

    // Starts at line `line` of `lines` and at p of k; `ld` is the stride of the other index.
    GEMMTUNE_DEVICE void fetch(const T* source, i64 ld, i64 line, i64 lines, i64 p, i64 k,
                               const char* begin, const char* end) {
        GEMMTUNE_UNROLL
        for (int n = 0; n < kMine; ++n) {
            const int load = n * THREADS + static_cast<int>(thread_index());
            if (kLoads % THREADS && load >= kLoads) continue;
            const int along = load % kAlong * V, across = load / kAlong;
            const i64 l = line + (ALONG_K ? across : along), q = p + (ALONG_K ? along : across);
            const T* const from = ALONG_K ? source + l * ld + q : source + q * ld + l;
            const bool outside = ALONG_K ? l >= lines : q >= k;
            const i64 left = outside ? 0 : ALONG_K ? k - q : lines - l;  // elements that exist from here on
            if constexpr (WIDE) {
                if (WHOLE ? left > 0 : left >= V) {
                    const Words words = WHOLE ? read16(from) : load_any(from, begin, end);
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i) kept[n][i] = words.at[i];
                } else if (WHOLE) {
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i) kept[n][i] = 0;
                } else {
                    T element[V];
                    GEMMTUNE_UNROLL
                    for (int v = 0; v < V; ++v) element[v] = v < left ? from[v] : T{};
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i) kept[n][i] = Word<T>::pack(element + i * Word<T>::kElements);
                }
            } else {
                kept[n][0] = left > 0 ? as_unsigned(widen(*from)) : 0u;
            }
        }
    }

    GEMMTUNE_DEVICE void put(float* shared) const {
        GEMMTUNE_UNROLL
        for (int n = 0; n < kMine; ++n) {
            const int load = n * THREADS + static_cast<int>(thread_index());
            if (kLoads % THREADS && load >= kLoads) continue;
            const int along = load % kAlong * V, across = load / kAlong;
            float value[V];
            if constexpr (WIDE) unpack<T>(kept[n], value);
            else value[0] = as_float(kept[n][0]);
            GEMMTUNE_UNROLL
            for (int v = 0; v < V; ++v) {
                const int line = ALONG_K ? across : along + v, q = ALONG_K ? along + v : across;
                shared[q * kPitch + line] = value[v];
            }
        }
    }
};

// The position of a thread's element i of PER along one side of the tile. WIDE: in groups of 4, interleaved
// with the groups of the other threads along EXTENT, so that neighbouring threads' 16-byte reads are
// contiguous. Otherwise a thread's elements are contiguous.
template <int EXTENT, int PER, bool WIDE>
GEMMTUNE_DEVICE int place(int thread, int i) {
    constexpr int kGroup = WIDE && PER % 4 == 0 ? 4 : PER;
    return i / kGroup * (EXTENT / (PER / kGroup)) + thread * kGroup + i % kGroup;
}

// Reads a thread's PER values at one p; `line` is the start of the thread's patch.
template <int EXTENT, int PER, bool WIDE>
GEMMTUNE_DEVICE void read_lines(const float* line, int thread, float (&out)[PER]) {
    if constexpr (WIDE && PER % 4 == 0) {
        GEMMTUNE_UNROLL
        for (int i = 0; i < PER; i += 4) {
            const Words four = *reinterpret_cast<const Words*>(line + place<EXTENT, PER, true>(thread, i));
            GEMMTUNE_UNROLL
            for (int g = 0; g < 4; ++g) out[i + g] = as_float(four.at[g]);
        }
    } else {
        GEMMTUNE_UNROLL
        for (int i = 0; i < PER; ++i) out[i] = line[place<EXTENT, PER, false>(thread, i)];
    }
}

// WM x WN: the patch that a warp's threads cover (if BM x BN, threads are in the order of the tile's rows).
template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int BM, int BN, int BK, int TM, int TN, int WM,
          int WN, bool WIDE, bool WHOLE_A, bool WHOLE_B, int BUFFERS>
struct BlockTile {
    using T = typename TYPES::Input;
    static constexpr int kThreads = BM / TM * (BN / TN);
    // Two resident blocks hide each other's latency, if the sums leave enough registers.
    static constexpr int kMinBlocks = kThreads <= 256 && TM * TN <= 64 ? 2 : 0;
    using StageA = TileStage<T, A_ALONG_K, BM, BK, kThreads, WIDE, WHOLE_A>;
    using StageB = TileStage<T, B_ALONG_K, BN, BK, kThreads, WIDE, WHOLE_B>;
    static constexpr int kSizeA = BK * StageA::kPitch, kSizeB = BK * StageB::kPitch;  // floats
    static constexpr int kSharedBytes = BUFFERS * (kSizeA + kSizeB) * 4;
    static constexpr int kGroup = WM / TM * (WN / TN);  // threads in a patch
    static constexpr int kAtOnce = TM * TN > 64 ? 2 : 4;  // elements of k whose values are in registers at once
    static_assert(BM % WM == 0 && BN % WN == 0 && WM % TM == 0 && WN % TN == 0, "whole patches");
    static_assert(WM == BM || kGroup == 32, "a patch is 32 threads': a warp, or half of a wide one");

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const int tiles_m = (args.m - 1) / BM + 1;
        const i64 i = static_cast<i64>(block_x() % tiles_m) * BM;
        const i64 j = static_cast<i64>(block_x() / tiles_m) * BN;
        const Task task(args);
        if (!task.beyond(args)) product(args, task.batch, i, j, reinterpret_cast<float*>(shared));
    }

private:
    static GEMMTUNE_DEVICE void product(const GemmArgs& args, i64 batch, i64 i, i64 j, float* shared) {
        // D is column-major in these families: c_row and d_row are 1 (Finish).
        const T* const a = static_cast<const T*>(args.a) + batch * args.stride_a;
        const T* const b = static_cast<const T*>(args.b) + batch * args.stride_b;
        const int t = static_cast<int>(thread_index()), patch = t / kGroup, member = t % kGroup;
        const int patch_m = patch % (BM / WM) * WM, patch_n = patch / (BM / WM) * WN;
        const int thread_m = member % (WM / TM), thread_n = member / (WM / TM);
        float sum[TM][TN] = {};
        StageA stage_a;
        StageB stage_b;
        const char *const begin_a = static_cast<const char*>(args.a), *const end_a = begin_a + args.a_bytes;
        const char *const begin_b = static_cast<const char*>(args.b), *const end_b = begin_b + args.b_bytes;
        const auto fetch = [&](i64 p) {
            stage_a.fetch(a, args.lda, i, args.m, p, args.k, begin_a, end_a);
            stage_b.fetch(b, args.ldb, j, args.n, p, args.k, begin_b, end_b);
        };
        int now = 0;
        if (BUFFERS == 2) {
            fetch(0);
            stage_a.put(shared), stage_b.put(shared + kSizeA);
        }
        for (i64 p = 0; p < args.k; p += BK) {
            const bool more = p + BK < args.k;
            if (BUFFERS == 1) {
                fetch(p);
                stage_a.put(shared), stage_b.put(shared + kSizeA);
            } else if (more) {
                fetch(p + BK);
            }
            block_barrier();
            const float* const tile = BUFFERS == 1 ? shared : shared + now * (kSizeA + kSizeB);
            multiply(tile + patch_m, tile + kSizeA + patch_n, thread_m, thread_n, sum);
            if (BUFFERS == 1) {
                block_barrier();  // all threads are done before the next tiles replace these
            } else if (more) {
                now ^= 1;  // this buffer is free: all threads have passed the barrier after its last use
                float* const next = shared + now * (kSizeA + kSizeB);
                stage_a.put(next), stage_b.put(next + kSizeA);
            }
        }
        const Finish<TYPES, 1> here(args, batch, i + patch_m + place<WM, TM, WIDE>(thread_m, 0),
                                    j + patch_n + place<WN, TN, WIDE>(thread_n, 0));
        GEMMTUNE_UNROLL
        for (int c = 0; c < TN; ++c) {
            GEMMTUNE_UNROLL
            for (int r = 0; r < TM; ++r)
                here.store(place<WM, TM, WIDE>(0, r), place<WN, TN, WIDE>(0, c), sum[r][c]);
        }
    }

    static GEMMTUNE_DEVICE void multiply(const float* a, const float* b, int thread_m, int thread_n,
                                         float (&sum)[TM][TN]) {
        GEMMTUNE_UNROLL_BY(kAtOnce)
        for (int p = 0; p < BK; ++p) {
            float x[TM], y[TN];
            read_lines<WM, TM, WIDE>(a + p * StageA::kPitch, thread_m, x);
            read_lines<WN, TN, WIDE>(b + p * StageB::kPitch, thread_n, y);
            GEMMTUNE_UNROLL
            for (int r = 0; r < TM; ++r) {
                GEMMTUNE_UNROLL
                for (int c = 0; c < TN; ++c) sum[r][c] += x[r] * y[c];
            }
        }
    }
};

}  // namespace gemmtune
