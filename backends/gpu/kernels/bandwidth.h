// Reads and copies at memory bandwidth: every thread has several 16-byte loads in flight before it uses the
// first.
#pragma once

#include "words.h"

namespace gemmtune {

constexpr int kInFlight = 8;

// An array of 16-byte words.
struct MovedWords {
    const Words* source;
    Words* target;
    u64 count;
};

// Reads all words. `target` is one word, written only if the words' sum has a value that random data
// practically never has; it keeps the loads from being optimised away.
struct ReadWords {
    using Args = MovedWords;
    static constexpr int kThreads = 512, kMinBlocks = 0, kSharedBytes = 0;

    static GEMMTUNE_DEVICE void run(const Args& args, char*) {
        const i64 stride = all_threads<kThreads>(), count = static_cast<i64>(args.count);
        i64 at = first_index<kThreads>();
        unsigned sum = 0;
        for (; at + (kInFlight - 1) * stride < count; at += kInFlight * stride) {
            Words v[kInFlight];
            GEMMTUNE_UNROLL
            for (int i = 0; i < kInFlight; ++i) v[i] = stream16(args.source + at + i * stride);
            GEMMTUNE_UNROLL
            for (int i = 0; i < kInFlight; ++i) sum += mixed(v[i]);
        }
        for (; at < count; at += stride) sum += mixed(stream16(args.source + at));
        if (sum == 0x9e3779b9u) args.target->at[0] = sum;
    }

private:
    static GEMMTUNE_DEVICE unsigned mixed(const Words& v) { return v.at[0] ^ v.at[1] ^ v.at[2] ^ v.at[3]; }
};

struct CopyWords {
    using Args = MovedWords;
    static constexpr int kThreads = 512, kMinBlocks = 0, kSharedBytes = 0;

    static GEMMTUNE_DEVICE void run(const Args& args, char*) {
        const i64 stride = all_threads<kThreads>(), count = static_cast<i64>(args.count);
        i64 at = first_index<kThreads>();
        for (; at + (kInFlight - 1) * stride < count; at += kInFlight * stride) {
            Words v[kInFlight];
            GEMMTUNE_UNROLL
            for (int i = 0; i < kInFlight; ++i) v[i] = stream16(args.source + at + i * stride);
            GEMMTUNE_UNROLL
            for (int i = 0; i < kInFlight; ++i) write_global16(args.target + at + i * stride, v[i]);
        }
        for (; at < count; at += stride) write_global16(args.target + at, stream16(args.source + at));
    }
};

}  // namespace gemmtune

GEMMTUNE_KERNEL(read_words, gemmtune::ReadWords)
GEMMTUNE_KERNEL(copy_words, gemmtune::CopyWords)
