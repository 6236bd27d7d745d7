// Inputs, float64 references and comparisons, of our own arithmetic alone. Blocks are of 256 threads.
// With TYPE_A and TYPE_B (formats.h): the reference of those input types; without: everything else.
#include "formats.h"

// Keep in step with backends/cuda/judge.py, which fills them in.
struct Layout {
    i64 rows, columns, ld, stride, copies;
};

#ifndef TYPE_A

__device__ inline i64 first_index() { return i64(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline i64 all_threads() { return i64(gridDim.x) * blockDim.x; }

// ---- bytes ---------------------------------------------------------------------------------------

const int RANGES = 16;

// other[i] == 0: bytes are held against `value` (a byte in all four places).
struct Ranges {
    u64 address[RANGES], other[RANGES], size[RANGES];
    unsigned value, unused;
};

struct alignas(16) Words {
    unsigned x, y, z, w;
};

// Bytes of a word that are not zero.
__device__ inline int bytes_set(unsigned word) {
    if (word == 0) return 0;
    word |= word >> 4 & 0x0f0f0f0fu;
    word |= word >> 2 & 0x03030303u;
    word |= word >> 1;
    return __popc(word & 0x01010101u);
}

__device__ inline u64 block_sum(u64 mine) {
    __shared__ u64 sums[256];
    sums[threadIdx.x] = mine;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    return sums[0];  // of use to thread 0 alone
}

// counts[y] (zero before) becomes how many bytes of range y = blockIdx.y differ.
extern "C" __global__ void __launch_bounds__(256) count_bytes(Ranges ranges, u64* counts) {
    const unsigned char* left = reinterpret_cast<const unsigned char*>(ranges.address[blockIdx.y]);
    const unsigned char* right = reinterpret_cast<const unsigned char*>(ranges.other[blockIdx.y]);
    const bool constant = right == nullptr;
    const i64 size = ranges.size[blockIdx.y];
    const unsigned value = ranges.value;
    const bool wide = constant || ((u64(left) ^ u64(right)) & 15) == 0;
    i64 head = i64((16 - (u64(left) & 15)) & 15);
    head = wide && head < size ? head : size;
    const i64 vectors = (size - head) / 16, tail = head + 16 * vectors;
    u64 found = 0;
    for (i64 i = first_index(); i < head; i += all_threads())
        found += left[i] != (constant ? value & 255 : right[i]);
    for (i64 i = first_index(); i < vectors; i += all_threads()) {
        Words a = reinterpret_cast<const Words*>(left + head)[i], b = {value, value, value, value};
        if (!constant) b = reinterpret_cast<const Words*>(right + head)[i];
        found += bytes_set(a.x ^ b.x) + bytes_set(a.y ^ b.y) + bytes_set(a.z ^ b.z) + bytes_set(a.w ^ b.w);
    }
    for (i64 i = tail + first_index(); i < size; i += all_threads())
        found += left[i] != (constant ? value & 255 : right[i]);
    found = block_sum(found);
    if (threadIdx.x == 0 && found) atomicAdd(&counts[blockIdx.y], found);
}

// ---- random elements -----------------------------------------------------------------------------

// Stafford's 13th mixer of 64 bits (the finaliser of SplitMix64).
__device__ inline u64 mixed(u64 x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// backends/cuda/judge.py:_KINDS
enum Distribution { NORMAL = 0, UNIFORM = 1, INTEGERS = 2, WHOLE = 3, SCALE = 4, POISON = 5 };

__device__ inline float drawn(u64 bits, int distribution, float parameter) {
    unsigned low = unsigned(bits), high = unsigned(bits >> 32);
    switch (distribution) {
        case NORMAL: {  // Box and Muller
            float radius = sqrtf(-2.0f * logf((float(low >> 8) + 1.0f) * 0x1p-24f));
            return parameter * radius * cospif(float(high >> 8) * 0x1p-23f);
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
__device__ inline double drawn_wide(u64 bits, int distribution, float parameter) {
    const double unit = double(bits >> 11) * 0x1p-53;
    switch (distribution) {
        case NORMAL: {
            double radius = sqrt(-2.0 * log(unit + 0x1p-53));
            return double(parameter) * radius * cospi(double(mixed(bits + 1) >> 11) * 0x1p-52);
        }
        case UNIFORM: return unit;
        case SCALE: return 0.5 + unit;
        default: return drawn(bits, distribution, parameter);
    }
}

// An element's value follows from the seed and where it lies, so that copies that overlap agree.
extern "C" __global__ void __launch_bounds__(256)
draw(Layout layout, void* base, int format, int distribution, float parameter, u64 seed) {
    const i64 matrix = layout.rows * layout.columns, count = layout.copies * matrix;
    const u64 key = mixed(seed * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull);
    for (i64 i = first_index(); i < count; i += all_threads()) {
        i64 copy = i / matrix, within = i - copy * matrix;
        i64 column = within / layout.rows, row = within - column * layout.rows;
        i64 at = copy * layout.stride + column * layout.ld + row;
        const u64 bits = mixed(key + u64(at) * 0x9e3779b97f4a7c15ull);
        if (distribution == POISON)
            store_bytes(format, base, at, unsigned(parameter));
        else if (format == FP64)
            static_cast<double*>(base)[at] = drawn_wide(bits, distribution, parameter);
        else
            store(format, base, at, drawn(bits, distribution, parameter));
    }
}

// ---- comparing -----------------------------------------------------------------------------------

// All zero before. `worst` is the bits of a double that is not negative; `first` the complement of an index.
struct Summary {
    u64 bad, worst, first;
    double error, reference;
};

extern "C" __global__ void __launch_bounds__(256)
compare(
    Layout layout, const void* d, int format, const double* expected, const float* tolerance,
    double relative, double absolute, Summary* out
) {
    __shared__ double errors[256], references[256], ratios[256];
    __shared__ u64 firsts[256];
    const i64 matrix = layout.rows * layout.columns, count = layout.copies * matrix;
    const int mine = threadIdx.x;
    double error = 0, reference = 0, worst = 0;
    u64 bad = 0, first = 0;
    for (i64 i = first_index(); i < count; i += all_threads()) {
        i64 copy = i / matrix, within = i - copy * matrix;
        i64 column = within / layout.rows, row = within - column * layout.rows;
        double value = load(format, d, copy * layout.stride + column * layout.ld + row);
        double allowed = double(tolerance[i]) + relative * fabs(expected[i]) + absolute;
        double off = fabs(value - expected[i]), ratio = off / allowed;
        if (!(ratio <= 1.0)) {
            bad += 1;
            first = first ? first : ~u64(i);  // indices grow
            if (ratio != ratio) ratio = __longlong_as_double(0x7ff0000000000000ll);
        }
        worst = ratio > worst ? ratio : worst;
        error += off * off;
        reference += expected[i] * expected[i];
    }
    errors[mine] = error, references[mine] = reference, ratios[mine] = worst, firsts[mine] = first;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (mine < half) {
            errors[mine] += errors[mine + half];
            references[mine] += references[mine + half];
            ratios[mine] = fmax(ratios[mine], ratios[mine + half]);
            if (firsts[mine + half] > firsts[mine]) firsts[mine] = firsts[mine + half];
        }
    }
    bad = block_sum(bad);
    if (mine == 0) {
        atomicAdd(&out->error, errors[0]);
        atomicAdd(&out->reference, references[0]);
        atomicMax(&out->worst, u64(__double_as_longlong(ratios[0])));
        if (bad) {
            atomicAdd(&out->bad, bad);
            atomicMax(&out->first, firsts[0]);
        }
    }
}

// The value, what was expected and the tolerance of one element.
extern "C" __global__ void look_up(
    const void* d, int format, i64 at, const double* expected, const float* tolerance, i64 index, double* out
) {
    if (threadIdx.x != 0) return;
    out[0] = load(format, d, at);
    out[1] = expected[index];
    out[2] = tolerance[index];
}

#else

// ---- the reference -------------------------------------------------------------------------------

const int TILE_M = 128, TILE_N = 64, TILE_K = 16;
enum Activation { NONE = 0, RELU = 1, GELU = 2, SILU = 3 };

// op(X) of one operand: element (i, k) of batch copy lies at copy*stride + i*step_i + k*step_k.
struct Factor {
    const void* base;
    i64 stride, step_i, step_k;
};

struct Product {
    i64 m, n, k, batch;
    Factor a, b;
    const void *c, *bias, *scale_a, *scale_b, *scale_d;  // null where there is none; scales are fp32
    i64 ldc, stride_c;
    double alpha, beta;
    double rough, step, slope, rounding, least;  // backends/protocol.py:ErrorBound
    double low, high;                            // what the output saturates at
    int type_c, type_bias, bias_on_n, outer_a, outer_b, activation;
};

__device__ inline double activate(int name, double x) {
    switch (name) {
        case RELU: return x > 0 ? x : 0;
        case GELU: return 0.5 * x * (1 + tanh(0.7978845608028654 * x * (1 + 0.044715 * x * x)));
        case SILU: return x / (1 + exp(-x));
        default: return x;
    }
}

__device__ inline double scale_of(const void* scales, i64 index) {
    return scales ? double(static_cast<const float*>(scales)[index]) : 1.0;
}

// One tile of D: the product and the norms of its rows and columns in shared memory, then the epilogue.
extern "C" __global__ void __launch_bounds__(256) reference(Product p, double* expected, float* tolerance) {
    // Odd pitches: no bank conflicts.
    __shared__ double rows[TILE_K][TILE_M + 1], columns[TILE_K][TILE_N + 1];
    const int thread = threadIdx.x;
    const i64 tiles_m = (p.m + TILE_M - 1) / TILE_M, tiles_n = (p.n + TILE_N - 1) / TILE_N;
    const i64 copy = blockIdx.x / (tiles_m * tiles_n), tile = blockIdx.x - copy * tiles_m * tiles_n;
    const i64 at_m = tile % tiles_m * TILE_M, at_n = tile / tiles_m * TILE_N;

    // Neighbouring threads load neighbouring elements, whichever way the operand lies.
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
    for (i64 k = -TILE_K; k < p.k; k += TILE_K) {
        const i64 ahead = k + TILE_K;  // loaded while this k is multiplied
        if (ahead < p.k) {
#pragma unroll
            for (int r = 0; r < 8; ++r) {
                bool inside = at_m + a_i + r * a_di < p.m && ahead + a_k + r * a_dk < p.k;
                next_a[r] = inside ? load<TYPE_A>(p.a.base, a_at + r * a_next + ahead * p.a.step_k) : 0;
            }
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                bool inside = at_n + b_i + r * b_di < p.n && ahead + b_k + r * b_dk < p.k;
                next_b[r] = inside ? load<TYPE_B>(p.b.base, b_at + r * b_next + ahead * p.b.step_k) : 0;
            }
        }
        if (k >= 0) {
#pragma unroll
            for (int kk = 0; kk < TILE_K; ++kk) {
                double a[8], b[4];
#pragma unroll
                for (int i = 0; i < 8; ++i) a[i] = rows[kk][x + 16 * i];
#pragma unroll
                for (int j = 0; j < 4; ++j) b[j] = columns[kk][y + 16 * j];
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) sums[i][j] = fma(a[i], b[j], sums[i][j]);
            }
            if (thread < TILE_M + TILE_N) {  // one row or column a thread
                const double* of = thread < TILE_M ? &rows[0][thread] : &columns[0][thread - TILE_M];
                const int pitch = thread < TILE_M ? TILE_M + 1 : TILE_N + 1;
                for (int kk = 0; kk < TILE_K; ++kk) square = fma(of[kk * pitch], of[kk * pitch], square);
            }
        }
        __syncthreads();
        if (ahead < p.k) {
#pragma unroll
            for (int r = 0; r < 8; ++r) rows[a_k + r * a_dk][a_i + r * a_di] = next_a[r];
#pragma unroll
            for (int r = 0; r < 4; ++r) columns[b_k + r * b_dk][b_i + r * b_di] = next_b[r];
        }
        __syncthreads();
    }
    if (thread < TILE_M) rows[0][thread] = sqrt(square);
    else if (thread < TILE_M + TILE_N) columns[0][thread - TILE_M] = sqrt(square);
    __syncthreads();

    // The sums go through memory, so that what follows is a loop: unrolled, it takes seconds to compile.
    const i64 at = (copy * p.n + at_n + y) * p.m + at_m + x;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (at_m + x + 16 * i < p.m && at_n + y + 16 * j < p.n)
                expected[at + 16 * j * p.m + 16 * i] = sums[i][j];
    const double scale_d = scale_of(p.scale_d, 0);
#pragma unroll 1
    for (int element = 0; element < 32; ++element) {
        const int in_m = x + element % 8 * 16, in_n = y + element / 8 * 16;
        const i64 row = at_m + in_m, column = at_n + in_n, index = (copy * p.n + column) * p.m + row;
        if (row >= p.m || column >= p.n) continue;
        double factor = p.alpha * scale_of(p.scale_a, p.outer_a ? row : 0);
        factor *= scale_of(p.scale_b, p.outer_b ? column : 0);
        double value = factor * expected[index], terms = fabs(value);
        if (p.c) {
            double c = p.beta * load(p.type_c, p.c, copy * p.stride_c + column * p.ldc + row);
            value += c, terms += fabs(c);
        }
        if (p.bias) {
            double bias = load(p.type_bias, p.bias, p.bias_on_n ? column : row);
            value += bias, terms += fabs(bias);
        }
        double within = terms * p.step + p.rough * fabs(factor) * rows[0][in_m] * columns[0][in_n];
        value = scale_d * activate(p.activation, value);
        value = value < p.low ? p.low : value > p.high ? p.high : value;
        within = p.slope * fabs(scale_d) * within + p.rounding * fabs(value) + p.least;
        expected[index] = value;
        tolerance[index] = __double2float_ru(within);
    }
}

#endif
