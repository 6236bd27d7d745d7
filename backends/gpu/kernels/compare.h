// Comparing what a kernel wrote: bytes of guard bands, and elements of D with the reference.
#pragma once

#include "layout.h"

namespace gemmtune {

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

}  // namespace gemmtune
