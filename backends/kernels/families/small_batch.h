// Batches of small GEMMs, each no larger than one tile. Memory bandwidth is the bound, and in a kernel for
// large GEMMs the prologue and epilogue would take most of the time. Here a team of threads computes one GEMM
// at a time, a block is PRODUCTS teams, and it processes ROUNDS sets of GEMMs: the operands of the next STAGES
// - 1 sets are in flight to shared memory while the current set is multiplied, and many blocks fit on a
// multiprocessor. D goes from registers to global memory.
//
// M and N are m and n rounded up to powers of two, K is k rounded up to 32 bytes of elements; elements beyond
// an operand are zero. In shared memory an operand has the layout and type that it has in global memory,
// contiguous line after line, and is copied 16 bytes at a time (WHOLE; otherwise by elements). In either layout
// four values of p of four lines are four reads of four elements: four lines at one p if contiguous along
// lines, four values of p of one line if contiguous along k.
//
// Bank conflicts. The threads of a team are in Z order (lane_layout.h), so a half-warp reads four words of four
// elements of each operand. If the operand is contiguous along lines, the four words are contiguous. If it is
// contiguous along k, they belong to four neighbouring lines, and the pitch (K plus 16 bytes: an odd number of
// 16-byte words) puts them into different banks. Teams of fewer than 16 threads share a half-warp and may have
// conflicts.
#pragma once

#include "device/epilogue.h"
#include "device/lane_layout.h"

namespace gemmtune {

// Reads four neighbouring elements from shared memory and widens them.
template <typename T>
GEMMTUNE_DEVICE void read_four(const T* p, float (&out)[4]) {
    struct alignas(4 * sizeof(T)) Four {
        unsigned at[sizeof(T)];  // the word count equals the element's size in bytes
    };
    const Four four = *reinterpret_cast<const Four*>(p);
    unpack<T>(four.at, out);
}

// An operand of one GEMM: LINES rows of A (columns of B) by K, of which each thread of TEAM has PER lines.
// Copies it to shared memory, GEMM after GEMM, and reads it there.
template <typename T, bool ALONG_K, int LINES, int K, int PER, int TEAM, bool WHOLE>
struct SmallTile {
    static constexpr int V = WHOLE ? kChunk<T> : 1;  // elements in a copy
    static constexpr int kRun = ALONG_K ? K : LINES, kRuns = ALONG_K ? LINES : K;
    static constexpr int kPitch = kRun + (ALONG_K ? kChunk<T> : 0), kSize = kRuns * kPitch;  // elements
    // Threads along a contiguous run: a power of two that divides it evenly.
    static constexpr int kCut = kRun / V & -(kRun / V), kBroad = kCut < TEAM ? kCut : TEAM;
    static constexpr int kDeep = TEAM / kBroad;
    static_assert(PER % 4 == 0 && LINES % PER == 0 && kRun % kChunk<T> == 0, "whole fours, and copies");
    static_assert(K * sizeof(T) % 32 == 0, "the pitch is an odd number of 16 bytes");

    const T* from;  // the thread's first element of the next GEMM
    i64 ld, step;   // to the next run, and to the team's next GEMM
    int to, run, runs, room;  // offset in the tile; from it on: elements and runs that exist, runs of the tile

    GEMMTUNE_DEVICE SmallTile(const void* source, i64 ld, i64 stride, i64 product, int products, int lines,
                              int k, int member)
        : ld(ld), step(stride * products) {
        const int along = member % kBroad * V, across = member / kBroad;
        from = static_cast<const T*>(source) + product * stride + across * ld + along;
        to = across * kPitch + along, room = kRuns - across;
        run = (ALONG_K ? k : lines) - along, runs = (ALONG_K ? lines : k) - across;
    }

    // Starts the copies of the next GEMM. EDGE: some of the tile is beyond the operand, and zero.
    template <bool EDGE>
    GEMMTUNE_DEVICE void start(T* tile) {
        GEMMTUNE_UNROLL
        for (int y = 0; y < kRuns; y += kDeep) {
            if (kRuns % kDeep && y >= room) continue;
            GEMMTUNE_UNROLL
            for (int x = 0; x < kRun; x += kBroad * V) {
                T* const at = tile + to + y * kPitch + x;
                const bool there = !EDGE || (x < run && y < runs);
                const T* const element = there ? from + y * ld + x : from;
                if constexpr (WHOLE) copy_async16(at, element, there ? 16 : 0);
                else if constexpr (sizeof(T) == 4) copy_async4(at, element, there ? 4 : 0);
                else *at = there ? *element : T{};
            }
        }
        from += step;
    }

    // The number of a thread's line i: along lines in groups of four, along k interleaved with the other
    // threads' lines.
    static GEMMTUNE_DEVICE int place(int thread, int i) {
        return ALONG_K ? i * (LINES / PER) + thread : i / 4 * (LINES / PER * 4) + thread * 4 + i % 4;
    }

