// The product behind both BLAS libraries: D = activation(alpha op(A) op(B) + beta C + bias) in column-major terms,
// accumulated in float64, or in int32; several ways of really different speed, one that is wrong and one that fails.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gemm {

// hipDataType's numbers.
enum Type { kFp32 = 0, kFp64 = 1, kFp16 = 2, kInt8 = 3, kInt32 = 10, kBf16 = 14, kE4m3 = 28, kE5m2 = 29,
            kE4m3Fnuz = 1000, kE5m2Fnuz = 1001 };

inline size_t bytes(int type) {
    switch (type) {
        case kFp64: return 8;
        case kFp32: case kInt32: return 4;
        case kFp16: case kBf16: return 2;
        default: return 1;
    }
}

inline double small_float(unsigned bits, int exponent_bits, int bias, bool fnuz) {
    const int mantissa_bits = 7 - exponent_bits;
    const unsigned mantissa = bits & ((1u << mantissa_bits) - 1), exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
    const double sign = bits & 0x80 ? -1 : 1;
    if (fnuz && bits == 0x80) return NAN;
    if (!fnuz && exponent_bits == 4 && (bits & 0x7f) == 0x7f) return NAN;
    if (!fnuz && exponent_bits == 5 && exponent == 31) return mantissa ? NAN : sign * INFINITY;
    if (!exponent) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1u << mantissa_bits), static_cast<int>(exponent) - bias - mantissa_bits);
}

inline double load(int type, const void* at, int64_t index) {
    switch (type) {
        case kFp64: return static_cast<const double*>(at)[index];
        case kFp32: return static_cast<const float*>(at)[index];
        case kInt32: return static_cast<const int32_t*>(at)[index];
        case kInt8: return static_cast<const int8_t*>(at)[index];
        case kBf16: {
            const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(at)[index]) << 16;
            float value;
            std::memcpy(&value, &bits, 4);
            return value;
        }
        case kFp16: {
            const uint16_t bits = static_cast<const uint16_t*>(at)[index];
            const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
            const double sign = bits >> 15 ? -1 : 1;
            if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
            return sign * (exponent ? std::ldexp(mantissa + 1024, exponent - 25) : std::ldexp(mantissa, -24));
        }
        case kE4m3: return small_float(static_cast<const uint8_t*>(at)[index], 4, 7, false);
        case kE5m2: return small_float(static_cast<const uint8_t*>(at)[index], 5, 15, false);
        case kE4m3Fnuz: return small_float(static_cast<const uint8_t*>(at)[index], 4, 8, true);
        default: return small_float(static_cast<const uint8_t*>(at)[index], 5, 16, true);
    }
}

