// Random inputs, float64 references and comparisons in our own arithmetic. Blocks have 256 threads. With TYPE_A
// and TYPE_B (formats.h) defined: the reference of those input types; without them: everything else.
#pragma once

#include "formats.h"

namespace gemmtune {

// Keep in step with backends/gpu/device_reference.py, which fills these in.
struct Layout {
    i64 rows, columns, ld, stride, copies;
};

#ifndef TYPE_A

constexpr int kThreads = 256;

// ---- bytes ---------------------------------------------------------------------------------------

const int RANGES = 16;

// If other[i] is 0, the bytes of range i are compared with `value` (one byte, repeated in all four).
struct Ranges {
    u64 address[RANGES], other[RANGES], size[RANGES];
    unsigned value, unused;
};

// The number of bytes of a word that are not zero.
GEMMTUNE_DEVICE int bytes_set(unsigned word) {
    if (word == 0) return 0;
    word |= word >> 4 & 0x0f0f0f0fu;
    word |= word >> 2 & 0x03030303u;
    word |= word >> 1;
    word &= 0x01010101u;
    return static_cast<int>(word * 0x01010101u >> 24);  // the sum of its bytes, each 0 or 1
}

// The sum of `mine` over the block; valid in thread 0 only. `sums` has room for one value of each thread.
GEMMTUNE_DEVICE u64 block_sum(u64 mine, u64* sums) {
    const int thread = static_cast<int>(thread_index());
    sums[thread] = mine;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        block_barrier();
        if (thread < half) sums[thread] += sums[thread + half];
    }
    return sums[0];
}

// Sets counts[y] (zero before) to the number of bytes of range y (blocks along y) that differ.
struct CountBytes {
    struct Args {
        Ranges ranges;
        u64* counts;
    };
    static constexpr int kThreads = gemmtune::kThreads, kMinBlocks = 0, kSharedBytes = kThreads * 8;

    static GEMMTUNE_DEVICE void run(const Args& args, char* shared) {
        const unsigned range = block_y();
        const unsigned char* left = reinterpret_cast<const unsigned char*>(args.ranges.address[range]);
        const unsigned char* right = reinterpret_cast<const unsigned char*>(args.ranges.other[range]);
        const bool constant = right == nullptr;
        const i64 size = static_cast<i64>(args.ranges.size[range]);
        const unsigned value = args.ranges.value;
        const u64 at = reinterpret_cast<u64>(left);
        const bool wide = constant || ((at ^ reinterpret_cast<u64>(right)) & 15) == 0;
        i64 head = static_cast<i64>((16 - (at & 15)) & 15);
        head = wide && head < size ? head : size;
        const i64 vectors = (size - head) / 16, tail = head + 16 * vectors;
        u64 found = 0;
        for (i64 i = first_index<kThreads>(); i < head; i += all_threads<kThreads>())
            found += left[i] != (constant ? value & 255 : right[i]);
        for (i64 i = first_index<kThreads>(); i < vectors; i += all_threads<kThreads>()) {
            const Words a = reinterpret_cast<const Words*>(left + head)[i];
            Words b = {{value, value, value, value}};
            if (!constant) b = reinterpret_cast<const Words*>(right + head)[i];
            for (int word = 0; word < 4; ++word) found += static_cast<u64>(bytes_set(a.at[word] ^ b.at[word]));
        }
        for (i64 i = tail + first_index<kThreads>(); i < size; i += all_threads<kThreads>())
            found += left[i] != (constant ? value & 255 : right[i]);
        found = block_sum(found, reinterpret_cast<u64*>(shared));
        if (thread_index() == 0 && found) atomic_add(&args.counts[range], found);
    }
};

// ---- random elements -----------------------------------------------------------------------------

