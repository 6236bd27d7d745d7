// The epilogue: from a sum to an element of D, and from the partial sums of the slices of k to the sum.
#pragma once

#include "device/args.h"

namespace gemmtune {

// Selects values instead of branches: compilers turn a chain of branches into a jump through a table in memory,
// which is not in any cache when a short kernel reaches it.
GEMMTUNE_DEVICE float activate(float x, int activation) {
    // x / (1 + e^-s): silu with s = x, and gelu's 0.5 x (1 + tanh(u)) with s = 2u.
    const float s = activation == kSilu ? x : x * (1.59576912f + 0.0713548163f * (x * x));
    const float smooth = quotient(x, 1.0f + exponential(-s));
    return activation == kRelu ? (x < 0.0f ? 0.0f : x) : smooth;  // NaN stays NaN
}

// A position in D relative to which elements are finished, so that a thread with many elements computes the
// addresses once. ROWS_APART is 1 if rows of C and D are known to be contiguous, else 0.
template <typename TYPES, int ROWS_APART>
struct Finish {
    const GemmArgs& args;
    const typename TYPES::C* c;
    const typename TYPES::Bias* bias;
    typename TYPES::D* d;
    int rows, columns;  // rows and columns of D from here on; none if negative
    bool fours;         // at every fourth row from here four elements can be stored at once
    bool plain;         // the epilogue is alpha times the sum

    GEMMTUNE_DEVICE Finish(const GemmArgs& args, i64 batch, i64 i, i64 j)
        : args(args), c(static_cast<const typename TYPES::C*>(args.c)),
          bias(static_cast<const typename TYPES::Bias*>(args.bias)),
          d(static_cast<typename TYPES::D*>(args.d)),
          rows(static_cast<int>(args.m - i)), columns(static_cast<int>(args.n - j)) {
        // Null pointers stay null.
        if (args.beta != 0.0f) c += batch * args.stride_c + i * step(args.c_row) + j * args.c_column;
        GEMMTUNE_ADVANCE(bias, i * args.bias_row + j * args.bias_column);
        d += batch * args.stride_d + i * step(args.d_row) + j * args.d_column;
        const u64 apart = static_cast<u64>(args.d_column) * sizeof *d;
        plain = args.beta == 0.0f && !bias && args.activation == kNone;
        fours = ROWS_APART == 1 && ((reinterpret_cast<u64>(d) | apart) & (4 * sizeof *d - 1)) == 0;
    }

    static GEMMTUNE_DEVICE i64 step(i64 given) { return ROWS_APART ? ROWS_APART : given; }

    // Finishes and stores the element `row` rows and `column` columns on; elements beyond D are dropped.
    GEMMTUNE_DEVICE void store(int row, int column, float sum) const {
        if (row >= rows || column >= columns) return;
        const float result = GEMMTUNE_RARELY(!plain) ? value(row, column, sum) : args.alpha * sum;
        d[row * step(args.d_row) + column * args.d_column] = narrow<typename TYPES::D>(result);
    }

    // Applies the epilogue to N sums of a row, `apart` columns from each other; all loads that it needs are
    // issued together. Results beyond D are unspecified.
    template <int N>
    GEMMTUNE_DEVICE void results(int row, int column, int apart, float (&sum)[N]) const {
        GEMMTUNE_UNROLL
        for (int n = 0; n < N; ++n) sum[n] *= args.alpha;
        const int last = row < rows ? columns : 0;
        if (args.beta != 0.0f) {
            float of_c[N];
            GEMMTUNE_UNROLL
            for (int n = 0; n < N; ++n) {
                const int j = column + n * apart;
                of_c[n] = j < last ? widen(c[row * step(args.c_row) + j * args.c_column]) : 0.0f;
            }
            GEMMTUNE_UNROLL
            for (int n = 0; n < N; ++n) sum[n] += args.beta * of_c[n];
        }
        if (bias) {
            GEMMTUNE_UNROLL
            for (int n = 0; n < N; ++n) {
                const int j = column + n * apart;
                if (j < last) sum[n] += widen(bias[row * args.bias_row + j * args.bias_column]);
            }
        }
        if (args.activation == kNone) return;
        GEMMTUNE_UNROLL
        for (int n = 0; n < N; ++n) sum[n] = activate(sum[n], args.activation);
    }

    // store() of four neighbouring rows, from `row` on, a multiple of four.
    GEMMTUNE_DEVICE void store4(int row, int column, const float (&sum)[4]) const {
        using D = typename TYPES::D;
        if (column >= columns) return;
        D four[4];
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) four[i] = narrow<D>(args.alpha * sum[i]);
        if (!plain) {
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i)
                if (row + i < rows) four[i] = narrow<D>(value(row + i, column, sum[i]));
        }
        D* const at = d + row * step(args.d_row) + column * args.d_column;
        if (fours && row + 4 <= rows) {
            write(at, four);
        } else {
            GEMMTUNE_UNROLL
            for (int i = 0; i < 4; ++i)
                if (row + i < rows) at[i * step(args.d_row)] = four[i];
        }
    }

    // store4() to a known address `to`, for `plain` and `fours` only.
    GEMMTUNE_DEVICE void write4(typename TYPES::D* to, const float (&sum)[4]) const {
        typename TYPES::D four[4];
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) four[i] = narrow<typename TYPES::D>(args.alpha * sum[i]);
        write(to, four);
    }

