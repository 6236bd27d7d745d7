// From the sums of matrix instructions to D, with scales and integers, which epilogue.h does not have:
//
//   D[i, j] = scale_d activation(alpha scale_a[i] scale_b[j] sum + beta C[i, j] + bias)
//
// Everything is computed in fp32 and rounded once, with one exception: where D, C and the bias are integers,
// alpha and beta are whole numbers, and there are neither scales nor a smooth activation, the arithmetic is
// exact in 64 bits, as int32 products are compared exactly. Integers saturate.
#pragma once

#include "device/epilogue.h"
#include "device/global_memory.h"
#include "device/small_types.h"

namespace gemmtune {

// GemmArgs and the scales of A's rows, B's columns and D; a null pointer is a scale of one.
// (backends/kernels/matrix_epilogue.py: ScaledArgs)
struct ScaledArgs : GemmArgs {
    const float *scale_a, *scale_b, *scale_d;
    int scale_row, scale_column;       // from a row's (column's) scale to the next one's: 1, or 0 for one scale
    i64 scale_a_bytes, scale_b_bytes;  // of all scales
};

// Types of A, B, C, D and the bias.
template <typename TYPE_A, typename TYPE_B, typename TYPE_C, typename TYPE_D, typename BIAS>
struct MatrixTypes {
    using A = TYPE_A;
    using B = TYPE_B;
    using C = TYPE_C;
    using D = TYPE_D;
    using Bias = BIAS;
    using Sum = typename SumOf<A>::Type;
};

// Where the sums of a tile's elements along k are: in an instruction's registers, added in fp32, or multiplied by the
// scales of blocks and added (tile_wgmma.h, bytes_tile_mma.h).
enum SumsKind { kPlain = 0, kPromoted = 1, kScaled = 2 };

template <typename T>
GEMMTUNE_DEVICE i64 whole_of(T) { return 0; }
GEMMTUNE_DEVICE i64 whole_of(Int8 value) { return value.value; }
GEMMTUNE_DEVICE i64 whole_of(Int32 value) { return value.value; }

// Whether a scalar is a whole number that an int holds.
GEMMTUNE_DEVICE bool is_whole(float value) {
    return value >= -2147483648.0f && value < 2147483648.0f && value == GEMMTUNE_NEAREST(value);
}

// A place in D from which sums are finished: element (row, column) is so many rows and columns on.
template <typename TYPES>
struct MatrixFinish {
    using Sum = typename TYPES::Sum;
    using C = typename TYPES::C;
    using D = typename TYPES::D;
    using Bias = typename TYPES::Bias;
    static constexpr bool plain = false;  // whether the epilogue is alpha times the sum: not distinguished
    static constexpr bool kIntegers = kInteger<C> && kInteger<D> && kInteger<Bias>;

    const ScaledArgs& args;
    const C* c;
    const Bias* bias;
    D* d;
    const float *scale_a, *scale_b;
    int rows, columns;  // of D from here on
    bool fours;         // four neighbouring rows from a multiple of four on may be stored at once
    bool exact;         // by integer arithmetic

    GEMMTUNE_DEVICE MatrixFinish(const ScaledArgs& args, i64 batch, i64 i, i64 j)
        : args(args), c(static_cast<const C*>(args.c)),
          bias(static_cast<const Bias*>(args.bias)), d(static_cast<D*>(args.d)),
          scale_a(args.scale_a), scale_b(args.scale_b),
          rows(static_cast<int>(args.m - i)), columns(static_cast<int>(args.n - j)) {
        // Null pointers stay null.
        if (args.beta != 0.0f) c += batch * args.stride_c + i * args.c_row + j * args.c_column;
        if (bias) bias += i * args.bias_row + j * args.bias_column;
        if (scale_a) scale_a += i * args.scale_row;
        if (scale_b) scale_b += j * args.scale_column;
        d += batch * args.stride_d + i * args.d_row + j * args.d_column;
        const u64 apart = static_cast<u64>(args.d_column) * sizeof *d;
        fours = args.d_row == 1 && ((reinterpret_cast<u64>(d) | apart) & (4 * sizeof *d - 1)) == 0;
        exact = kIntegers && !args.scale_a && !args.scale_b && !args.scale_d && is_whole(args.alpha) &&
                is_whole(args.beta) && args.activation <= kRelu;
    }