    // Reads a thread's lines at p, p + 1, p + 2 and p + 3.
    static GEMMTUNE_DEVICE void read(const T* tile, int thread, int p, float (&out)[4][PER]) {
        float four[4];
        GEMMTUNE_UNROLL
        for (int i = 0; i < PER; ++i) {  // one read: four p of a line, or four lines at one p
            const int q = i % 4, first = i / 4 * 4;
            const int at = ALONG_K ? place(thread, i) * kPitch + p : (p + q) * kPitch + place(thread, first);
            read_four(tile + at, four);
            GEMMTUNE_UNROLL
            for (int g = 0; g < 4; ++g) {
                if (ALONG_K) out[g][i] = four[g];
                else out[q][first + g] = four[g];
            }
        }
    }
};

template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int M, int N, int K, int TM, int TN, int PRODUCTS,
          int ROUNDS, int STAGES, bool WHOLE_A, bool WHOLE_B>
struct SmallBatch {
    using T = typename TYPES::Input;
    static constexpr int kTeam = M / TM * (N / TN);  // threads for one GEMM
    static constexpr int kThreads = PRODUCTS * kTeam, kMinBlocks = 1;
    using TileA = SmallTile<T, A_ALONG_K, M, K, TM, kTeam, WHOLE_A>;
    using TileB = SmallTile<T, B_ALONG_K, N, K, TN, kTeam, WHOLE_B>;
    static constexpr int kProduct = TileA::kSize + TileB::kSize, kStage = PRODUCTS * kProduct;  // elements
    static constexpr int kSharedBytes = STAGES * kStage * static_cast<int>(sizeof(T));
    static constexpr int kAhead = STAGES > 1 ? STAGES - 1 : 1;  // sets in flight before the first is used
    static_assert(STAGES <= ROUNDS && (STAGES > 1 || ROUNDS == 1), "one set is no pipeline");

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const int t = static_cast<int>(thread_index()), team = t / kTeam, member = t % kTeam;
        const ZOrder<M / TM, N / TN> mine(member);
        // The team's GEMMs: `product` is the one to multiply; `left` counts the batch from the next one to copy
        // on.
        i64 product = static_cast<i64>(block_x()) * (ROUNDS * PRODUCTS) + team, left = args.batch - product;
        TileA tile_a(args.a, args.lda, args.stride_a, product, PRODUCTS, args.m, args.k, member);
        TileB tile_b(args.b, args.ldb, args.stride_b, product, PRODUCTS, args.n, args.k, member);
        const bool full = args.m == M && args.n == N && args.k == K;
        T* const first = reinterpret_cast<T*>(shared) + team * kProduct;
        T *const last = first + (STAGES - 1) * kStage, *next = first;
        const T* now = first;
        const auto fetch = [&](bool wanted) {
            if (wanted && left > 0) {
                T* const other = next + TileA::kSize;
                if (full) tile_a.template start<false>(next), tile_b.template start<false>(other);
                else tile_a.template start<true>(next), tile_b.template start<true>(other);
            }
            next = next == last ? first : next + kStage, left -= PRODUCTS;
            commit_copies();  // also an empty group: groups are counted
        };
        GEMMTUNE_UNROLL
        for (int round = 0; round < kAhead; ++round) fetch(true);
        for (int round = 0; round < ROUNDS; ++round) {
            // After the barrier this set has arrived for all threads, and the previous set's buffer is free.
            wait_copies<kAhead - 1>();
            block_barrier();
            fetch(round + kAhead < ROUNDS);
            if (product < args.batch) multiply(args, product, now, mine);
            now = now == last ? first : now + kStage, product += PRODUCTS;
        }
    }

private:
    static GEMMTUNE_DEVICE void multiply(const GemmArgs& args, i64 product, const T* a,
                                         const ZOrder<M / TM, N / TN>& mine) {
        float sum[TM][TN] = {};
        for (int p = 0; p < args.k; p += 4) {
            float x[4][TM], y[4][TN];
            TileA::read(a, mine.across, p, x);
            TileB::read(a + TileA::kSize, mine.down, p, y);
            GEMMTUNE_UNROLL
            for (int q = 0; q < 4; ++q) {
                GEMMTUNE_UNROLL
                for (int r = 0; r < TM; ++r) {
                    GEMMTUNE_UNROLL
                    for (int c = 0; c < TN; ++c) sum[r][c] += x[q][r] * y[q][c];
                }
            }
        }
        const Finish<TYPES, 1> here(args, product, TileA::place(mine.across, 0), TileB::place(mine.down, 0));
        GEMMTUNE_UNROLL
        for (int c = 0; c < TN; ++c) {
            const int column = TileB::place(0, c);
            GEMMTUNE_UNROLL
            for (int r = 0; r < TM; r += 4) {
                const float four[4] = {sum[r][c], sum[r + 1][c], sum[r + 2][c], sum[r + 3][c]};
                if constexpr (A_ALONG_K) {  // the thread's rows are interleaved with its neighbours'
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 4; ++i) here.store(TileA::place(0, r + i), column, four[i]);
                } else {
                    here.store4(TileA::place(0, r), column, four);
                }
            }
        }
    }
};

}  // namespace gemmtune
