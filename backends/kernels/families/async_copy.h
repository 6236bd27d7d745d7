// The last SGEMM step, fp32: a pipeline of STAGES tiles of A and B, filled by asynchronous copies that bypass
// registers. The registers that block_tile.h uses for loads in flight hold larger thread tiles (TM x TN of 16 x
// 8), which read shared memory less often, and the fragments of the next p, read while those of the current p
// are multiplied. One barrier for each tile.
//
// In shared memory a tile is [p][line] whatever the operand's layout. An operand that is contiguous along its
// lines is copied 16 bytes at a time (WHOLE; by elements if it is misaligned or ragged). One that is contiguous
// along k is transposed by copies of single elements: LINES BK / threads copy instructions a thread, against BK
// TM TN FMAs; one in a hundred at worst.
//
// Bank conflicts. A warp's lanes are in Z order (lane_layout.h), with four elements of a line each: a half-warp
// reads 4 x 16 contiguous bytes of A and as many of B, each in one pass. Copies of 16 bytes are written
// contiguously. Copies of an element, eight along k by four lines for each warp, go to p kPitch + line with
// kPitch = 4 modulo 32: the offsets p 4 + line use every bank once.
#pragma once

#include "device/block_tile.h"
#include "device/lane_layout.h"

namespace gemmtune {

// A thread's part of the copies of tiles of LINES rows of A (columns of B) by BK of k.
template <bool ALONG_K, int LINES, int BK, int THREADS, bool WIDE>
struct TileCopy {
    static constexpr int V = WIDE ? 4 : 1;  // elements in a copy
    static constexpr int kPitch = LINES + (ALONG_K ? 4 : 0), kSize = BK * kPitch;  // floats
    // Threads along k, and along lines.
    static constexpr int kDeep = WIDE ? THREADS * V / LINES : ALONG_K ? 8 : THREADS / 32;
    static constexpr int kBroad = THREADS / kDeep;
    static_assert(!(ALONG_K && WIDE), "a copy cannot transpose 16 bytes");
    static_assert(LINES % (kBroad * V) == 0 && BK % kDeep == 0, "every thread has as many copies");

    const float* from;  // the thread's first element of the next tile
    i64 along_lines, along_k;
    int to, lines, deep;  // offset in a tile; lines and k that exist from it on

    // The first tile starts at line `line` of `lines` and at p of k; k ends at `end`.
    GEMMTUNE_DEVICE TileCopy(const float* source, i64 ld, i64 line, i64 lines, int p, int end)
        : along_lines(ALONG_K ? ld : 1), along_k(ALONG_K ? 1 : ld) {
        const int t = static_cast<int>(thread_index());
        const int l = (ALONG_K ? t / kDeep : t % kBroad) * V, q = ALONG_K ? t % kDeep : t / kBroad;
        from = source + (line + l) * along_lines + (p + static_cast<i64>(q)) * along_k;
        to = q * kPitch + l;
        this->lines = static_cast<int>(lines - line) - l, deep = end - p - q;
    }