// Stafford's 13th mixer of 64 bits (the finaliser of SplitMix64).
GEMMTUNE_DEVICE u64 mixed(u64 x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// backends/gpu/device_reference.py:_KINDS
enum Distribution { NORMAL = 0, UNIFORM = 1, INTEGERS = 2, WHOLE = 3, SCALE = 4, POISON = 5 };

GEMMTUNE_DEVICE float drawn(u64 bits, int distribution, float parameter) {
    unsigned low = unsigned(bits), high = unsigned(bits >> 32);
    switch (distribution) {
        case NORMAL: {  // Box and Muller
            float radius = square_root(-2.0f * natural_log((float(low >> 8) + 1.0f) * 0x1p-24f));
            return parameter * radius * cosine_pi(float(high >> 8) * 0x1p-23f);
        }
        case UNIFORM: return float(high >> 8) * 0x1p-24f;
        case SCALE: return 0.5f + float(high >> 9) * 0x1p-23f;
        case INTEGERS: {  // whole numbers from -parameter to parameter
            int span = int(parameter);
            return float(int(u64(high) * unsigned(2 * span + 1) >> 32) - span);
        }
        default: {  // whole numbers from -parameter to parameter - 1, a power of two
            int span = int(parameter);
            return float(int(high >> 8 & unsigned(2 * span - 1)) - span);
        }
    }
}

// The same distributions with the whole significand of a double.
GEMMTUNE_DEVICE double drawn_wide(u64 bits, int distribution, float parameter) {
    const double unit = double(bits >> 11) * 0x1p-53;
    switch (distribution) {
        case NORMAL: {
            double radius = square_root(-2.0 * natural_log(unit + 0x1p-53));
            return double(parameter) * radius * cosine_pi(double(mixed(bits + 1) >> 11) * 0x1p-52);
        }
        case UNIFORM: return unit;
        case SCALE: return 0.5 + unit;
        default: return drawn(bits, distribution, parameter);
    }
}

// An element's value depends only on the seed and its offset, so overlapping copies agree.
struct Draw {
    struct Args {
        Layout layout;
        void* base;
        u64 seed;
        int format, distribution;
        float parameter;
    };
    static constexpr int kThreads = gemmtune::kThreads, kMinBlocks = 0, kSharedBytes = 0;

    static GEMMTUNE_DEVICE void run(const Args& args, char*) {
        const Layout& layout = args.layout;
        const i64 matrix = layout.rows * layout.columns, count = layout.copies * matrix;
        const u64 key = mixed(args.seed * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull);
        for (i64 i = first_index<kThreads>(); i < count; i += all_threads<kThreads>()) {
            const i64 copy = i / matrix, within = i - copy * matrix;
            const i64 column = within / layout.rows, row = within - column * layout.rows;
            const i64 at = copy * layout.stride + column * layout.ld + row;
            const u64 bits = mixed(key + static_cast<u64>(at) * 0x9e3779b97f4a7c15ull);
            if (args.distribution == POISON)
                store_bytes(args.format, args.base, at, static_cast<unsigned>(args.parameter));
            else if (args.format == FP64)
                static_cast<double*>(args.base)[at] = drawn_wide(bits, args.distribution, args.parameter);
            else
                store(args.format, args.base, at, drawn(bits, args.distribution, args.parameter));
        }
    }
};

// ---- comparing -----------------------------------------------------------------------------------

// All zero before. `worst` holds the bits of a non-negative double; `first` is the complement of an index.
struct Summary {
    u64 bad, worst, first;
    double error, reference;
};

struct Compare {
    struct Args {
        Layout layout;
        const void* d;
        const double* expected;
        const float* tolerance;
        double relative, absolute;
        Summary* out;
        int format, unused;
    };
    static constexpr int kThreads = gemmtune::kThreads, kMinBlocks = 0, kSharedBytes = 4 * kThreads * 8;

    static GEMMTUNE_DEVICE void run(const Args& args, char* shared) {
        double* const errors = reinterpret_cast<double*>(shared);
        double *const references = errors + kThreads, *const ratios = references + kThreads;
        u64* const firsts = reinterpret_cast<u64*>(ratios + kThreads);
        const Layout& layout = args.layout;
        const i64 matrix = layout.rows * layout.columns, count = layout.copies * matrix;
        const int mine = static_cast<int>(thread_index());
        double error = 0, reference = 0, worst = 0;
        u64 bad = 0, first = 0;
        for (i64 i = first_index<kThreads>(); i < count; i += all_threads<kThreads>()) {
            const i64 copy = i / matrix, within = i - copy * matrix;
            const i64 column = within / layout.rows, row = within - column * layout.rows;
            const double value = load(args.format, args.d, copy * layout.stride + column * layout.ld + row);
            const double wanted = args.expected[i];
            const double allowed = args.tolerance[i] + args.relative * absolute(wanted) + args.absolute;
            const double off = absolute(value - wanted);
            double ratio = off / allowed;
            if (!(ratio <= 1.0)) {
                bad += 1;
                first = first ? first : ~static_cast<u64>(i);  // indices grow
                if (ratio != ratio) ratio = as_double(0x7ff0000000000000ull);
            }
            worst = ratio > worst ? ratio : worst;
            error += off * off;
            reference += wanted * wanted;
        }
        errors[mine] = error, references[mine] = reference, ratios[mine] = worst, firsts[mine] = first;
        for (int half = kThreads / 2; half > 0; half /= 2) {
            block_barrier();
            if (mine < half) {
                errors[mine] += errors[mine + half];
                references[mine] += references[mine + half];
                ratios[mine] = larger(ratios[mine], ratios[mine + half]);
                if (firsts[mine + half] > firsts[mine]) firsts[mine] = firsts[mine + half];
            }
        }
        if (mine == 0) {
            atomic_add(&args.out->error, errors[0]);
            atomic_add(&args.out->reference, references[0]);
            atomic_max(&args.out->worst, as_bits(ratios[0]));
            if (firsts[0]) atomic_max(&args.out->first, firsts[0]);
        }
        block_barrier();  // the sums' memory is reused for the count
        bad = block_sum(bad, firsts);
        if (mine == 0 && bad) atomic_add(&args.out->bad, bad);
    }
};

// Looks up one element: its value, the expected value and the tolerance.
struct LookUp {
    struct Args {
        const void* d;
        const double* expected;
        const float* tolerance;
        double* out;
        i64 at, index;
        int format, unused;
    };
    static constexpr int kThreads = gemmtune::kThreads, kMinBlocks = 0, kSharedBytes = 0;

    static GEMMTUNE_DEVICE void run(const Args& args, char*) {
        if (thread_index() != 0) return;
        args.out[0] = load(args.format, args.d, args.at);
        args.out[1] = args.expected[args.index];
        args.out[2] = args.tolerance[args.index];
    }
};

#else

// ---- the reference -------------------------------------------------------------------------------

const int TILE_M = 128, TILE_N = 64, TILE_K = 16;

// op(X) of one operand: element (i, k) of batch copy lies at copy*stride + i*step_i + k*step_k.
struct Factor {
    const void* base;
    i64 stride, step_i, step_k;
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
                    next_a[r] = inside ? load<TYPE_A>(p.a.base, a_at + r * a_next + ahead * p.a.step_k) : 0;
                }
    GEMMTUNE_UNROLL
                for (int r = 0; r < 4; ++r) {
                    bool inside = at_n + b_i + r * b_di < p.n && ahead + b_k + r * b_dk < p.k;
                    next_b[r] = inside ? load<TYPE_B>(p.b.base, b_at + r * b_next + ahead * p.b.step_k) : 0;
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

#endif

}  // namespace gemmtune

#ifndef TYPE_A
GEMMTUNE_KERNEL(count_bytes, gemmtune::CountBytes)
GEMMTUNE_KERNEL(draw, gemmtune::Draw)
GEMMTUNE_KERNEL(compare, gemmtune::Compare)
GEMMTUNE_KERNEL(look_up, gemmtune::LookUp)
#else
GEMMTUNE_KERNEL(reference, gemmtune::Reference)
#endif
