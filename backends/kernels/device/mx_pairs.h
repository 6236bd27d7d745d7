// Elements of e2m1 as tensor cores multiply them (mma.sync), eight from a word of memory: twice the number, which is a
// whole one of -12 to 12. So sums of products are four times as large, 4608 at most for a group, and kUnit times their
// scales is infinite where every sum but zero is beyond fp32. Which elements of a group are at which place is free, as
// both operands have the same order.
//
// MxHalves: the bits where fp16 has its sign, exponent and mantissa, which makes numbers smaller by 2^14 (0.5 is
// subnormal there, too), times 2^15. A group is two instructions of 16 elements of k.
//
// MxBytes: two tables of four bytes each have the eight magnitudes, two more the negative ones. A group is one
// instruction of 32 elements of k, whose sum is added to the bits of 1.5 2^23: there a unit of the sum is one of the
// float.
#pragma once

#include "device/mma_bytes.h"
#include "device/mx_scales.h"

namespace gemmtune {

struct MxHalves {
    struct Eight {
        unsigned at[4];
    };
    static constexpr float kUnit = 0.25f;

    static GEMMTUNE_DEVICE Eight eight(unsigned word) {
        constexpr unsigned kSigns = 0x80008000u, kRest = 0x0e000e00u, kPower = 0x78007800u;  // 2^15
        Eight out;
        out.at[0] = (word << 12 & kSigns) | (word << 9 & kRest), out.at[1] = (word << 8 & kSigns) | (word << 5 & kRest);
        out.at[2] = (word << 4 & kSigns) | (word << 1 & kRest), out.at[3] = (word & kSigns) | (word >> 3 & kRest);
        GEMMTUNE_UNROLL
        for (unsigned& pair : out.at) pair = fma_pair<Half>(pair, kPower, PairBits<Half>::kMinusZero);
        return out;
    }
    // The sums of a group's products, in units of kUnit. `lower`: of the rows eight below.
    static GEMMTUNE_DEVICE void multiply(const Eight& upper, const Eight& lower, const Eight& b, float (&sum)[4]) {
        GEMMTUNE_UNROLL
        for (float& one : sum) one = 0.0f;
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; i += 2) {
            const unsigned rows[4] = {upper.at[i], lower.at[i], upper.at[i + 1], lower.at[i + 1]};
            const unsigned columns[2] = {b.at[i], b.at[i + 1]};
            mma_16x8x16<Half>(sum, rows, columns);
        }
    }
};

struct MxBytes {
    struct Eight {
        unsigned at[2];
    };
    static constexpr float kUnit = 0.25f;

    static GEMMTUNE_DEVICE Eight eight(unsigned word) {
        const unsigned magnitudes = word & 0x77777777u, negative = word >> 1 & 0x44444444u;
        return {{four(magnitudes, negative), four(magnitudes >> 16, negative >> 16)}};
    }
    static GEMMTUNE_DEVICE void multiply(const Eight& upper, const Eight& lower, const Eight& b, float (&sum)[4]) {
        constexpr int kAbove = 0x4b400000;  // 1.5 2^23
        int whole[4] = {kAbove, kAbove, kAbove, kAbove};
        const unsigned rows[4] = {upper.at[0], lower.at[0], upper.at[1], lower.at[1]};
        mma_16x8x32(whole, rows, b.at);
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) sum[i] = as_float(static_cast<unsigned>(whole[i])) - 12582912.0f;
    }

private:
    // Four numbers, by the lowest four digits: of their magnitudes, and 4 where they are negative, else 0.
    static GEMMTUNE_DEVICE unsigned four(unsigned magnitudes, unsigned negative) {
        const unsigned above = permuted_by(magnitudes & 0xffffu, 0x03020100u, 0x0c080604u);
        const unsigned below = permuted_by(magnitudes & 0xffffu, 0xfdfeff00u, 0xf4f8fafcu);
        const unsigned chosen = permuted_by(negative & 0xffffu, 0u, ~0u);
        return (above & ~chosen) | (below & chosen);
    }
};

}  // namespace gemmtune
