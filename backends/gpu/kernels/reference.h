// Random inputs, float64 references and comparisons in our own arithmetic. Blocks have 256 threads. With TYPE_A
// and TYPE_B (formats.h) defined: the reference of those input types; without them: everything else.
#pragma once

#ifndef TYPE_A

#include "compare.h"
#include "draw.h"
#include "gated.h"

GEMMTUNE_KERNEL(count_bytes, gemmtune::CountBytes)
GEMMTUNE_KERNEL(draw, gemmtune::Draw)
GEMMTUNE_KERNEL(compare, gemmtune::Compare)
GEMMTUNE_KERNEL(look_up, gemmtune::LookUp)
GEMMTUNE_KERNEL(gate, gemmtune::Gate)

#else

#include "formats.h"

namespace gemmtune {

const int TILE_M = 128, TILE_N = 64, TILE_K = 16;

// op(X) of one operand: element (i, k) of batch copy lies at copy*stride + i*step_i + k*step_k.
struct Factor {
    const void* base;
    i64 stride, step_i, step_k;
};

// Scales of blocks of an operand: that of element (i, k) lies at i / side * pitch + k / depth. Null if absent.
struct BlockScales {
    const void* base;
    i64 side, depth, pitch;
    int format, unused;
};

// Zero points of a quantised A (backends/quantisation.py), one for each of its scales. kWords: of 4 bits, those of
// eight rows in a word.
enum Zero { kNoZero = 0, kEight = 1, kWords = 2, kSubtracted = 3, kAdded = 4 };
struct ZeroPoints {
    const void* base;
    int kind, unused;
};

struct Product {
    i64 m, n, k, batch;
    Factor a, b;
    const void *c, *bias, *scale_a, *scale_b, *scale_d;  // null if absent; scales are fp32
    i64 ldc, stride_c;
    double alpha, beta;
    double rough, step, slope, rounding, least;  // backends/protocol.py:ErrorBound
    double low, high;                            // the output saturates at these
    int type_c, type_bias, bias_on_n, outer_a, outer_b, activation;
    BlockScales block_a, block_b;
    ZeroPoints zero_a;
};

GEMMTUNE_DEVICE double activate(int name, double x) {
    switch (name) {
        case kRelu: return x > 0 ? x : 0;
        case kGelu: return 0.5 * x * (1 + tangent_h(0.7978845608028654 * x * (1 + 0.044715 * x * x)));
        case kSilu: return x / (1 + exponential_of(-x));
        default: return x;
    }
}

GEMMTUNE_DEVICE double scale_of(const void* scales, i64 index) {
    return scales ? double(static_cast<const float*>(scales)[index]) : 1.0;
}

// The element (i, k) with the scale of its block, and for a quantised operand its zero point.
GEMMTUNE_DEVICE double scaled(double value, const BlockScales& of, const ZeroPoints& zero, i64 i, i64 k) {
    if (!of.base) return value;
    const i64 at = i / of.side * of.pitch + k / of.depth;
    if (zero.kind == kEight || zero.kind == kAdded) value -= 8;
    if (zero.kind == kWords) value -= load<UINT4>(zero.base, (i / 8 * of.pitch + k / of.depth) * 8 + i % 8);
    if (zero.kind == kSubtracted) value -= load(of.format, zero.base, at);
    value *= load(of.format, of.base, at);
    return zero.kind == kAdded ? value + load(of.format, zero.base, at) : value;
}

// Computes one tile of D: the GEMM and the norms of its rows and columns in shared memory, then the epilogue.
struct Reference {
    struct Args {
        Product product;
        double* expected;
        float* tolerance;
    };
    // Odd pitches avoid bank conflicts.
    struct Shared {
        double rows[TILE_K][TILE_M + 1], columns[TILE_K][TILE_N + 1];
    };
    static constexpr int kThreads = 256, kMinBlocks = 0, kSharedBytes = sizeof(Shared);