    // Starts the copies of the next tile. EDGE: some of it may lie beyond the operand, and is zero.
    template <bool EDGE>
    GEMMTUNE_DEVICE void start(float* tile) {
        GEMMTUNE_UNROLL
        for (int y = 0; y < BK; y += kDeep) {
            GEMMTUNE_UNROLL
            for (int x = 0; x < LINES; x += kBroad * V) {
                float* const at = tile + to + y * kPitch + x;
                const float* const element = from + x * along_lines + y * along_k;
                if constexpr (EDGE) {
                    const bool there = x < lines && y < deep;
                    if constexpr (WIDE) copy_async16(at, there ? element : from, there ? 16 : 0);
                    else copy_async4(at, there ? element : from, there ? 4 : 0);
                } else {
                    if constexpr (WIDE) copy_async16(at, element);
                    else copy_async4(at, element);
                }
            }
        }
        from += BK * along_k, deep -= BK;
    }
};

// GROUP: the grid traverses D in bands of GROUP rows of tiles, so that the tiles in flight form a near square
// and share rows of A and columns of B in L2.
template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int BM, int BN, int BK, int TM, int TN, int STAGES,
          int GROUP, bool WHOLE_A, bool WHOLE_B>
struct AsyncCopy {
    static constexpr int kThreads = BM / TM * (BN / TN);
    // As many resident blocks as leave a thread 128 registers, or 255 if its sums need more.
    static constexpr int kResident = (TM * TN <= 64 ? 512 : 256) / kThreads;
    static constexpr int kMinBlocks = kResident > 1 ? kResident : 1;
    // The layout of a warp's threads: 8 x 4, or 4 x 8 if the thread tile is taller than wide.
    static constexpr int kAcross = TM > TN ? 4 : 8, kDown = 32 / kAcross;
    static constexpr int WM = kAcross * TM, WN = kDown * TN;
    using CopyA = TileCopy<A_ALONG_K, BM, BK, kThreads, WHOLE_A && !A_ALONG_K>;
    using CopyB = TileCopy<B_ALONG_K, BN, BK, kThreads, WHOLE_B && !B_ALONG_K>;
    static constexpr int kStage = CopyA::kSize + CopyB::kSize;  // floats
    static constexpr int kSharedBytes = STAGES * kStage * 4;
    static_assert(sizeof(typename TYPES::Input) == 4, "copies do not widen");
    static_assert(BM % WM == 0 && BN % WN == 0 && TM % 4 == 0 && TN % 4 == 0, "whole patches of fours");
    static_assert(STAGES >= 2 && BK % 2 == 0, "a tile under way; operands of two p by turns");

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const unsigned tiles_m = static_cast<unsigned>((args.m - 1) / BM + 1);
        const unsigned tiles_n = static_cast<unsigned>((args.n - 1) / BN + 1);
        const unsigned column = block_x() / (GROUP * tiles_n), in_column = block_x() % (GROUP * tiles_n);
        const unsigned left = tiles_m - column * GROUP, high = left < GROUP ? left : GROUP;
        const i64 i = static_cast<i64>(column * GROUP + in_column % high) * BM;
        const i64 j = static_cast<i64>(in_column / high) * BN;
        const Task task(args);
        if (!task.beyond(args)) product(args, task, i, j, reinterpret_cast<float*>(shared));
    }

private:
    static GEMMTUNE_DEVICE void product(const GemmArgs& args, Task task, i64 i, i64 j, float* shared) {
        const int t = static_cast<int>(thread_index()), warp = t / 32;
        const ZOrder<kAcross, kDown> mine(t % 32);
        const int patch_m = warp % (BM / WM) * WM, patch_n = warp / (BM / WM) * WN;
        const Slice<1> slice(args, task, static_cast<unsigned>(args.k));
        CopyA copy_a(static_cast<const float*>(args.a) + task.batch * args.stride_a, args.lda, i, args.m,
                     slice.begin, slice.end);
        CopyB copy_b(static_cast<const float*>(args.b) + task.batch * args.stride_b, args.ldb, j, args.n,
                     slice.begin, slice.end);
        const bool inside = i + BM <= args.m && j + BN <= args.n;
        int left = slice.end - slice.begin;  // k that is still to be copied
        const auto copy = [&](float* stage) {
            float* const other = stage + CopyA::kSize;
            const bool whole = inside && left >= BK;
            if (whole) copy_a.template start<false>(stage), copy_b.template start<false>(other);
            else if (left > 0) copy_a.template start<true>(stage), copy_b.template start<true>(other);
            left -= BK;
            commit_copies();  // also an empty group: groups are counted
        };
        float sum[TM][TN] = {}, x[2][TM], y[2][TN];
        const auto read = [&](const float* stage, int p) {
            read_lines<WM, TM, true>(stage + p * CopyA::kPitch + patch_m, mine.across, x[p % 2]);
            read_lines<WN, TN, true>(stage + CopyA::kSize + p * CopyB::kPitch + patch_n, mine.down, y[p % 2]);
        };
        GEMMTUNE_UNROLL
        for (int s = 0; s < STAGES - 1; ++s) copy(shared + s * kStage);
        wait_copies<STAGES - 2>();
        block_barrier();
        float* const last = shared + (STAGES - 1) * kStage;
        float *now = shared, *next = last;  // the stage to multiply, and the stage to fill meanwhile
        read(now, 0);
        const unsigned end = static_cast<unsigned>(slice.end);  // unsigned: a step beyond it does not overflow
        for (unsigned p = static_cast<unsigned>(slice.begin); p < end; p += BK) {
            GEMMTUNE_UNROLL
            for (int q = 0; q < BK; ++q) {
                if (q == BK - 1) {
                    // After the barrier the next tile has arrived for all threads, and the current one's stage
                    // is free.
                    wait_copies<STAGES - 2>();
                    block_barrier();
                    next = now;
                    now = now == last ? shared : now + kStage;
                }
                read(now, (q + 1) % BK);
                if (q == 0) copy(next);
                multiply(x[q % 2], y[q % 2], sum);
            }
        }
        release_reduce(args);
        i += patch_m + place<WM, TM, true>(mine.across, 0), j += patch_n + place<WN, TN, true>(mine.down, 0);
        if (args.splits == 1) store(Finish<TYPES, 1>(args, task.batch, i, j), sum);
        else store(Keep(args, task, i, j), sum);
    }

    // Serpentine order: consecutive FMAs share an operand.
    static GEMMTUNE_DEVICE void multiply(const float (&x)[TM], const float (&y)[TN], float (&sum)[TM][TN]) {
        GEMMTUNE_UNROLL
        for (int c = 0; c < TN; ++c) {
            GEMMTUNE_UNROLL
            for (int i = 0; i < TM; ++i) {
                const int r = c % 2 ? TM - 1 - i : i;
                sum[r][c] += x[r] * y[c];
            }
        }
    }

    template <typename PLACE>
    static GEMMTUNE_DEVICE void store(const PLACE& here, const float (&sum)[TM][TN]) {
        GEMMTUNE_UNROLL
        for (int c = 0; c < TN; ++c) {
            GEMMTUNE_UNROLL
            for (int r = 0; r < TM; r += 4) {
                const float four[4] = {sum[r][c], sum[r + 1][c], sum[r + 2][c], sum[r + 3][c]};
                here.store4(place<WM, TM, true>(0, r), place<WN, TN, true>(0, c), four);
            }
        }
    }
};

}  // namespace gemmtune
