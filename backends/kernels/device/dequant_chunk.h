// A chunk of quantised weights, their scales and zero points, and the activations: its layout in shared memory (a
// *slot* of the ring of dequant_ring.h, which has the overview), the copies that fill a slot, where a lane reads in it,
// and a lane's row of weights, converted.
#pragma once

#include "device/dequantise.h"
#include "device/line_copies.h"
#include "device/mma.h"

namespace gemmtune {

// TYPES and QUANT: of activations and weights. WARPS_M warps have ROWS rows of weights each and share COLUMNS columns.
template <typename TYPES, typename QUANT, int COLUMNS, int ROWS, int BK, int WARPS_M, typename PRODUCTS>
struct DequantChunk {
    using T = typename TYPES::Input;
    using Scale = typename QUANT::Scale;
    static constexpr int kTeam = 32 * WARPS_M;
    static constexpr int kAll = ROWS * WARPS_M;                               // rows of a block
    static constexpr int kLane = QUANT::kFloat ? 8 : QUANT::kWide;            // of a lane's elements in a step
    static constexpr int kStep = 4 * kLane, kSteps = BK / kStep;              // elements of k; steps of a chunk
    static constexpr int kEights = kLane / 8;
    static constexpr int kWords32 = QUANT::kBits / 4;                         // 16-byte words of 32 weights
    static constexpr int kHalves = (COLUMNS + 7) / 8;                         // accumulators across
    static constexpr int kGroup = QUANT::kGroup == 0 ? BK : QUANT::kGroup;
    static constexpr bool kGrouped = QUANT::kGroup != 0;
    static constexpr bool kAfter = kGrouped && kGroup % kStep == 0 && QUANT::kZero != kAdded && !PRODUCTS::kBoxes;
    static constexpr bool kFolded =
        !PRODUCTS::kOfWarpgroups && kAfter && QUANT::kBits == 4 && !QUANT::kFloat && kHalves <= 2 && kSame<T, Bf16>;
    static constexpr bool kSpread = QUANT::kFloat && !PRODUCTS::kOfWarpgroups;  // line_copies.h
    // Boxes of TMA: activations are elsewhere, and words of weights swizzled as in hopper.h.
    static constexpr bool kBoxes = PRODUCTS::kBoxes;
    static constexpr float kUnshrunk = kFolded ? 1.0f : kShrunkOf<T, QUANT>;  // dequantise.h
    static constexpr int kWeightBytes = BK * QUANT::kBits / 8, kInputBytes = BK * 2;  // of a line of a chunk
    static constexpr int kScales = kGrouped ? BK / kGroup : 0;                        // of a row of a chunk
    static constexpr int kScaleBytes = kScales * static_cast<int>(sizeof(Scale));
    static constexpr int kScalePitch = QUANT::kFloat ? kScaleBytes + 4 : kScaleBytes;  // from a row to the next
    static constexpr bool kFloatZeros = QUANT::kZero == kSubtracted || QUANT::kZero == kAdded;
    // Where the parts of a slot begin: activations, weights, scales, zero points.
    static constexpr int kX = 0, kW = kBoxes ? 0 : COLUMNS * kInputBytes, kS = kW + kAll * kWeightBytes;
    static constexpr int kZ = kS + kAll * kScalePitch;
    static constexpr int kZeroBytes = kFloatZeros ? kAll * kScaleBytes
                                      : QUANT::kZero == kWords ? kAll / 8 * kScales * 4 : 0;
    static constexpr int kSlot = (kZ + kZeroBytes + PRODUCTS::kPlace - 1) / PRODUCTS::kPlace * PRODUCTS::kPlace;
    static_assert(sizeof(T) == 2 && kWarp == 32, "16-bit elements in fragments of 32 lanes");
    static_assert(ROWS % 16 == 0 && BK % kStep == 0, "whole tiles and steps");
    static_assert(COLUMNS <= 8 || COLUMNS % 8 == 0, "whole halves of tiles");
    static_assert(!kGrouped || (BK % kGroup == 0 && kScaleBytes % 4 == 0), "copies are of 4 bytes");
    static_assert(!QUANT::kFloat || kAfter || kBoxes, "scales of floats multiply sums");
    static_assert(!kBoxes || kWeightBytes == 128, "a line of a box");
    static_assert(kGrouped || !QUANT::kStoredZeros, "a row's zero point is constant");

