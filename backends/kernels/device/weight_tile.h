// A tile of a product of quantised weights by AMD's matrix instructions. Tiles of weights, as they are stored, and of
// activations pass through registers to shared memory (staged_pipeline.h, staged_weights.h). Wavefronts dequantise
// their rows in registers.
//
// Weights are the instructions' second operand: a lane has one row of them, and its sums are of the same row, so that
// it needs one scale and one zero point. The sums of a group of k are multiplied by its scale in fp32 before they are
// added; where a row has one scale, those of a tile. No scaled weight is rounded, and MXFP4 is exact whatever its
// scales.
//
// What conversion leaves to subtract of every weight (the power of two of bf16, floating-point zero points) is the
// same for the whole group. It is subtracted from the group's sums, times the sum of the activations, which an
// instruction gives whose weights are ones.
#pragma once

#include "device/epilogue.h"
#include "device/staged_pipeline.h"
#include "device/staged_weights.h"
#include "device/sum_patch.h"

namespace gemmtune {

// The part of k that a block multiplies, in tiles of BK elements: all of it, or a slice.
template <int BK>
struct AllOfK {
    static GEMMTUNE_DEVICE int begin() { return 0; }
    static GEMMTUNE_DEVICE int tiles(const GemmArgs& args) { return (args.k - 1) / BK + 1; }
};
template <int BK>
struct SliceOfK {
    Slice<BK> slice;
    GEMMTUNE_DEVICE int begin() const { return slice.begin; }
    GEMMTUNE_DEVICE int tiles(const GemmArgs&) const { return slice.end - slice.begin; }
};

// INSTRUCTION: matrix_core.h. T: of the activations. QUANT: dequantise.h. WHOLE_A, WHOLE_B: staged_operand.h. A block
// has BM rows of weights and BN columns of activations, BK elements of k at a time, and a wavefront WM x WN of D.
template <typename INSTRUCTION, typename T, typename QUANT, bool WHOLE_A, bool WHOLE_B, bool FAR, int BM, int BN,
          int BK, int WM, int WN, int STAGES>
struct WeightTile {
    using I = INSTRUCTION;
    using Sum = typename I::Sum;
    using Sums = typename I::Sums;
    static constexpr int kWavesM = BM / WM, kWaves = kWavesM * (BN / WN), kThreads = I::kWave * kWaves;
    static constexpr int kTilesM = WM / I::kLines, kTilesN = WN / I::kLines;
    using Weights = StagedWeights<QUANT::kBits, I, WHOLE_A, FAR, BM, BK, kThreads>;
    using Inputs = StagedOperand<T, true, WHOLE_B, FAR, BN, BK, kThreads>;
    using Read = typename Inputs::template Read<I, Weights::kTurns>;
    using Scales = LaneScales<T, QUANT, kTilesM, I::kLines, BK>;
    using Patch = SumPatch<I, WM, WN, true>;
    static constexpr int kPerStep = Read::kPerStep;             // instructions of a step
    static constexpr int kRun = Scales::kGroup / Weights::kDeep;  // steps of a group
    static constexpr bool kOnes = !QUANT::kFloat && (kSame<T, Bf16> || Scales::kFloats);
    static constexpr int kTile = Weights::kBytes + Inputs::kBytes;
    static constexpr int kPipeline = STAGES * kTile, kPatches = kWaves * Patch::kBytes;
    static constexpr int kSharedBytes = kPipeline > kPatches ? kPipeline : kPatches;
    static_assert(kWarp == I::kWave, "MFMA is for wavefronts of 64, WMMA for those of 32");
    static_assert(BM % WM == 0 && BN % WN == 0, "a tile is whole wavefronts' parts");
    static_assert(WM % I::kLines == 0 && WN % I::kLines == 0, "a wavefront's part is whole instructions");
    static_assert(Scales::kGroup % (Weights::kDeep * Weights::kTurns) == 0 && Weights::kSteps == Read::kSteps,
                  "groups are whole steps");

