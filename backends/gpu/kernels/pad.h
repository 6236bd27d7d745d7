// Copies lines (columns of a column-major operand) between layouts of different alignment at memory bandwidth,
// several operands in one launch. A thread writes aligned 16-byte chunks of the target, each from one or two
// aligned 16-byte loads of the source and a funnel shift. Where the loads would leave their operand, or a chunk
// is shared with another line, it copies by units instead.
//
// UNIT: bytes (1, 2, 4, 8, 16) that all operands' addresses, pitches and widths are multiples of.

#pragma once

#ifndef UNIT
#error "UNIT is not defined"
#endif

#include "words.h"

namespace gemmtune {

#if UNIT == 1
typedef unsigned char Unit;
#elif UNIT == 2
typedef unsigned short Unit;
#elif UNIT == 4
typedef unsigned int Unit;
#else
typedef unsigned long long Unit;
#endif

// Bytes of a Unit: for operands in units of 16 bytes, 8 suffice at the ends.
constexpr int kStep = UNIT > 8 ? 8 : UNIT, kChunksInFlight = 4;

constexpr int kCopyThreads = 256, kMostCopies = 8;

// Pitches and strides are in bytes. `source_bytes`: from the source's first byte to the end of its last line. A
// block's threads are 2^across_log chunks of a line by kCopyThreads / 2^across_log lines, and the copy's
// blocks, from `first` on, are span_x by span_y by span_z. The extent of all these blocks is the distance
// between a thread's chunks: along the line if `along`, otherwise from line to line. It is `source_step` and
// `target_step` bytes, and `apart` bytes of the line, or lines.
struct Copy {
    const unsigned char* source;
    unsigned char* target;
    i64 source_bytes, source_pitch, target_pitch, source_stride, target_stride;
    i64 width, lines, batch;
    i64 source_step, target_step, apart;
    unsigned first, span_x, span_y, span_z, across_log;
    int along;
};

// The copies of a launch, in the order of their blocks.
struct Copies {
    Copy of[kMostCopies];
    int count;
};

// Bytes `shift` to `shift` + 15 of two consecutive chunks.
GEMMTUNE_DEVICE Words shifted(Words low, Words high, unsigned shift) {
    if (shift & 8) {
        low.at[0] = low.at[2], low.at[1] = low.at[3], low.at[2] = high.at[0], low.at[3] = high.at[1];
        high.at[0] = high.at[2], high.at[1] = high.at[3];
    }
    if (shift & 4) {
        low.at[0] = low.at[1], low.at[1] = low.at[2], low.at[2] = low.at[3], low.at[3] = high.at[0];
        high.at[0] = high.at[1];
    }
    const unsigned bits = (shift & 3) * 8;
    Words out;
    out.at[0] = funnel(low.at[0], low.at[1], bits);
    out.at[1] = funnel(low.at[1], low.at[2], bits);
    out.at[2] = funnel(low.at[2], low.at[3], bits);
    out.at[3] = funnel(low.at[3], high.at[0], bits);
    return out;
}

// A chunk's bytes [from, to), read one unit at a time; zero elsewhere.
GEMMTUNE_DEVICE Words gathered(const unsigned char* source, int from, int to) {
    unsigned words[4] = {0, 0, 0, 0};
    GEMMTUNE_UNROLL
    for (int at = 0; at < 16; at += kStep) {
        if (at < from || at >= to) continue;
        const Unit value = *reinterpret_cast<const Unit*>(source + at);
#if UNIT >= 8
        words[at / 4] = static_cast<unsigned>(value);
        words[at / 4 + 1] = static_cast<unsigned>(value >> 32);
#else
        words[at / 4] |= static_cast<unsigned>(value) << (at % 4 * 8);
#endif
    }
    return {{words[0], words[1], words[2], words[3]}};
}

// A word's first `to` bytes; zero elsewhere.
GEMMTUNE_DEVICE unsigned kept(unsigned word, int to) {
    return to >= 4 ? word : to <= 0 ? 0 : word & ((1u << (to * 8)) - 1);
}

GEMMTUNE_DEVICE void scattered(unsigned char* target, Words chunk, int from, int to) {
    const unsigned (&words)[4] = chunk.at;
    GEMMTUNE_UNROLL
    for (int at = 0; at < 16; at += kStep) {
        if (at < from || at >= to) continue;
#if UNIT >= 8
        const Unit value = words[at / 4] | static_cast<u64>(words[at / 4 + 1]) << 32;
#else
        const Unit value = static_cast<Unit>(words[at / 4] >> (at % 4 * 8));
#endif
        *reinterpret_cast<Unit*>(target + at) = value;
    }
}

// Copies a thread's chunks from chunk `number` of line `line` on: ALONG the line, or the same chunk of every
// apart-th line. All have the same offset within 16 bytes, so their shift is computed once.
template <bool FILL, bool ALONG>
GEMMTUNE_DEVICE void walk(const Copy& copy, i64 number, i64 line, i64 batch) {
    unsigned char* to_at = copy.target + batch * copy.target_stride + line * copy.target_pitch;
    const i64 offset = number * 16 - (FILL ? 0 : static_cast<int>(reinterpret_cast<u64>(to_at) & 15));
    to_at += offset;  // may be before its line
    const i64 at = batch * copy.source_stride + line * copy.source_pitch + offset;
    const unsigned shift = static_cast<unsigned>(reinterpret_cast<u64>(copy.source + at)) & 15;
    i64 base = at - shift;
    const u64 last = static_cast<u64>(copy.source_bytes - (shift ? 32 : 16));  // the last offset of a load

    // What is left: bytes of the line from here on, or lines.
    const i64 width = copy.width - offset;
    i64 left = ALONG ? width : width > 0 ? copy.lines - line : 0;
    int from = offset < 0 ? static_cast<int>(-offset) : 0;
    const int to = ALONG || width >= 16 ? 16 : static_cast<int>(width);
    const bool by_words = copy.source_bytes >= 32 && ((copy.source_step | copy.target_step) & 15) == 0;
    while (left > 0) {
        Words low[kChunksInFlight], high[kChunksInFlight];
        bool here[kChunksInFlight];
        unsigned skipped = 0;
    GEMMTUNE_UNROLL
        for (int i = 0; i < kChunksInFlight; i++) {  // all loads are issued before the first is used
            // Along a line the first chunk may begin before the line, and the last one may end behind it.
            here[i] = by_words && left > (ALONG ? 15 : 0) && static_cast<u64>(base) <= last;
            if (ALONG && i == 0 && from > 0) here[i] = false;
            if (here[i]) {
                const Words* const words = reinterpret_cast<const Words*>(copy.source + base);
                low[i] = read_operand16(words);
                high[i] = read_operand16(words + (shift ? 1 : 0));
            } else if (left > 0) {
                skipped |= 1u << i;
            }
            left -= copy.apart, base += copy.source_step;
        }
    GEMMTUNE_UNROLL
        for (int i = 0; i < kChunksInFlight; i++) {
            if (here[i]) {
                Words out = shifted(low[i], high[i], shift);
                if (FILL && to < 16) {
                    out.at[0] = kept(out.at[0], to), out.at[1] = kept(out.at[1], to - 4);
                    out.at[2] = kept(out.at[2], to - 8), out.at[3] = kept(out.at[3], to - 12);
                }
                if (FILL || ALONG || to - from == 16) *reinterpret_cast<Words*>(to_at) = out;
                else scattered(to_at, out, from, to);
            }
            to_at += copy.target_step;
        }
        for (int back = kChunksInFlight; skipped != 0; --back, skipped >>= 1) {  // chunks at the ends, by units
            if ((skipped & 1) == 0) continue;
            const i64 rest = left + back * copy.apart;
            const int until = ALONG && rest < 16 ? static_cast<int>(rest) : to;
            const int begin = ALONG && back < kChunksInFlight ? 0 : from;
            const unsigned char* const source = copy.source + (base + shift - back * copy.source_step);
            unsigned char* const target = to_at - back * copy.target_step;
            const Words out = gathered(source, begin, until);
            if (FILL) *reinterpret_cast<Words*>(target) = out;
            else scattered(target, out, begin, until);
        }
        if (ALONG) from = 0;
    }
}

// FILL: copies into padded buffers, whose lines are aligned to 16 bytes and have room up to the next multiple
// of 16 bytes, which is set to zero; otherwise copies out of them.
template <bool FILL>
struct CopyLines {
    using Args = Copies;
    static constexpr int kThreads = kCopyThreads, kMinBlocks = 3, kSharedBytes = 0;
    // May be launched while the previous launch ends.
    static constexpr bool kWaits = true;

