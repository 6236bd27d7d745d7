// GEMMs with few columns of B on tensor cores, A contiguous along k and read once. From about five columns on
// the FMAs of skinny.h, not memory, are the bottleneck.
//
// No operand passes through shared memory. An instruction sums over k in any order, as long as A and B agree.
// So a lane loads 16 contiguous bytes of a row of A (and of a column of B), eight elements, and feeds them to
// two instructions, two elements at each of the instruction's positions along k. The four lanes of a row load
// 64 contiguous bytes, and UNROLL such loads are contiguous. A warp has 16 ROW_TILES rows and COLUMN_TILES
// groups of eight columns; WARPS_K warps share the same rows, a slice of k each.
#pragma once

#include "device/mma.h"
#include "device/unaligned_loads.h"

namespace gemmtune {

template <typename TYPES, bool WHOLE, int COLUMN_TILES, int ROW_TILES, int UNROLL, int WARPS_M, int WARPS_K>
struct SkinnyMma {
    using T = typename TYPES::Input;
    static constexpr int kThreads = kWarp * WARPS_M * WARPS_K, kMinBlocks = 0;
    static constexpr int kWarpRows = 16 * ROW_TILES, kRows = kWarpRows * WARPS_M, kColumns = 8 * COLUMN_TILES;
    static constexpr int kDeep = 32;             // k of one step: the loads of four lanes
    static constexpr int kPitch = kRows + 4;     // floats from column to column of the sums
    static constexpr int kPart = kColumns * kPitch;
    static constexpr int kSharedBytes = WARPS_K * kPart * 4;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char* shared) {
        const Task task(args);
        if (!task.beyond(args)) product(args, task, shared);
    }

private:
    using Sums = float[ROW_TILES][COLUMN_TILES][4];