    // A warp's copies of the scales and zero points of its ROWS rows, from `begin` on, which are `row` and more in the
    // block.
    struct ScaleCopies {
        const char *scales, *zeros;  // of the warp's first row
        const char* end;             // of all scales
        i64 groups;                  // scales of a row
        int row, rows;               // the warp's first row in the block; its rows that exist
        int phase;                   // its first row among those that share a scale

        GEMMTUNE_DEVICE ScaleCopies(const WeightArgs& all, i64 begin, int row) : row(row) {
            groups = kGrouped ? opaque(all.scale_row) : 0;
            const i64 line = begin / QUANT::kSide * groups;
            scales = kGrouped ? static_cast<const char*>(all.scales) + line * i64(sizeof(Scale)) : nullptr;
            phase = static_cast<int>(begin % QUANT::kSide);
            end = QUANT::kFloat ? static_cast<const char*>(all.scales) + all.scale_bytes : nullptr;
            zeros = static_cast<const char*>(all.zeros);
            if (QUANT::kZero == kWords) zeros += begin / 8 * groups * 4;
            if (kFloatZeros) zeros += begin * groups * i64(sizeof(Scale));
            const i64 left = all.gemm.m - begin;
            rows = opaque(static_cast<int>(left < ROWS ? left : ROWS));
        }

        // Of a chunk with `left` elements from its first on. Those of groups beyond the last are zero.
        GEMMTUNE_DEVICE void chunk(char* slot, int chunk, int left) const {
            if constexpr (kGrouped) {
                const int there = left < BK ? left / kGroup : kScales;  // groups
                const int bytes = there * static_cast<int>(sizeof(Scale));
                const i64 ld = groups * i64(sizeof(Scale)), from = static_cast<i64>(chunk) * kScales;
                const i64 at = from * i64(sizeof(Scale));
                char* const of = slot + kS + row * kScalePitch;
                if constexpr (QUANT::kFloat)
                    copy_line_bytes<kScaleBytes, ROWS>(of, scales, ld, at, rows, bytes, end);
                else copy_line_words<kScaleBytes, ROWS, QUANT::kSide>(of, scales, ld, at, rows, bytes, phase);
                if constexpr (kFloatZeros)
                    copy_line_words<kScaleBytes, ROWS>(slot + kZ + row * kScaleBytes, zeros, ld, at, rows, bytes);
                if constexpr (QUANT::kZero == kWords)
                    copy_line_words<kScales * 4, ROWS / 8>(slot + kZ + row / 8 * kScales * 4, zeros, groups * 4,
                                                           from * 4, rows / 8, there * 4);
            }
        }
    };

    // A warp copies its own rows of weights, and its share of the team's activations.
    struct Copies {
        LineCopies<kWeightBytes, ROWS, 32, 1, kSpread> weights;
        typename PRODUCTS::template Inputs<kInputBytes, COLUMNS, kTeam, kEights> inputs;
        ScaleCopies scales;
        int row, k;  // the warp's first row in the block

        GEMMTUNE_DEVICE Copies(const WeightArgs& all, int first, int member)
            : weights(static_cast<const char*>(all.gemm.a) + (first + member * ROWS) * all.gemm.lda, all.gemm.lda,
                      all.gemm.m - first - member * ROWS, lane_index()),
              inputs(all.gemm.b, all.gemm.ldb * 2, all.gemm.n, member * 32 + lane_index()),
              scales(all, first + member * ROWS, member * ROWS), row(member * ROWS), k(all.gemm.k) {}

