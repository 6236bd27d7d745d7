// Quantised weights in a layout of their own, which a program packs once: a copy of the weights, their scales and zero
// points as a warp reads them. The stored weights are not read afterwards.
//
// Sixteen rows are a *tile*, and its elements of k come in *records* of kDeep, one behind the other along k. A record
// has 1024 bytes of weights: 16 bytes for each lane of its rows 0 to 7, and then of its rows 8 to 15. Lane (row, t), t
// < 4, has the elements 8 t to 8 t + 7 of every 32: of 4 bits a word of them, of 8 bits two. So 32 elements are one
// group's, whatever its size, and four lanes have 32 that are contiguous in the activations.
// Then come the scales of the record's groups, 16 rows of each, and the zero points, if they are stored: 16 of the type
// of scales, or 16 bytes. A record is padded to whole 16 bytes.
// Rows and elements beyond the last have weights of zero bits; their groups' scales and zero points are zero bytes. A
// scale for a whole row, or for all weights, is behind the last record, for every row of every tile; rows beyond the
// last have that of row 0.
//
// Eight integers of 4 bits lie in a word so that a mask takes neighbours: element 2 i at bit 4 i, 2 i + 1 at bit 16 +
// 4 i. Signed ones are stored with the sign inverted, as unsigned numbers that are larger by 8. Others keep their bits.
#pragma once

#include "device/dequantise.h"

namespace gemmtune {

// kernels/weights.py: PackedWeightArgs. `packed`: the copy, which the packing kernel writes and the product reads.
struct PackedWeightArgs {
    WeightArgs weights;
    void* packed;
    i64 packed_bytes;
};

template <typename QUANT>
struct PackedRecord {
    using Scale = typename QUANT::Scale;
    static constexpr int kRows = 16, kWeightBytes = 1024;
    static constexpr int kDeep = kWeightBytes * 8 / kRows / QUANT::kBits;  // elements of k
    static constexpr bool kGrouped = QUANT::kGroup != 0;
    static constexpr int kGroups = !kGrouped ? 0 : QUANT::kGroup >= kDeep ? 1 : kDeep / QUANT::kGroup;
    static constexpr bool kFloatZeros = QUANT::kZero == kSubtracted || QUANT::kZero == kAdded;
    static constexpr int kScales = kWeightBytes, kScaleBytes = kRows * static_cast<int>(sizeof(Scale));
    static constexpr int kZeros = kScales + kGroups * kScaleBytes;
    static constexpr int kZeroBytes = kFloatZeros ? kScaleBytes : QUANT::kZero == kWords ? kRows : 0;
    static constexpr int kBytes = (kZeros + kGroups * kZeroBytes + 15) / 16 * 16;
    static constexpr int kBeside = (kBytes - kWeightBytes) / 16;  // words of 16 bytes behind the weights
    static_assert(kBeside <= 32, "a lane copies one of them");

    // Tiles of m rows, and records of k elements.
    static GEMMTUNE_DEVICE int tiles(int m) { return (m - 1) / kRows + 1; }
    static GEMMTUNE_DEVICE int records(int k) { return (k - 1) / kDeep + 1; }
};

#if !defined(__HIP__) && !defined(__HIPCC_RTC__)
// The packing kernel: a thread for 16 bytes of weights of a tile's record, in a grid of enough blocks.
template <typename QUANT>
struct PackWeights {
    using Args = PackedWeightArgs;
    using Record = PackedRecord<QUANT>;
    using Scale = typename QUANT::Scale;
    static constexpr int kThreads = 256, kMinBlocks = 0, kSharedBytes = 0;
    static constexpr int kLanes = 64;  // of a record: two for a row's lane

    static GEMMTUNE_DEVICE void run(const Args& all, char*) {
        const GemmArgs& args = all.weights.gemm;
        const i64 at = static_cast<i64>(block_x()) * kThreads + thread_index(), record = at / kLanes;
        const int records = Record::records(args.k), tile = static_cast<int>(record / records);
        if (tile >= Record::tiles(args.m)) return;
        const int number = static_cast<int>(record - static_cast<i64>(tile) * records);
        const int lane = static_cast<int>(at % kLanes), row = tile * Record::kRows + lane / 4;
        char* const to = static_cast<char*>(all.packed) + record * Record::kBytes;
        Words out{{0, 0, 0, 0}};
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int j = QUANT::kBits == 4 ? i : i / 2, more = QUANT::kBits == 4 ? 0 : i % 2 * 4;
            const i64 k = static_cast<i64>(number) * Record::kDeep + 32 * j + lane % 4 * 8 + more;
            if (row >= args.m || k >= args.k) continue;
            const char* const from = static_cast<const char*>(args.a) + row * args.lda + k * QUANT::kBits / 8;
            out.at[i] = ordered(*reinterpret_cast<const unsigned*>(from));
        }
        write16(to + lane * 16, out);
        if (lane < Record::kRows) beside(all.weights, to, tile * Record::kRows + lane, number, lane);
        if (!Record::kGrouped && number == 0 && lane < Record::kRows) {
            Scale* const tail = reinterpret_cast<Scale*>(
                static_cast<char*>(all.packed) + static_cast<i64>(Record::tiles(args.m)) * records * Record::kBytes);
            const int own = tile * Record::kRows + lane;
            tail[own] = static_cast<const Scale*>(all.weights.scales)[(own < args.m ? own : 0) * all.weights.scale_row];
        }
    }

private:
    // A word as it is packed.
    static GEMMTUNE_DEVICE unsigned ordered(unsigned word) {
        if (QUANT::kBits != 4 || QUANT::kFloat) return word;
        unsigned out = 0;
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i)
            out |= (word >> 8 * i & 15u) << 4 * i | (word >> (8 * i + 4) & 15u) << (4 * i + 16);
        return out ^ (QUANT::kSigned ? 0x88888888u : 0u);
    }

    // The scales and zero points of a row of a record, and zero bytes up to the next one.
    static GEMMTUNE_DEVICE void beside(const WeightArgs& all, char* to, int row, int number, int at) {
        const bool exists = row < all.gemm.m;
        GEMMTUNE_UNROLL
        for (int g = 0; g < Record::kGroups; ++g) {
            const i64 first = static_cast<i64>(number) * Record::kDeep + g * QUANT::kGroup, of = first / kGroup;
            const bool there = exists && first < all.gemm.k;
            const i64 line = row / QUANT::kSide * all.scale_row + of;
            Scale scale{};
            if (there) scale = static_cast<const Scale*>(all.scales)[line];
            reinterpret_cast<Scale*>(to + Record::kScales)[g * Record::kRows + at] = scale;
            if constexpr (Record::kFloatZeros) {
                Scale zero{};
                if (there) zero = static_cast<const Scale*>(all.zeros)[line];
                reinterpret_cast<Scale*>(to + Record::kZeros)[g * Record::kRows + at] = zero;
            }
            if constexpr (QUANT::kZero == kWords) {
                unsigned zero = 0;
                if (there)
                    zero = static_cast<const unsigned*>(all.zeros)[row / 8 * all.scale_row + of] >> row % 8 * 4 & 15u;
                reinterpret_cast<unsigned char*>(to + Record::kZeros)[g * Record::kRows + at] =
                    static_cast<unsigned char>(zero);
            }
        }
        constexpr int kUsed = Record::kZeros + Record::kGroups * Record::kZeroBytes;
        if (at == 0)
            for (int i = kUsed; i < Record::kBytes; ++i) to[i] = 0;
    }
    static constexpr int kGroup = QUANT::kGroup == 0 ? 1 : QUANT::kGroup;
};
#endif

}  // namespace gemmtune