    // Adds the products of a part of k (AllOfK, SliceOfK) to the sums of a wavefront whose part of D begins `row` rows
    // and `column` columns behind the block's (i, j). All of the block takes part; afterwards no wavefront reads the
    // tiles in shared memory any more. `of`: scales of all rows. IDLE: see register_staged_tile.h.
    template <bool IDLE, typename PART>
    static GEMMTUNE_DEVICE void multiply(const GemmArgs& args, const WeightScales& of, i64 i, i64 j,
                                         const PART& part, int row, int column, char* shared,
                                         Sums (&sum)[kTilesM][kTilesN]) {
        const int first = part.begin() * BK;
        Weights weights(args.a, args.lda, i, args.m, first, args.k);
        Inputs inputs(args.b, 0, args.ldb, j, args.n, first, args.k);
        Scales scales(of, static_cast<int>(i) + row, first);
        int left = args.k - first;  // elements of k from the next tile to load on
        const auto load = [&] {
            weights.load(left);
            if (inputs.full() && left >= BK) inputs.load();
            else inputs.load_edge(left);
            if constexpr (!IDLE) scales.load(left);
            left -= BK;
        };
        const auto store = [&](char* to) {
            weights.store(to);
            inputs.each_chunk([&](int place, const unsigned (&words)[4]) {
                Words found;
                paired(words, found);
                write16(to + Weights::kBytes + place, found);
            });
            if constexpr (!IDLE) scales.take();
        };
        const auto multiply = [&](const char* tile) {
            if constexpr (!IDLE) multiply_tile(tile, row, column, scales, sum);
        };
        staged_pipeline<STAGES, kTile>(part.tiles(args), shared, load, store, multiply);
    }

private:
    // A step's operands are read while the step before is multiplied, and no earlier: compilers would read those of the
    // whole tile at once and run out of registers.
    static GEMMTUNE_DEVICE void multiply_tile(const char* tile, int row, int column, const Scales& scales,
                                              Sums (&sum)[kTilesM][kTilesN]) {
        Words words[2][kTilesM];
        Packed<I::kWords> inputs[2][kTilesN][kPerStep];
        const auto read = [&](int step) {
            Read::run(tile + Weights::kBytes, column, step, inputs[step % 2]);
            const int number = step / Weights::kOfFour;
            if (step % Weights::kOfFour == 0) Weights::read(tile, row, number, words[number % 2]);
        };
        Sums part[kTilesM][kTilesN], ones[kTilesN];
        read(0);
        GEMMTUNE_UNROLL
        for (int step = 0; step < Weights::kSteps; ++step) {
            if (step + 1 < Weights::kSteps) read(step + 1);
            schedule_barrier();
            if (step % kRun == 0) clear(part, ones);
            if constexpr (kOnes) add_up(inputs[step % 2], ones);
            GEMMTUNE_UNROLL
            for (int m = 0; m < kTilesM; ++m)
                multiply_step(words[step / Weights::kOfFour % 2][m], step % Weights::kOfFour,
                              scales.zero(m, step / kRun), inputs[step % 2], part[m]);
            if ((step + 1) % kRun == 0) add_scaled(part, ones, scales, step / kRun, sum);
            schedule_barrier();
        }
    }

    static GEMMTUNE_DEVICE void clear(Sums (&part)[kTilesM][kTilesN], Sums (&ones)[kTilesN]) {
        GEMMTUNE_UNROLL
        for (int n = 0; n < kTilesN; ++n) {
            ones[n] = {};
            GEMMTUNE_UNROLL
            for (int m = 0; m < kTilesM; ++m) part[m][n] = {};
        }
    }

    // The products of the step's weights of one row of a lane, the `number`-th of four words' steps.
    static GEMMTUNE_DEVICE void multiply_step(const Words& words, int number, unsigned zero,
                                              const Packed<I::kWords> (&inputs)[kTilesN][kPerStep],
                                              Sums (&part)[kTilesN]) {
        constexpr int kRead = Weights::kRead;
        Packed<I::kWords> weights[kPerStep];
        GEMMTUNE_UNROLL
        for (int word = 0; word < kRead; ++word) {
            unsigned pairs[4];
            if constexpr (QUANT::kBits == 8)
                paired_bytes<T>(words.at[2 * (number * kRead + word)],
                                words.at[2 * (number * kRead + word) + 1], pairs);
            else paired_weights<T, QUANT>(words.at[number * kRead + word], zero, pairs);
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int at = word * 4 + i;
                weights[at / I::kWords].at[at % I::kWords] = pairs[i];
            }
        }
        GEMMTUNE_UNROLL
        for (int k = 0; k < kPerStep; ++k) {
            GEMMTUNE_UNROLL
            for (int n = 0; n < kTilesN; ++n) I::multiply(part[n], inputs[n][k], weights[k]);
        }
    }

    // Adds the sums of the step's activations.
    static GEMMTUNE_DEVICE void add_up(const Packed<I::kWords> (&inputs)[kTilesN][kPerStep], Sums (&ones)[kTilesN]) {
        Packed<I::kWords> one;
        GEMMTUNE_UNROLL
        for (unsigned& word : one.at) word = PairBits<T>::kOne;
        GEMMTUNE_UNROLL
        for (int k = 0; k < kPerStep; ++k) {
            GEMMTUNE_UNROLL
            for (int n = 0; n < kTilesN; ++n) I::multiply(ones[n], inputs[n][k], one);
        }
    }

    // Adds the sums of group `of`, scaled.
    static GEMMTUNE_DEVICE void add_scaled(const Sums (&part)[kTilesM][kTilesN], const Sums (&ones)[kTilesN],
                                           const Scales& scales, int of, Sums (&sum)[kTilesM][kTilesN]) {
        GEMMTUNE_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
            const float scale = scales.scale(m, of), offset = scales.offset(m, of), added = scales.added(m, of);
            GEMMTUNE_UNROLL
            for (int n = 0; n < kTilesN; ++n) {
                GEMMTUNE_UNROLL
                for (int i = 0; i < I::kSums; ++i) {
                    float found = part[m][n][i];
                    if constexpr (kOnes) found -= offset * ones[n][i];
                    sum[m][n][i] += scale * found;
                    if constexpr (QUANT::kZero == kAdded) sum[m][n][i] += added * ones[n][i];
                }
                computed_here(sum[m][n]);
            }
        }
    }
};

}  // namespace gemmtune