    static GEMMTUNE_DEVICE void run(const Args& args, char* shared) {
        Shared& in = *reinterpret_cast<Shared*>(shared);
        const Product& p = args.product;
        double* const expected = args.expected;
        const int thread = static_cast<int>(thread_index());
        const i64 tiles_m = (p.m + TILE_M - 1) / TILE_M, tiles_n = (p.n + TILE_N - 1) / TILE_N;
        const i64 copy = block_x() / (tiles_m * tiles_n), tile = block_x() - copy * tiles_m * tiles_n;
        const i64 at_m = tile % tiles_m * TILE_M, at_n = tile / tiles_m * TILE_N;

        // Neighbouring threads load neighbouring elements, in either layout of an operand.
        const bool a_along_k = p.a.step_i != 1, b_along_k = p.b.step_i != 1;
        const int a_i = a_along_k ? thread / 16 : thread % TILE_M;
        const int a_k = a_along_k ? thread % 16 : thread / TILE_M;
        const int a_di = a_along_k ? 16 : 0, a_dk = a_along_k ? 0 : 2;
        const int b_i = b_along_k ? thread / 16 : thread % TILE_N;
        const int b_k = b_along_k ? thread % 16 : thread / TILE_N;
        const int b_di = b_along_k ? 16 : 0, b_dk = b_along_k ? 0 : 4;
        const i64 a_at = copy * p.a.stride + (at_m + a_i) * p.a.step_i + a_k * p.a.step_k;
        const i64 b_at = copy * p.b.stride + (at_n + b_i) * p.b.step_i + b_k * p.b.step_k;
        const i64 a_next = a_di * p.a.step_i + a_dk * p.a.step_k, b_next = b_di * p.b.step_i + b_dk * p.b.step_k;

        double next_a[8], next_b[4], sums[8][4] = {}, square = 0;
        const int x = thread % 16, y = thread / 16;
        // Few columns leave most threads without an element of D: those only load.
        const bool within = at_m + x < p.m && at_n + y < p.n;
        for (i64 k = -TILE_K; k < p.k; k += TILE_K) {
            const i64 ahead = k + TILE_K;  // loaded while this k is multiplied
            if (ahead < p.k) {
    GEMMTUNE_UNROLL
                for (int r = 0; r < 8; ++r) {
                    bool inside = at_m + a_i + r * a_di < p.m && ahead + a_k + r * a_dk < p.k;
                    next_a[r] = inside ? scaled(load<TYPE_A>(p.a.base, a_at + r * a_next + ahead * p.a.step_k),
                                                p.block_a, p.zero_a, at_m + a_i + r * a_di, ahead + a_k + r * a_dk)
                                       : 0;
                }
    GEMMTUNE_UNROLL
                for (int r = 0; r < 4; ++r) {
                    bool inside = at_n + b_i + r * b_di < p.n && ahead + b_k + r * b_dk < p.k;
                    next_b[r] = inside ? scaled(load<TYPE_B>(p.b.base, b_at + r * b_next + ahead * p.b.step_k),
                                                p.block_b, ZeroPoints(), at_n + b_i + r * b_di,
                                                ahead + b_k + r * b_dk)
                                       : 0;
                }
            }
            if (k >= 0) {
    GEMMTUNE_UNROLL
                for (int kk = 0; kk < TILE_K && within; ++kk) {
                    double a[8], b[4];
    GEMMTUNE_UNROLL
                    for (int i = 0; i < 8; ++i) a[i] = in.rows[kk][x + 16 * i];
    GEMMTUNE_UNROLL
                    for (int j = 0; j < 4; ++j) b[j] = in.columns[kk][y + 16 * j];
    GEMMTUNE_UNROLL
                    for (int i = 0; i < 8; ++i)
    GEMMTUNE_UNROLL
                        for (int j = 0; j < 4; ++j) sums[i][j] = multiply_add(a[i], b[j], sums[i][j]);
                }
                if (thread < TILE_M + TILE_N) {  // one row or column a thread
                    const double* of = thread < TILE_M ? &in.rows[0][thread] : &in.columns[0][thread - TILE_M];
                    const int pitch = thread < TILE_M ? TILE_M + 1 : TILE_N + 1;
                    for (int kk = 0; kk < TILE_K; ++kk) square = multiply_add(of[kk * pitch], of[kk * pitch], square);
                }
            }
            block_barrier();
            if (ahead < p.k) {
    GEMMTUNE_UNROLL
                for (int r = 0; r < 8; ++r) in.rows[a_k + r * a_dk][a_i + r * a_di] = next_a[r];
    GEMMTUNE_UNROLL
                for (int r = 0; r < 4; ++r) in.columns[b_k + r * b_dk][b_i + r * b_di] = next_b[r];
            }
            block_barrier();
        }
        if (thread < TILE_M) in.rows[0][thread] = square_root(square);
        else if (thread < TILE_M + TILE_N) in.columns[0][thread - TILE_M] = square_root(square);
        block_barrier();

        // The sums go through global memory, so that the epilogue is a rolled loop: unrolled, it takes seconds
        // to compile.
        const i64 at = (copy * p.n + at_n + y) * p.m + at_m + x;
    GEMMTUNE_UNROLL
        for (int j = 0; j < 4; ++j)
    GEMMTUNE_UNROLL
            for (int i = 0; i < 8; ++i)
                if (at_m + x + 16 * i < p.m && at_n + y + 16 * j < p.n)
                    expected[at + 16 * j * p.m + 16 * i] = sums[i][j];
        const double scale_d = scale_of(p.scale_d, 0);
        GEMMTUNE_ROLL
        for (int element = 0; element < 32; ++element) {
            const int in_m = x + element % 8 * 16, in_n = y + element / 8 * 16;
            const i64 row = at_m + in_m, column = at_n + in_n, index = (copy * p.n + column) * p.m + row;
            if (row >= p.m || column >= p.n) continue;
            double factor = p.alpha * scale_of(p.scale_a, p.outer_a ? row : 0);
            factor *= scale_of(p.scale_b, p.outer_b ? column : 0);
            double value = factor * expected[index], terms = absolute(value);
            if (p.c) {
                double c = p.beta * load(p.type_c, p.c, copy * p.stride_c + column * p.ldc + row);
                value += c, terms += absolute(c);
            }
            if (p.bias) {
                double bias = load(p.type_bias, p.bias, p.bias_on_n ? column : row);
                value += bias, terms += absolute(bias);
            }
            double error = terms * p.step + p.rough * absolute(factor) * in.rows[0][in_m] * in.columns[0][in_n];
            value = scale_d * activate(p.activation, value);
            value = value < p.low ? p.low : value > p.high ? p.high : value;
            error = p.slope * absolute(scale_d) * error + p.rounding * absolute(value) + p.least;
            expected[index] = value;
            args.tolerance[index] = rounded_up(error);
        }
    }
};

}  // namespace gemmtune

GEMMTUNE_KERNEL(reference, gemmtune::Reference)

#endif
