// The end of a tile of D on Hopper (tile_wgmma.h, dequant_tma_wgmma.h): the sums of BM / 16 warps, each sixteen rows by
// BN columns in wgmma's registers, on their way to D through shared memory. THREADS, the block's first ones, store
// them. SPLITS blocks of a cluster have a slice of k each of the same tile, and TILES tiles are beside each other in
// the cluster: a block adds up every SPLITS-th column over all slices, in the order of slices, and stores it. PLAINLY:
// END has a path for plain epilogues.
#pragma once

#include "device/epilogue.h"
#include "device/hopper.h"

namespace gemmtune {

template <typename END, typename D, typename SUM, int BM, int BN, int THREADS, int SPLITS, int TILES,
          bool PLAINLY>
struct TileSums {
    // Column by column; the column pairs that a warp stores together lie 8 banks apart.
    static constexpr int kPitch = BM + 4, kPatch = BN * kPitch * 4;
    static constexpr int kFours = BM / 4;  // threads along a column
    static_assert(THREADS % kFours == 0, "whole columns");

    // Stores the sums of the tile's sixteen rows number `rows` to the patch, or (ADD) adds them to those there.
    template <bool ADD = false>
    static GEMMTUNE_DEVICE void lay_out(const SUM (&sum)[BN / 2], int rows, SUM* patch) {
        const int lane = lane_index(), group = lane / 4, member = lane % 4;
        SUM* const to = patch + member * 2 * kPitch + rows * 16 + group;
        GEMMTUNE_UNROLL
        for (int at = 0; at < BN / 2; ++at) {
            SUM& one = to[(at / 4 * 8 + at % 2) * kPitch + at / 2 % 2 * 8];
            one = ADD ? one + sum[at] : sum[at];
        }
    }

    // Stores this block's columns of the tile that begins `here`, every SPLITS-th. A thread has the same four rows of
    // several columns or, if D does not permit 4-element stores, every 32nd row of some columns. This is most
    // of the work after the last multiplication, and bound by instruction issue, so plain epilogues have a path
    // of their own.
    static GEMMTUNE_DEVICE void store(const END& here, int slice, const SUM* patch) {
        const int columns = here.columns < BN ? here.columns : BN;
        const int row = static_cast<int>(thread_index()) % kFours * 4;
        if (!here.fours && here.plain) store_lines<PLAINLY>(here, columns, slice, patch);
        else if (!here.fours) store_lines<false>(here, columns, slice, patch);
        else if (here.plain && row + 4 <= here.rows) store_fours<PLAINLY>(here, row, columns, slice, patch);
        else if (row < here.rows) store_fours<false>(here, row, columns, slice, patch);
    }

private:
    // The rank of the block with this tile and slice `slice`.
    static GEMMTUNE_DEVICE int slicer(int slice) {
        return slice * TILES + static_cast<int>(block_x() % TILES);
    }
    // The sum of one element over all slices.
    static GEMMTUNE_DEVICE SUM added(const SUM* at) {
        if (SPLITS == 1) return *at;
        SUM all = read_peer(at, slicer(0));
        GEMMTUNE_UNROLL
        for (int slice = 1; slice < SPLITS; ++slice) all += read_peer(at, slicer(slice));
        return all;
    }
    static GEMMTUNE_DEVICE float sum_of(unsigned bits, float) { return as_float(bits); }
    static GEMMTUNE_DEVICE int sum_of(unsigned bits, int) { return static_cast<int>(bits); }
    // The sums of four neighbours in a column over all slices.
    static GEMMTUNE_DEVICE void added4(const SUM* at, SUM (&four)[4]) {
        if (SPLITS == 1) {
            const Words words = *reinterpret_cast<const Words*>(at);
            GEMMTUNE_UNROLL
            for (int e = 0; e < 4; ++e) four[e] = sum_of(words.at[e], SUM());
            return;
        }
        SUM all[SPLITS][4];
        GEMMTUNE_UNROLL
        for (int slice = 0; slice < SPLITS; ++slice) read_peer4(at, slicer(slice), all[slice]);
        GEMMTUNE_UNROLL
        for (int e = 0; e < 4; ++e) {
            four[e] = all[0][e];
            GEMMTUNE_UNROLL
            for (int slice = 1; slice < SPLITS; ++slice) four[e] += all[slice][e];
        }
    }

    template <bool PLAIN>
    static GEMMTUNE_DEVICE void store_fours(const END& here, int row, int columns, int slice, const SUM* patch) {
        constexpr int kAcross = THREADS / kFours * SPLITS, kAtOnce = PLAIN ? 4 : 1;
        int column = static_cast<int>(thread_index()) / kFours * SPLITS + slice;
        D* to = here.d + row + column * here.args.d_column;
        const SUM* from = patch + column * kPitch + row;
        GEMMTUNE_ROLL
        for (; column < columns; column += kAtOnce * kAcross) {
            SUM four[kAtOnce][4];
            GEMMTUNE_UNROLL
            for (int n = 0; n < kAtOnce; ++n)
                if (column + n * kAcross < columns) added4(from + n * kAcross * kPitch, four[n]);
            GEMMTUNE_UNROLL
            for (int n = 0; n < kAtOnce; ++n) {
                if (column + n * kAcross >= columns) break;
                if constexpr (PLAIN) here.write4(to, four[n]);
                else here.store4(row, column + n * kAcross, four[n]);
                to += kAcross * here.args.d_column;
            }
            from += kAtOnce * kAcross * kPitch;
        }
    }

    template <bool PLAIN>
    static GEMMTUNE_DEVICE void store_lines(const END& here, int columns, int slice, const SUM* patch) {
        constexpr int kAcross = THREADS / 32 * SPLITS, kAtOnce = PLAIN ? BM / 32 : 1;
        const int lane = lane_index(), left = here.rows - lane;
        int column = warp_index() * SPLITS + slice;
        D* to = here.d + lane + column * here.args.d_column;
        const SUM* from = patch + column * kPitch + lane;
        GEMMTUNE_ROLL
        for (; column < columns; column += kAcross) {
            GEMMTUNE_ROLL
            for (int at = 0; at < BM; at += kAtOnce * 32) {
                SUM value[kAtOnce];
                GEMMTUNE_UNROLL
                for (int n = 0; n < kAtOnce; ++n)
                    if (at + n * 32 < left) value[n] = added(from + at + n * 32);
                GEMMTUNE_UNROLL
                for (int n = 0; n < kAtOnce; ++n) {
                    if (at + n * 32 >= left) continue;
                    if constexpr (PLAIN) to[at + n * 32] = narrow<D>(here.args.alpha * value[n]);
                    else here.store(at + n * 32 + lane, column, value[n]);
                }
            }
            to += kAcross * here.args.d_column, from += kAcross * kPitch;
        }
    }
};

}  // namespace gemmtune
