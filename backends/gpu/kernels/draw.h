// Random elements of operands, by a hash of the seed and an element's offset.
#pragma once

#include "layout.h"

namespace gemmtune {

// Stafford's 13th mixer of 64 bits (the finaliser of SplitMix64).
GEMMTUNE_DEVICE u64 mixed(u64 x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// backends/gpu/device_reference.py:_KINDS
enum Distribution { NORMAL = 0, UNIFORM = 1, INTEGERS = 2, WHOLE = 3, SCALE = 4, POISON = 5, ZERO = 6, SHIFT = 7,
                    BYTE = 8, POWER = 9 };

GEMMTUNE_DEVICE float drawn(u64 bits, int distribution, float parameter) {
    unsigned low = unsigned(bits), high = unsigned(bits >> 32);
    switch (distribution) {
        case NORMAL: {  // Box and Muller
            float radius = square_root(-2.0f * natural_log((float(low >> 8) + 1.0f) * 0x1p-24f));
            return parameter * radius * cosine_pi(float(high >> 8) * 0x1p-23f);
        }
        case UNIFORM: return float(high >> 8) * 0x1p-24f;
        case SCALE: return 0.5f + float(high >> 9) * 0x1p-23f;
        case ZERO: return float(high >> 8) * 0x1p-20f;
        case SHIFT: return float(high >> 8) * 0x1p-20f - 8.0f;
        case BYTE: return float(high >> 24);
        case POWER: {  // of two: exponents from -parameter to parameter - 1, a power of two
            int span = int(parameter);
            return power_of_two(int(high >> 8 & unsigned(2 * span - 1)) - span);
        }
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

}  // namespace gemmtune