    // Loads a lane's eight elements of one step, from p on. EDGE: elements at or beyond k are zero.
    template <bool EDGE, bool ONCE>
    static GEMMTUNE_DEVICE Words load(const T* line, i64 p, i64 k, const char* begin, const char* end) {
        if constexpr (EDGE) {
            if (p >= k) return Words{{0, 0, 0, 0}};
            if constexpr (!WHOLE) {
                if (p + 8 <= k) return load_any(line + p, begin, end);
                T element[8];
                GEMMTUNE_UNROLL
                for (int v = 0; v < 8; ++v) element[v] = p + v < k ? line[p + v] : T{};
                Words out;
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) out.at[i] = Word<T>::pack(element + 2 * i);
                return out;
            }
        }
        if constexpr (ONCE) return load_once<WHOLE>(line + p, begin, end);
        else if constexpr (WHOLE) return read16(line + p);
        else return load_any(line + p, begin, end);
    }

    static GEMMTUNE_DEVICE void product(const GemmArgs& args, Task task, char* shared) {
        const int lane = lane_index(), warp = warp_index();
        const int warp_m = warp % WARPS_M, warp_k = warp / WARPS_M, group = lane / 4, member = lane % 4;
        const T* const a = static_cast<const T*>(args.a) + task.batch * args.stride_a;
        const T* const b = static_cast<const T*>(args.b) + task.batch * args.stride_b;
        const i64 block_row = static_cast<i64>(block_x()) * kRows;
        const T* row[ROW_TILES][2];
        GEMMTUNE_UNROLL
        for (int t = 0; t < 2 * ROW_TILES; ++t) {  // rows beyond the last: read the last, not stored
            const i64 i = block_row + warp_m * kWarpRows + t * 8 + group;
            row[t / 2][t % 2] = a + (i < args.m ? i : args.m - 1) * args.lda + member * 8;
        }
        const T* column[COLUMN_TILES];
        GEMMTUNE_UNROLL
        for (int t = 0; t < COLUMN_TILES; ++t) {
            const i64 j = t * 8 + group;
            column[t] = b + (j < args.n ? j : args.n - 1) * args.ldb + member * 8;
        }
        Sums sum = {};
        const Slice<kDeep> mine(args, task, (static_cast<unsigned>(args.k) - 1) / kDeep + 1);
        for (int at = mine.begin + warp_k * UNROLL; at < mine.end; at += WARPS_K * UNROLL) {
            const i64 p = static_cast<i64>(at) * kDeep;
            if (at + UNROLL <= mine.end && p + UNROLL * kDeep <= args.k)
                step<false>(args, row, column, p, mine.end, member, sum);
            else
                step<true>(args, row, column, p, mine.end, member, sum);
        }
        release_reduce(args);
        store(args, task, block_row, sum, reinterpret_cast<float*>(shared), lane, warp_m, warp_k);
    }

    template <bool EDGE>
    static GEMMTUNE_DEVICE void step(const GemmArgs& args, const T* const (&row)[ROW_TILES][2],
                                     const T* const (&column)[COLUMN_TILES], i64 p, int end, int member,
                                     Sums& sum) {
        const char *const a_begin = static_cast<const char*>(args.a), *const a_end = a_begin + args.a_bytes;
        const char *const b_begin = static_cast<const char*>(args.b), *const b_end = b_begin + args.b_bytes;
        // Lines are passed from the lane's own offset on, and so is what is left of them.
        const i64 most = static_cast<i64>(end) * kDeep < args.k ? static_cast<i64>(end) * kDeep : args.k;
        const i64 left = most - member * 8;
        Words weights[UNROLL][ROW_TILES][2];
        GEMMTUNE_UNROLL
        for (int u = 0; u < UNROLL; ++u) {
            GEMMTUNE_UNROLL
            for (int t = 0; t < 2 * ROW_TILES; ++t)
                weights[u][t / 2][t % 2] =
                    load<EDGE, true>(row[t / 2][t % 2], p + u * kDeep, left, a_begin, a_end);
        }
        GEMMTUNE_UNROLL
        for (int u = 0; u < UNROLL; ++u) {
            GEMMTUNE_UNROLL
            for (int c = 0; c < COLUMN_TILES; ++c) {
                const Words x = load<EDGE, false>(column[c], p + u * kDeep, left, b_begin, b_end);
                if (EDGE) warp_barrier();  // lanes may have diverged at their loads
                GEMMTUNE_UNROLL
                for (int t = 0; t < ROW_TILES; ++t) {
                    const Words &low = weights[u][t][0], &high = weights[u][t][1];
                    GEMMTUNE_UNROLL
                    for (int half = 0; half < 4; half += 2) {
                        const unsigned of_a[4] = {low.at[half], high.at[half], low.at[half + 1],
                                                  high.at[half + 1]};
                        const unsigned of_b[2] = {x.at[half], x.at[half + 1]};
                        mma_16x8x16<T>(sum[t][c], of_a, of_b);
                    }
                }
            }
        }
    }

    // Adds the warps' sums through shared memory, even if WARPS_K is 1: D is then written along its columns,
    // coalesced.
    static GEMMTUNE_DEVICE void store(const GemmArgs& args, Task task, i64 block_row, const Sums& sum,
                                      float* parts, int lane, int warp_m, int warp_k) {
        GEMMTUNE_UNROLL
        for (int t = 0; t < ROW_TILES; ++t) {
            GEMMTUNE_UNROLL
            for (int c = 0; c < COLUMN_TILES; ++c) {
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const int r = warp_m * kWarpRows + t * 16 + lane / 4 + i / 2 * 8;
                    const int j = c * 8 + lane % 4 * 2 + i % 2;
                    parts[warp_k * kPart + j * kPitch + r] = sum[t][c][i];
                }
            }
        }
        block_barrier();
        for (int i = static_cast<int>(thread_index()); i < kRows * kColumns; i += kThreads) {
            const int at = i / kRows * kPitch + i % kRows;
            float whole = 0.0f;
            GEMMTUNE_UNROLL
            for (int part = 0; part < WARPS_K; ++part) whole += parts[part * kPart + at];
            finish_slice<TYPES>(args, task, block_row + i % kRows, i / kRows, whole);
        }
    }
};

}  // namespace gemmtune