        // Starts this lane's copies of a chunk. Elements beyond the last are zero.
        GEMMTUNE_DEVICE void chunk(char* slot, int chunk) const {
            const int left = k - chunk * BK;
            const i64 a = static_cast<i64>(chunk) * kWeightBytes, b = static_cast<i64>(chunk) * kInputBytes;
            char* const to = slot + kW + row * kWeightBytes;
            if (left >= BK) {
                weights.template run<true>(to, a, kWeightBytes);
                inputs.template run<true>(slot + kX, b, kInputBytes);
            } else {
                weights.template run<false>(to, a, left * QUANT::kBits / 8);
                inputs.template run<false>(slot + kX, b, left * 2);
            }
            scales.chunk(slot, chunk, left);
        }
    };

    // Where a lane reads in a slot: its row of every eight, its column of every eight.
    struct Reads {
        int group, member, weights_at, inputs_at, row;  // row: the warp's first one in the block
        int scales_at;                                  // of bytes, from a row's first word on
        unsigned mask;
        GEMMTUNE_DEVICE Reads(int warp, int k, i64 groups)
            : group(lane_index() / 4), member(lane_index() % 4), row(warp * ROWS),
              mask(kept(kFolded ? kLiftedMask : kConvertMask, k)) {
            const int own = kSpread ? (row + group) * kWeightBytes + member * 4
                                    : line_place<kWeightBytes>(row + group, member);
            weights_at = opaque(kW + own);
            scales_at = QUANT::kFloat ? static_cast<int>(group * groups & 3) : 0;
            inputs_at = opaque(kX + line_place<kInputBytes>(COLUMNS < 8 ? group % COLUMNS : group, member));
        }