    static GEMMTUNE_DEVICE void run(const Copies& copies, char*) {
        int which = 0;
        while (which + 1 < copies.count && block_x() >= copies.of[which + 1].first) which++;
        const Copy& copy = copies.of[which];
        const unsigned block = block_x() - copy.first, row = block / copy.span_x, layer = row / copy.span_y;
        const unsigned x = block - row * copy.span_x, y = row - layer * copy.span_y;
        const unsigned across = 1u << copy.across_log, down = kThreads >> copy.across_log;
        const i64 first_chunk = static_cast<i64>(x) * across + (thread_index() & (across - 1));
        const i64 first_line = static_cast<i64>(y) * down + (thread_index() >> copy.across_log);
        const i64 wide = static_cast<i64>(copy.span_x) * across, high = static_cast<i64>(copy.span_y) * down;
        const i64 chunks = (copy.width + (FILL ? 15 : 30)) / 16;
        wait_for_launches();
        // The GEMM's blocks may be placed as these end, and wait for all of them. After the copy out of the
        // buffers the next launch is another GEMM, which must not overlap this one.
        if (FILL) launch_dependents();
        for (i64 batch = layer; batch < copy.batch; batch += copy.span_z) {
            if (copy.along) {
                for (i64 line = first_line; line < copy.lines; line += high)
                    walk<FILL, true>(copy, first_chunk, line, batch);
            } else {
                for (i64 chunk = first_chunk; chunk < chunks; chunk += wide)
                    walk<FILL, false>(copy, chunk, first_line, batch);
            }
        }
    }
};

}  // namespace gemmtune

GEMMTUNE_KERNEL(pad, gemmtune::CopyLines<true>)
GEMMTUNE_KERNEL(unpad, gemmtune::CopyLines<false>)