private:
    template <typename D>
    static GEMMTUNE_DEVICE void write(D* to, const D (&four)[4]) {
        unsigned words[sizeof(D)];  // the word count equals the element's size in bytes
        GEMMTUNE_UNROLL
        for (int i = 0; i < static_cast<int>(sizeof(D)); ++i)
            words[i] = Word<D>::pack(four + i * Word<D>::kElements);
        if constexpr (sizeof(D) == 4) write16(to, Words{{words[0], words[1], words[2], words[3]}});
        else write8(to, words);
    }

    GEMMTUNE_DEVICE float value(int row, int column, float sum) const {
        float value = args.alpha * sum;
        if (args.beta != 0.0f)
            value += args.beta * widen(c[row * step(args.c_row) + column * args.c_column]);
        if (bias) value += widen(bias[row * args.bias_row + column * args.bias_column]);
        return args.activation == kNone ? value : activate(value, args.activation);
    }
};

// Finishes and stores the element (i, j); an element beyond D is dropped.
template <typename TYPES>
GEMMTUNE_DEVICE void finish(const GemmArgs& args, i64 batch, i64 i, i64 j, float sum) {
    if (i < args.m && j < args.n) Finish<TYPES, 0>(args, batch, i, j).store(0, 0, sum);
}

// Call before a block's last stores: permits the launch of Reduce, if there will be one.
GEMMTUNE_DEVICE void release_reduce(const GemmArgs& args) {
    if (args.splits > 1) launch_dependents();
}

// finish(), or with split k stores this block's partial sum to the workspace for Reduce.
template <typename TYPES>
GEMMTUNE_DEVICE void finish_slice(const GemmArgs& args, Task task, i64 i, i64 j, float sum) {
    if (args.splits == 1) {
        finish<TYPES>(args, task.batch, i, j, sum);
    } else if (i < args.m && j < args.n) {
        const i64 slice = static_cast<i64>(task.slice) * args.batch + task.batch;
        args.partial[(slice * args.n + j) * args.m + i] = sum;
    }
}

// A position among a slice's partial sums, which Reduce adds: the counterpart of Finish for split k.
struct Keep {
    float* at;
    i64 m;
    int rows, columns;

    GEMMTUNE_DEVICE Keep(const GemmArgs& args, Task task, i64 i, i64 j)
        : m(args.m), rows(static_cast<int>(args.m - i)), columns(static_cast<int>(args.n - j)) {
        const i64 slice = static_cast<i64>(task.slice) * args.batch + task.batch;
        at = args.partial + (slice * args.n + j) * m + i;
    }

    GEMMTUNE_DEVICE void store4(int row, int column, const float (&sum)[4]) const {
        if (column >= columns) return;
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i)
            if (row + i < rows) at[column * m + row + i] = sum[i];
    }
};

// A block's slice of k in steps of STEP elements; a slice is a whole number of steps (oriented_gemm.py). The
// last slices end at `steps` and may be empty. No division: a block's first loads wait for this.
template <int STEP>
struct Slice {
    int begin, end;
    GEMMTUNE_DEVICE Slice(int begin, int end) : begin(begin), end(end) {}
    GEMMTUNE_DEVICE Slice(const GemmArgs& args, Task task, unsigned steps) {
        const unsigned each = args.slice / STEP, from = task.slice * each;
        begin = static_cast<int>(from < steps ? from : steps);
        end = static_cast<int>(from + each < steps ? from + each : steps);
    }
};

// The second launch of a GEMM with split k: adds the slices' partial sums, always in the same order. One thread
// for each element of D; it computes the element's address while the first launch ends.
template <typename TYPES>
struct Reduce {
    static constexpr int kThreads = 256, kMinBlocks = 0, kSharedBytes = 0;
    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const GemmArgs& args, char*) {
        const u64 at = static_cast<u64>(block_x()) * kThreads + thread_index();
        const u64 size = static_cast<u64>(args.m) * static_cast<unsigned>(args.n), all = size * args.batch;
        // (A 64-bit division takes longer than everything else here.)
        const Place here = GEMMTUNE_RARELY(all >> 32) ? place_of<u64>(args, at, size)
                                                      : place_of<unsigned>(args, at, size);
        wait_for_launches();
        if (at >= all) return;
        const float* from = args.partial + at;
        float sum = 0.0f;
        int left = args.splits;
        for (; left >= kAtOnce; left -= kAtOnce, from += kAtOnce * all) {
            float part[kAtOnce];
            GEMMTUNE_UNROLL
            for (int slice = 0; slice < kAtOnce; ++slice) part[slice] = from[slice * all];
            GEMMTUNE_UNROLL
            for (int slice = 0; slice < kAtOnce; ++slice) sum += part[slice];
        }
        for (; left > 0; --left, from += all) sum += *from;
        finish<TYPES>(args, here.batch, here.i, here.j, sum);
    }

private:
    static constexpr int kAtOnce = 4;  // slices whose sums are loaded before the first is added
    struct Place {
        i64 batch, i, j;
    };
    template <typename U>
    static GEMMTUNE_DEVICE Place place_of(const GemmArgs& args, u64 at, u64 size) {
        const U one = static_cast<U>(at), batch = args.batch == 1 ? 0 : one / static_cast<U>(size);
        const U element = one - batch * static_cast<U>(size), j = element / static_cast<U>(args.m);
        return Place{static_cast<i64>(batch), static_cast<i64>(element - j * static_cast<U>(args.m)),
                     static_cast<i64>(j)};
    }
};

}  // namespace gemmtune