        GEMMTUNE_DEVICE void weights(const char* slot, int from, int step, unsigned (&out)[4]) const {
            if constexpr (kSpread) {
                const int place = (step ^ spread<kWeightBytes>(group)) * 16;
                out[0] = read_shared<unsigned>(slot + weights_at + place + from * kWeightBytes);
                return;
            }
            const Words all = read_shared<Words>(slot + line_word<kWeightBytes>(weights_at, step) +
                                                 from * kWeightBytes);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) out[i] = all.at[i];
        }
        // The same for a warpgroup, whose lanes have the k of fragments: of the chunk's 32 elements of k number
        // `number` the lane's pairs, converted. The lanes of a row read the same words.
        GEMMTUNE_DEVICE void together(const char* slot, int from, int number, unsigned zero, unsigned (&out)[4]) const {
            const int line = row + from + group;
            Words words[kWords32];
            GEMMTUNE_UNROLL
            for (int i = 0; i < kWords32; ++i) {
                const int place = (number * kWords32 + i) ^ exchanged<kWeightBytes>(group);
                words[i] = read_shared<Words>(slot + kW + line * kWeightBytes + place * 16);
            }
            own_pairs(words, zero, out);
        }
        // The lane's own pairs of the words of 32 elements.
        GEMMTUNE_DEVICE void own_pairs(const Words (&words)[kWords32], unsigned zero, unsigned (&out)[4]) const {
            if constexpr (QUANT::kFloat) {
                const unsigned selected = 0x4000u + static_cast<unsigned>(member) * 0x1010u;
                unsigned top[4];
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) top[i] = permuted_by(selected, words[0].at[i] << 4, words[0].at[i]);
                float_pairs<T>(top, out);
            } else if constexpr (QUANT::kBits == 4) {
                const unsigned selected = 0x4040u + static_cast<unsigned>(member) * 0x0101u;
                unsigned byte[4];
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) byte[i] = permuted_by(selected, words[0].at[i], 0);
                Convert<T, 4>::template pairs<QUANT::kSigned>(byte, mask, zero, out);
            } else {
                const unsigned selected = 0x10u + static_cast<unsigned>(member) * 0x22u;  // bytes 2 member and + 1
                unsigned raw[4];
                GEMMTUNE_UNROLL
                for (int i = 0; i < 2; ++i) {
                    const Words& all = words[i];
                    raw[i] = permuted<0x5410>(permuted_by(selected, all.at[0], all.at[1]),
                                              permuted_by(selected, all.at[2], all.at[3]));
                }
                raw[2] = raw[3] = 0;
                ConvertOf<T, QUANT>::template run<QUANT::kSigned>(raw, mask, 0, zero, out);
            }
        }
        // The activations of eight elements of k, from 8 j on in the lane's step.
        GEMMTUNE_DEVICE void inputs(const char* slot, int half, int step, int j, unsigned (&out)[4]) const {
            const Words all = read_shared<Words>(slot + line_word<kInputBytes>(inputs_at, step * kEights + j) +
                                                 half * 8 * kInputBytes);
            if constexpr (kFolded) {
                paired(all.at, out);
            } else {
                GEMMTUNE_UNROLL
                for (int i = 0; i < 4; ++i) out[i] = all.at[i];
            }
        }
        GEMMTUNE_DEVICE Scale scale(const char* slot, int from, int of) const {
            const int at = (row + from + group) * (kScalePitch / static_cast<int>(sizeof(Scale))) + of;
            return reinterpret_cast<const Scale*>(slot + kS)[QUANT::kFloat ? at + scales_at : at];
        }
        GEMMTUNE_DEVICE Scale float_zero(const char* slot, int from, int of) const {
            return reinterpret_cast<const Scale*>(slot + kZ)[(row + from + group) * kScales + of];
        }
        GEMMTUNE_DEVICE unsigned whole_zero(const char* slot, int from, int of) const {
            return reinterpret_cast<const unsigned*>(slot + kZ)[(row + from) / 8 * kScales + of] >> 4 * group & 15u;
        }
    };

    // The group of a lane's integers in a step, among those of the chunk.
    static GEMMTUNE_DEVICE int group_of(const Reads& reads, int step) {
        return kGroup % kStep == 0 ? step * kStep / kGroup : (step * kStep + reads.member * QUANT::kWide) / kGroup;
    }

    // A lane's row of weights in a step: raw, with what converts it.
    struct Row {
        unsigned raw[4];
        unsigned whole;         // zero point
        unsigned zero;          // a pair, where weights have floating-point zero points
        PairScale<T, QUANT> scale;  // where weights are multiplied
        float factor, offset;   // kGrouped: the scale; kFolded: what is subtracted

        GEMMTUNE_DEVICE void read(const char* slot, const Reads& reads, int row, int step) {
            reads.weights(slot, row, step, raw);
            read_scales(slot, reads, row, group_of(reads, step));
        }
        // Of the chunk's group number `of`.
        GEMMTUNE_DEVICE void read_scales(const char* slot, const Reads& reads, int row, int of) {
            whole = kConstantZero<QUANT>;
            if constexpr (QUANT::kZero == kWords) whole = reads.whole_zero(slot, row, of);
            if constexpr (kFolded) offset = kPower + static_cast<float>(whole);
            if constexpr (kFloatZeros) {
                const float z = widen(reads.float_zero(slot, row, of));
                if constexpr (kFolded) offset += z;
                else zero = both(narrow<T>(QUANT::kZero == kSubtracted ? -z / kUnshrunk : z).bits);
            }
            if constexpr (kGrouped) factor = widen(reads.scale(slot, row, of)) * kUnshrunk;
            if constexpr (kGrouped && !kAfter) scale.set(factor);
        }

        GEMMTUNE_DEVICE void convert(unsigned mask, int j, unsigned (&out)[4]) const {
            if constexpr (kFolded) {
                lifted_pairs<QUANT::kSigned>(raw, mask, j, out);
                return;
            }
            if constexpr (QUANT::kFloat) return eight_floats<T>(raw[0], out);
            ConvertOf<T, QUANT>::template run<QUANT::kSigned>(raw, mask, j, whole, out);
            scale_pairs(out);
        }
        // What conversion leaves to do: floating-point zero points, and scales that multiply weights.
        GEMMTUNE_DEVICE void scale_pairs(unsigned (&out)[4]) const {
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) {
                if constexpr (QUANT::kZero == kSubtracted) out[i] = fma_pair<T>(out[i], PairBits<T>::kOne, zero);
                if constexpr (kGrouped && !kAfter)
                    out[i] = scale.times(out[i], QUANT::kZero == kAdded ? zero : PairBits<T>::kMinusZero);
            }
        }
    };
};

}  // namespace gemmtune