inline void store(int type, void* at, int64_t index, double value) {
    switch (type) {
        case kFp64: static_cast<double*>(at)[index] = value; return;
        case kFp32: static_cast<float*>(at)[index] = static_cast<float>(value); return;
        case kInt32: static_cast<int32_t*>(at)[index] = static_cast<int32_t>(std::nearbyint(value)); return;
        case kInt8:
            static_cast<int8_t*>(at)[index] = static_cast<int8_t>(std::min(127.0, std::max(-128.0, std::nearbyint(value))));
            return;
        case kBf16: {
            const float narrow = static_cast<float>(value);
            uint32_t bits;
            std::memcpy(&bits, &narrow, 4);
            const bool nan = (bits & 0x7fffffff) > 0x7f800000;
            static_cast<uint16_t*>(at)[index] = static_cast<uint16_t>(nan ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
            return;
        }
        case kFp16: {
            int exponent;
            const double size = std::fabs(value), fraction = std::frexp(size, &exponent);
            unsigned bits;
            if (std::isnan(value)) bits = 0x7e00;
            else if (size >= 65520) bits = 0x7c00;
            else if (exponent < -13) bits = static_cast<unsigned>(std::nearbyint(std::ldexp(size, 24)));
            else bits = static_cast<unsigned>((exponent + 14) << 10) + static_cast<unsigned>(std::nearbyint(std::ldexp(fraction, 11))) - 1024;
            static_cast<uint16_t*>(at)[index] = static_cast<uint16_t>(bits | (std::signbit(value) ? 0x8000 : 0));
            return;
        }
    }
}

struct Matrix {
    int type = kFp32;
    int64_t rows = 0, columns = 0, ld = 0, stride = 0;
    const void* data = nullptr;
};

struct Problem {
    Matrix a, b, c, d;
    bool transposed_a = false, transposed_b = false;
    int64_t batch = 1;
    double alpha = 1, beta = 0;
    int activation = 0;  // 0, relu 2, gelu 32, swish 65536 (hipblasLtEpilogue_t)
    const void* bias = nullptr;
    int bias_type = kFp32;
    const float *scale_a = nullptr, *scale_b = nullptr, *scale_d = nullptr;
    bool outer_a = false, outer_b = false;

    int64_t m() const { return d.rows; }
    int64_t n() const { return d.columns; }
    int64_t k() const { return transposed_a ? a.rows : a.columns; }
};

// How a numbered solution multiplies: the product once, two or three times over, wrongly, or not at all.
enum Way { kOnce = 1, kTwice = 2, kThrice = 3, kDropsLastK, kFails };

inline bool sound(Way way) { return way != kDropsLastK && way != kFails; }

// 16-bit floats by their bits.
inline const double* sixteen_bits(int type) {
    static const std::vector<double> tables[2] = {
        [] {
            std::vector<double> made(65536);
            for (unsigned bits = 0; bits < 65536; ++bits) {
                const uint16_t word = static_cast<uint16_t>(bits);
                made[bits] = load(kFp16, &word, 0);
            }
            return made;
        }(),
        [] {
            std::vector<double> made(65536);
            for (unsigned bits = 0; bits < 65536; ++bits) {
                const uint16_t word = static_cast<uint16_t>(bits);
                made[bits] = load(kBf16, &word, 0);
            }
            return made;
        }()};
    return tables[type == kBf16].data();
}

// Lines [first, last) of an operand along k, each k long: lines are its rows, or its columns.
inline void widen(const Matrix& from, int64_t batch, bool lines_are_rows, int64_t first, int64_t last, int64_t k, double* to) {
    const int64_t base = batch * from.stride, apart = lines_are_rows ? 1 : from.ld, along = lines_are_rows ? from.ld : 1;
    if (from.type == kFp16 || from.type == kBf16) {
        const double* const table = sixteen_bits(from.type);
        const uint16_t* const words = static_cast<const uint16_t*>(from.data) + base;
        for (int64_t line = first; line < last; ++line)
            for (int64_t l = 0; l < k; ++l) to[(line - first) * k + l] = table[words[line * apart + l * along]];
    } else {
        for (int64_t line = first; line < last; ++line)
            for (int64_t l = 0; l < k; ++l) to[(line - first) * k + l] = load(from.type, from.data, base + line * apart + l * along);
    }
}

inline double dot(const double* x, const double* y, int64_t k) {
    double sums[8] = {};
    int64_t l = 0;
    for (; l + 8 <= k; l += 8)
        for (int e = 0; e < 8; ++e) sums[e] += x[l + e] * y[l + e];
    double sum = 0;
    for (; l < k; ++l) sum += x[l] * y[l];
    for (const double one : sums) sum += one;
    return sum;
}

inline void finish(const Problem& p, int64_t batch, int64_t i, int64_t j, double sum) {
    double value = p.alpha * sum;
    if (p.scale_a) value *= p.scale_a[p.outer_a ? i : 0];
    if (p.scale_b) value *= p.scale_b[p.outer_b ? j : 0];
    if (p.beta != 0) value += p.beta * load(p.c.type, p.c.data, batch * p.c.stride + i + j * p.c.ld);
    if (p.bias) value += load(p.bias_type, p.bias, i);
    if (p.activation == 2) value = std::max(value, 0.0);
    if (p.activation == 65536) value /= 1 + std::exp(-value);
    if (p.activation == 32) value = 0.5 * value * (1 + std::tanh(0.7978845608028654 * (value + 0.044715 * value * value * value)));
    if (p.scale_d) value *= *p.scale_d;
    store(p.d.type, const_cast<void*>(p.d.data), batch * p.d.stride + i + j * p.d.ld, value);
}

inline const char* run(const Problem& p, Way way) {
    if (way == kFails) return "the kernel fails";
    constexpr int64_t kLines = 64;
    const int64_t m = p.m(), n = p.n(), k = p.k(), used = way == kDropsLastK ? k - 1 : k;
    std::vector<double> a(static_cast<size_t>(kLines * k)), b(static_cast<size_t>(n * k)), sums(static_cast<size_t>(kLines * n));
    for (int64_t z = 0; z < p.batch; ++z) {
        widen(p.b, z, p.transposed_b, 0, n, k, b.data());
        for (int64_t first = 0; first < m; first += kLines) {
            const int64_t last = std::min(m, first + kLines);
            for (int round = 0; round < (way == kTwice ? 2 : way == kThrice ? 3 : 1); ++round) {
                widen(p.a, z, !p.transposed_a, first, last, k, a.data());
                for (int64_t i = first; i < last; ++i)
                    for (int64_t j = 0; j < n; ++j)
                        sums[static_cast<size_t>((i - first) * n + j)] = dot(&a[static_cast<size_t>((i - first) * k)], &b[static_cast<size_t>(j * k)], used);
            }
            // D last: where beta is not zero it may be C.
            for (int64_t i = first; i < last; ++i)
                for (int64_t j = 0; j < n; ++j) finish(p, z, i, j, sums[static_cast<size_t>((i - first) * n + j)]);
        }
    }
    return nullptr;
}

}  // namespace gemm
