// The reference of gated rows (backends/grouping.py: swiglu), from the reference of the product before them.
#pragma once

#include "formats.h"
#include "layout.h"

namespace gemmtune {

// expected[j, i] = silu(y[j, i]) y[j, half + i] of y [n, 2 half], whose elements are off by at most `error`, with the
// tolerances of tuners/reference.py: gated().
struct Gate {
    struct Args {
        const double* product;
        const float* error;
        double* expected;
        float* tolerance;
        i64 half, n;
        double slope, rounding, least;
    };
    static constexpr int kThreads = gemmtune::kThreads, kMinBlocks = 0, kSharedBytes = 0;

    static GEMMTUNE_DEVICE void run(const Args& args, char*) {
        for (i64 i = first_index<kThreads>(); i < args.n * args.half; i += all_threads<kThreads>()) {
            const i64 at = i / args.half * 2 * args.half + i % args.half;
            const double gate = args.product[at], up = args.product[at + args.half];
            const double off = args.slope * args.error[at], off_up = args.error[at + args.half];
            const double silu = gate / (1 + exponential_of(-gate)), value = silu * up;
            const double off_both = off * (absolute(up) + off_up) + absolute(silu) * off_up;
            args.expected[i] = value;
            args.tolerance[i] =
                rounded_up(off_both + args.rounding * absolute(value) + args.least * (1 + absolute(up)));
        }
    }
};

}  // namespace gemmtune