    // Stores four neighbouring rows' elements of a column, as many of them as are in D.
    GEMMTUNE_DEVICE void store4(int row, int column, const Sum (&sum)[4]) const {
        if (column >= columns || row >= rows) return;
        D four[4];
        if (exact) {
            GEMMTUNE_UNROLL
            for (int e = 0; e < 4; ++e) four[e] = whole(row + (row + e < rows ? e : 0), column, sum[e]);
        } else {
            float value[4];
            GEMMTUNE_UNROLL
            for (int e = 0; e < 4; ++e) value[e] = static_cast<float>(sum[e]);
            finish(row, column, value);
            GEMMTUNE_UNROLL
            for (int e = 0; e < 4; ++e) four[e] = narrow<D>(value[e]);
        }
        D* const to = d + row * args.d_row + column * args.d_column;
        if (fours && row + 4 <= rows) return write(to, four);
        GEMMTUNE_UNROLL
        for (int e = 0; e < 4; ++e)
            if (row + e < rows) store_global(to + e * args.d_row, four[e]);
    }

    // Stores the first element, or the one `row` rows and `column` columns on, which is in D.
    GEMMTUNE_DEVICE void store(Sum sum) const { store(0, 0, sum); }
    GEMMTUNE_DEVICE void store(int row, int column, Sum sum) const {
        D* const to = d + row * args.d_row + column * args.d_column;
        if (exact) {
            store_global(to, whole(row, column, sum));
        } else {
            float value[1] = {static_cast<float>(sum)};
            finish(row, column, value);
            store_global(to, narrow<D>(value[0]));
        }
    }

private:
    GEMMTUNE_DEVICE const C* c_at(int row, int column) const {
        return c + row * args.c_row + column * args.c_column;
    }
    GEMMTUNE_DEVICE const Bias* bias_at(int row, int column) const {
        return bias + row * args.bias_row + column * args.bias_column;
    }

    // An element by integer arithmetic.
    GEMMTUNE_DEVICE D whole(int row, int column, Sum sum) const {
        if constexpr (kIntegers) {
            i64 value = static_cast<i64>(args.alpha) * static_cast<i64>(sum);
            if (args.beta != 0.0f)
                value += static_cast<i64>(args.beta) * whole_of(load_global(c_at(row, column)));
            if (bias) value += whole_of(load_global(bias_at(row, column)));
            if (args.activation == kRelu && value < 0) value = 0;
            return saturate<D>(value);
        } else {
            return D{};
        }
    }

    // N neighbouring rows' sums become elements before they are rounded; what is read for them is requested
    // together. Of rows beyond D the last one's operands are read.
    template <int N>
    GEMMTUNE_DEVICE void finish(int row, int column, float (&value)[N]) const {
        int at[N];
        GEMMTUNE_UNROLL
        for (int e = 0; e < N; ++e) at[e] = row + e < rows ? row + e : rows - 1;
        GEMMTUNE_UNROLL
        for (int e = 0; e < N; ++e) value[e] *= args.alpha;
        if (scale_a) {
            GEMMTUNE_UNROLL
            for (int e = 0; e < N; ++e) value[e] *= load_global(scale_a + at[e] * args.scale_row);
        }
        if (scale_b) {
            const float scale = load_global(scale_b + column * args.scale_column);
            GEMMTUNE_UNROLL
            for (int e = 0; e < N; ++e) value[e] *= scale;
        }
        if (args.beta != 0.0f) {
            float of_c[N];
            GEMMTUNE_UNROLL
            for (int e = 0; e < N; ++e) of_c[e] = widen(load_global(c_at(at[e], column)));
            GEMMTUNE_UNROLL
            for (int e = 0; e < N; ++e) value[e] += args.beta * of_c[e];
        }
        if (bias) {
            GEMMTUNE_UNROLL
            for (int e = 0; e < N; ++e) value[e] += widen(load_global(bias_at(at[e], column)));
        }
        if (args.activation != kNone) {
            GEMMTUNE_UNROLL
            for (int e = 0; e < N; ++e) value[e] = activate(value[e], args.activation);
        }
        if (args.scale_d) {
            const float scale = load_global(args.scale_d);
            GEMMTUNE_UNROLL
            for (int e = 0; e < N; ++e) value[e] *= scale;
        }
    }

