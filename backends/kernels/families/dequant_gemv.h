// Quantised weights times 1 to 8 columns of 16-bit activations by fp32 FMAs, on every GPU. Each warp has ROWS rows
// of weights, of which a lane reads 16 bytes at a time, kWide integers of one group; UNROLL such loads of every row
// are in flight. Activations come from the caches.
//
// A load's integers are multiplied as they are; with their scale s and zero point z they contribute
// s (sum of q x - z sum of x), so that no weight is rounded. A zero point of 8 is subtracted as they are converted.
// A load of MXFP4 is a group. A load of e4m3 that has a NaN is multiplied by it.
#pragma once

#include "device/dequantise.h"
#include "device/unaligned_loads.h"

namespace gemmtune {

template <typename TYPES, typename QUANT, int COLUMNS, int ROWS, int UNROLL, int WARPS>
struct DequantGemv {
    using Args = WeightArgs;
    using T = typename TYPES::Input;
    using Scale = typename QUANT::Scale;
    static constexpr int kThreads = kWarp * WARPS, kMinBlocks = 0, kSharedBytes = 0;
    static constexpr int kWide = QUANT::kWide, kSums = ROWS * COLUMNS;
    static constexpr int kStep = 64 * kWide;  // of slices of k, whatever a warp's size
    static_assert(sizeof(T) == 2 && kSums <= kWarp, "16-bit activations; a lane keeps at most one sum");

    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const Args& all, char*) {
        const GemmArgs& args = all.gemm;
        const Task task(args);
        const int lane = lane_index();
        const i64 first = (static_cast<i64>(block_x()) * WARPS + warp_index()) * ROWS;
        const Slice<kStep> mine(args, task, (static_cast<unsigned>(args.k) - 1) / kStep + 1);
        const i64 end = static_cast<i64>(mine.end) * kStep, last = end < args.k ? end : args.k;
        wait_for_launches();
        if (task.beyond(args)) return;
        float sum[kSums] = {};
        const Powers powers(args.k);
        GEMMTUNE_ROLL
        for (i64 at = static_cast<i64>(mine.begin) * kStep + lane * kWide; at < last; at += kWarp * kWide * UNROLL) {
            Words raw[ROWS][UNROLL];
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) {
                const i64 k = at + u * kWarp * kWide;
                GEMMTUNE_UNROLL
                for (int r = 0; r < ROWS; ++r) {
                    const char* const row = static_cast<const char*>(args.a) + row_of(args, first + r) * args.lda;
                    raw[r][u] = stream16(row + k * QUANT::kBits / 8, k < last);
                }
            }
            GEMMTUNE_UNROLL
            for (int u = 0; u < UNROLL; ++u) {
                const i64 k = at + u * kWarp * kWide;
                if (k < last) multiply(all, powers, first, k, raw, u, sum);
            }
        }
        release_reduce(args);
        using Sums = WarpSums<kSums>;
        Sums::run(sum, lane);
        if (lane % Sums::kSharers) return;
        const int index = Sums::index(lane);
        finish_slice<TYPES>(args, task, first + index / COLUMNS, index % COLUMNS, sum[0]);
    }

