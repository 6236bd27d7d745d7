// The last SGEMM step, fp32: STAGES tiles of A and B deep, brought into shared memory by copies that go on
// while threads multiply and that pass through no registers. What block_tile.h spends on loads under way is
// left for larger sums (TM x TN of 16 x 8), which read shared memory less often, and for the operands of the
// next p, which are read while those of this one are multiplied. One barrier a tile.
//
// In shared memory a tile is [p][line], whatever it was: an operand that is contiguous along its lines is
// copied 16 bytes at a time (WHOLE; elements where it is misaligned or ragged), one that is contiguous along
// k is transposed by copies of an element each. The latter cost an instruction for each of the LINES BK /
// threads elements that a thread brings, of BK TM TN multiplications: one of a hundred at worst.
//
// Banks. A warp's lanes lie in Z order (lane_layout.h), four elements of a line each: a half-warp reads 4 x 16
// bytes side by side of A and as many of B, each in one pass. Copies of 16 bytes are written side by side.
// Those of an element, eight along k by four lines a warp, go to p kPitch + line with kPitch = 4 modulo 32:
// p 4 + line has every bank once.
#pragma once

#include "device/block_tile.h"
#include "device/lane_layout.h"

namespace gemmtune {

// A thread's copies of tiles of LINES rows of A (columns of B) by BK of k.
template <bool ALONG_K, int LINES, int BK, int THREADS, bool WIDE>
struct TileCopy {
    static constexpr int V = WIDE ? 4 : 1;  // elements of a copy
    static constexpr int kPitch = LINES + (ALONG_K ? 4 : 0), kSize = BK * kPitch;  // floats
    // Threads beside one another along k, and along lines.
    static constexpr int kDeep = WIDE ? THREADS * V / LINES : ALONG_K ? 8 : THREADS / 32;
    static constexpr int kBroad = THREADS / kDeep;
    static_assert(!(ALONG_K && WIDE), "a copy cannot transpose 16 bytes");
    static_assert(LINES % (kBroad * V) == 0 && BK % kDeep == 0, "every thread has as many copies");

    const float* from;  // the thread's first element of the next tile
    i64 along_lines, along_k;
    int to, lines, deep;  // its place in a tile; lines and k that there are from it on

    // A tile's first line is `line` of `lines`, its first p is `p` of those before `end`.
    GEMMTUNE_DEVICE TileCopy(const float* source, i64 ld, i64 line, i64 lines, int p, int end)
        : along_lines(ALONG_K ? ld : 1), along_k(ALONG_K ? 1 : ld) {
        const int t = static_cast<int>(thread_index());
        const int l = (ALONG_K ? t / kDeep : t % kBroad) * V, q = ALONG_K ? t % kDeep : t / kBroad;
        from = source + (line + l) * along_lines + (p + static_cast<i64>(q)) * along_k;
        to = q * kPitch + l;
        this->lines = static_cast<int>(lines - line) - l, deep = end - p - q;
    }

    // Starts the next tile's. EDGE: some of it may lie beyond the operand, and is zero.
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

// GROUP: tiles of D lie in the grid by columns of GROUP tiles, so that those at work at one time are near a
// square, and share rows of A and columns of B in the cache.
template <typename TYPES, bool A_ALONG_K, bool B_ALONG_K, int BM, int BN, int BK, int TM, int TN, int STAGES,
          int GROUP, bool WHOLE_A, bool WHOLE_B>
struct AsyncCopy {
    static constexpr int kThreads = BM / TM * (BN / TN);
    // As many blocks as leave a thread 128 registers, or 255 where sums take more.
    static constexpr int kResident = (TM * TN <= 64 ? 512 : 256) / kThreads;
    static constexpr int kMinBlocks = kResident > 1 ? kResident : 1;
    // A warp's threads: 8 x 4, or 4 x 8 where a thread's own patch is the higher one.
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
        int left = slice.end - slice.begin;  // of k, to be copied
        const auto copy = [&](float* stage) {
            float* const other = stage + CopyA::kSize;
            const bool whole = inside && left >= BK;
            if (whole) copy_a.template start<false>(stage), copy_b.template start<false>(other);
            else if (left > 0) copy_a.template start<true>(stage), copy_b.template start<true>(other);
            left -= BK;
            commit_copies();  // an empty group where there is no tile: groups are counted
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
        float *now = shared, *next = last;  // what is multiplied, and what is copied meanwhile
        read(now, 0);
        const unsigned end = static_cast<unsigned>(slice.end);  // a step beyond it is no overflow
        for (unsigned p = static_cast<unsigned>(slice.begin); p < end; p += BK) {
            GEMMTUNE_UNROLL
            for (int q = 0; q < BK; ++q) {
                if (q == BK - 1) {
                    // The next tile is there for all, and the last of this one is read: its place is free.
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

    // There and back again: the next multiplication has an operand of this one.
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