    static GEMMTUNE_DEVICE void write(D* to, const D (&four)[4]) {
        constexpr int kSize = static_cast<int>(sizeof(D));
        unsigned words[kSize] = {};  // four elements are as many words as one has bytes
        GEMMTUNE_UNROLL
        for (int e = 0; e < 4; ++e) words[e * kSize / 4] |= bits_of(four[e]) << e * kSize % 4 * 8;
        store_words(to, words);
    }
};

// A place among one slice's sums in the workspace (args.h: partial), which AddSlices adds: the alternative to
// MatrixFinish where k is split.
template <typename SUM>
struct SlicePlace {
    SUM* at;
    i64 m;
    int rows, columns;
    bool fours;

    GEMMTUNE_DEVICE SlicePlace(const GemmArgs& args, Task task, i64 i, i64 j)
        : m(args.m), rows(static_cast<int>(args.m - i)), columns(static_cast<int>(args.n - j)) {
        const i64 slice = static_cast<i64>(task.slice) * args.batch + task.batch;
        at = reinterpret_cast<SUM*>(args.partial) + (slice * args.n + j) * m + i;
        fours = (reinterpret_cast<u64>(at) & 15) == 0 && m % 4 == 0;
    }

    GEMMTUNE_DEVICE void store4(int row, int column, const SUM (&sum)[4]) const {
        if (column >= columns || row >= rows) return;
        SUM* const to = at + column * m + row;
        if (fours && row + 4 <= rows) {
            unsigned words[4];
            GEMMTUNE_UNROLL
            for (int e = 0; e < 4; ++e) words[e] = bits_of(sum[e]);
            return store_words(to, words);
        }
        GEMMTUNE_UNROLL
        for (int e = 0; e < 4; ++e)
            if (row + e < rows) store_global(to + e, sum[e]);
    }

private:
    static GEMMTUNE_DEVICE unsigned bits_of(float value) { return as_unsigned(value); }
    static GEMMTUNE_DEVICE unsigned bits_of(int value) { return static_cast<unsigned>(value); }
};

// The second launch of a product whose k is split among blocks, as epilogue.h: Reduce, for these sums and
// epilogues: adds the slices' sums in order, one thread for each element of D. SCALED: whether the scales of rows and
// columns are still to be applied.
template <typename TYPES, bool SCALED = true>
struct AddSlices {
    using Args = ScaledArgs;
    static constexpr int kThreads = 256, kMinBlocks = 0, kSharedBytes = 0;

    static GEMMTUNE_DEVICE void run(const ScaledArgs& args, char*) {
        const u64 at = static_cast<u64>(block_x()) * kThreads + thread_index();
        const u64 m = static_cast<unsigned>(args.m), size = m * static_cast<unsigned>(args.n);
        const u64 all = size * static_cast<unsigned>(args.batch);
        if (at >= all) return;
        i64 batch, i, j;
        if (GEMMTUNE_RARELY(all >> 32)) {
            batch = static_cast<i64>(at / size);
            j = static_cast<i64>(at % size / m), i = static_cast<i64>(at % size % m);
        } else {  // 32-bit division takes a fraction of the time
            const unsigned of_product = static_cast<unsigned>(size), place = static_cast<unsigned>(at);
            const unsigned within = place % of_product, rows = static_cast<unsigned>(m);
            batch = place / of_product, j = within / rows, i = within % rows;
        }
        const auto* from = reinterpret_cast<const typename TYPES::Sum*>(args.partial) + at;
        typename TYPES::Sum sum = 0;
        for (int slice = 0; slice < args.splits; ++slice) sum += load_global(from + slice * all);
        MatrixFinish<TYPES> here(args, batch, i, j);
        if (!SCALED) here.scale_a = here.scale_b = nullptr;
        here.store(sum);
    }
};

}  // namespace gemmtune