private:
    // An integer becomes an fp32 where it is in its word: the power of two whose mantissa it is in has the exponent
    // that makes its last bit worth one. That power is subtracted, exactly, and with it a zero point of 8. The top bit
    // of signed integers is inverted, which makes them larger by its value. Four bits have five such places in a word,
    // eight bits two.
    static constexpr int kPlaces = QUANT::kBits == 4 ? 5 : 2;
    static GEMMTUNE_DEVICE constexpr unsigned above(int place) {
        const int at = place * QUANT::kBits;
        const unsigned top = QUANT::kSigned ? 1u << (at + QUANT::kBits - 1) : 0u;
        return static_cast<unsigned>(150 - at) << 23 | top;
    }
    struct Powers {
        unsigned of[kPlaces];
        GEMMTUNE_DEVICE explicit Powers(int size) {
            GEMMTUNE_UNROLL
            for (int i = 0; i < kPlaces; ++i) of[i] = kept(above(i), size);
        }
    };

    // Rows beyond the last are read as the last, and not stored.
    static GEMMTUNE_DEVICE i64 row_of(const GemmArgs& args, i64 row) { return row < args.m ? row : args.m - 1; }

    static GEMMTUNE_DEVICE void multiply(const Args& all, const Powers& powers, i64 first, i64 k,
                                         const Words (&raw)[ROWS][UNROLL], int u, float (&sum)[kSums]) {
        const GemmArgs& args = all.gemm;
        float part[kSums] = {}, inputs[COLUMNS] = {};
        GEMMTUNE_UNROLL
        for (int j = 0; j < kWide / 8; ++j) {
            float x[COLUMNS][8];
            GEMMTUNE_UNROLL
            for (int c = 0; c < COLUMNS; ++c) {
                const int column = COLUMNS == 1 || c < args.n ? c : args.n - 1;
                unpack<T>(read16(static_cast<const T*>(args.b) + column * args.ldb + k + 8 * j).at, x[c]);
                GEMMTUNE_UNROLL
                for (int i = 0; i < 8; ++i)
                    if constexpr (QUANT::kStoredZeros) inputs[c] += x[c][i];
            }
            GEMMTUNE_UNROLL
            for (int r = 0; r < ROWS; ++r) {
                float w[8];
                integers(raw[r][u], powers, j, w);
                GEMMTUNE_UNROLL
                for (int c = 0; c < COLUMNS; ++c) {
                    GEMMTUNE_UNROLL
                    for (int i = 0; i < 8; ++i) part[r * COLUMNS + c] += w[i] * x[c][i];
                }
            }
        }
        const i64 group = QUANT::kGroup == 0 ? 0 : k / (QUANT::kGroup == 0 ? 1 : QUANT::kGroup);
        GEMMTUNE_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const i64 row = row_of(args, first + r), at = row / QUANT::kSide * all.scale_row + group;
            float scale = widen(static_cast<const Scale*>(all.scales)[at]);
            if constexpr (QUANT::kFp8)
                if (any_nan(raw[r][u])) scale = as_float(0x7fc00000u);
            float zero = QUANT::kZero == kAdded ? 8.0f : 0.0f, added = 0.0f;
            if constexpr (QUANT::kZero == kWords) {
                const unsigned word = static_cast<const unsigned*>(all.zeros)[row / 8 * all.scale_row + group];
                zero = static_cast<float>(word >> static_cast<int>(row % 8) * 4 & 15u);
            }
            if constexpr (QUANT::kZero == kSubtracted) zero = widen(static_cast<const Scale*>(all.zeros)[at]);
            if constexpr (QUANT::kZero == kAdded) added = widen(static_cast<const Scale*>(all.zeros)[at]);
            GEMMTUNE_UNROLL
            for (int c = 0; c < COLUMNS; ++c) {
                float& of = sum[r * COLUMNS + c];
                if constexpr (QUANT::kStoredZeros)
                    of += scale * (part[r * COLUMNS + c] - zero * inputs[c]) + added * inputs[c];
                else of += scale * part[r * COLUMNS + c];
            }
        }
    }

    // The eight integers, or floats, from 8 j on.
    static GEMMTUNE_DEVICE void integers(const Words& raw, const Powers& powers, int j, float (&out)[8]) {
        if constexpr (QUANT::kFloat) return floats(raw.at[j], out);
        if constexpr (QUANT::kFp8) return floats8(raw, j, out);
        GEMMTUNE_UNROLL
        for (int i = 0; i < 8; ++i) {
            // The last ones of a word are shifted to a place.
            const int in = QUANT::kBits == 4 ? i : i % 4, place = in < kPlaces ? in : in - (QUANT::kBits == 4 ? 3 : 2);
            const unsigned word = raw.at[QUANT::kBits == 4 ? j : 2 * j + i / 4];
            const unsigned there = (in < kPlaces ? word : word >> (in - place) * QUANT::kBits);
            const unsigned mask = ((1u << QUANT::kBits) - 1) << place * QUANT::kBits;
            out[i] = as_float((there & mask) ^ powers.of[place]) -
                     as_float(above(place) + (QUANT::kZero == kEight ? 8u << place * QUANT::kBits : 0u));
        }
    }

    // The eight of a word: see dequantise.h. A shift that repeats the sign leaves it above the exponent.
    static GEMMTUNE_DEVICE void floats(unsigned word, float (&out)[8]) {
        const float power = as_float(253u << 23);  // 2^126
        GEMMTUNE_UNROLL
        for (int i = 0; i < 8; ++i) {
            const int moved = static_cast<int>(word << (28 - 4 * i)) >> 6;
            out[i] = as_float(static_cast<unsigned>(moved) & 0x81c00000u) * power;
        }
    }
    // The same of e4m3; NaN reads as 480.
    static GEMMTUNE_DEVICE void floats8(const Words& raw, int j, float (&out)[8]) {
        const float power = as_float(247u << 23);  // 2^120
        GEMMTUNE_UNROLL
        for (int i = 0; i < 8; ++i) {
            const int moved = static_cast<int>(raw.at[2 * j + i / 4] << (24 - i % 4 * 8)) >> 4;
            out[i] = as_float(static_cast<unsigned>(moved) & 0x87f00000u) * power;
        }
    }
    // Whether a load has e4m3's NaN, all ones below the sign.
    static GEMMTUNE_DEVICE bool any_nan(const Words& raw) {
        unsigned carried = 0;
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) carried |= (raw.at[i] & 0x7f7f7f7fu) + 0x01010101u;
        return (carried & 0x80808080u) != 0;
    }
};

}  // namespace gemmtune
