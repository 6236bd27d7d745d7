// Copies lines (columns of a column-major operand) between layouts of different alignment, at the speed of
// the memory. A thread writes aligned 16-byte chunks of the target, each from one or two aligned 16-byte
// loads of the source and a funnel shift; where a chunk or its loads would leave their operand, it goes by
// units instead.
//
// UNIT: bytes (1, 2, 4, 8, 16) that both operands' addresses, pitches and widths are multiples of.

#ifndef UNIT
#error "UNIT is not defined"
#endif

typedef long long i64;
typedef unsigned long long u64;

#if UNIT == 1
typedef unsigned char Unit;
#elif UNIT == 2
typedef unsigned short Unit;
#elif UNIT == 4
typedef unsigned int Unit;
#else
typedef unsigned long long Unit;
#endif

// Bytes of a Unit: operands in units of 16 bytes need no more than 8 at their ends.
#define STEP (UNIT > 8 ? 8 : UNIT)
#define IN_FLIGHT 4

// Pitches and strides in bytes. `source_bytes`: from the source's first byte to the end of its last line.
// `fill`: the target's lines have room up to the next 16 bytes, which is set to zero.
struct Copy {
    const unsigned char* source;
    unsigned char* target;
    i64 source_bytes, source_pitch, target_pitch, source_stride, target_stride;
    i64 width, lines, batch;
    int fill;
};

// Bytes `shift` to `shift` + 15 of two chunks.
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, unsigned shift) {
    if (shift & 8) {
        low.x = low.z, low.y = low.w, low.z = high.x, low.w = high.y;
        high.x = high.z, high.y = high.w;
    }
    if (shift & 4) {
        low.x = low.y, low.y = low.z, low.z = low.w, low.w = high.x;
        high.x = high.y;
    }
    const unsigned bits = (shift & 3) * 8;
    uint4 out;
    out.x = __funnelshift_r(low.x, low.y, bits);
    out.y = __funnelshift_r(low.y, low.z, bits);
    out.z = __funnelshift_r(low.z, low.w, bits);
    out.w = __funnelshift_r(low.w, high.x, bits);
    return out;
}

// A chunk's bytes from `from` to `to` read one unit at a time, zero elsewhere.
__device__ __forceinline__ uint4 gathered(const unsigned char* source, int from, int to) {
    unsigned words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int at = 0; at < 16; at += STEP) {
        if (at < from || at >= to) continue;
        const Unit value = *reinterpret_cast<const Unit*>(source + at);
#if UNIT >= 8
        words[at / 4] = static_cast<unsigned>(value);
        words[at / 4 + 1] = static_cast<unsigned>(value >> 32);
#else
        words[at / 4] |= static_cast<unsigned>(value) << (at % 4 * 8);
#endif
    }
    uint4 out;
    out.x = words[0], out.y = words[1], out.z = words[2], out.w = words[3];
    return out;
}

__device__ __forceinline__ void scattered(unsigned char* target, uint4 chunk, int from, int to) {
    const unsigned words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int at = 0; at < 16; at += STEP) {
        if (at < from || at >= to) continue;
#if UNIT >= 8
        const Unit value = words[at / 4] | static_cast<u64>(words[at / 4 + 1]) << 32;
#else
        const Unit value = static_cast<Unit>(words[at / 4] >> (at % 4 * 8));
#endif
        *reinterpret_cast<Unit*>(target + at) = value;
    }
}

// What a chunk of a line needs: its place in the target, and the bytes of it that are the line's.
struct Place {
    const unsigned char* source;  // of the chunk's first byte, which may lie before the line
    unsigned char* target;        // aligned to 16
    int from, to;                 // to <= from: nothing
};

__device__ __forceinline__ Place placed(const Copy& copy, i64 chunk, i64 line, i64 batch) {
    Place place;
    unsigned char* const start = copy.target + batch * copy.target_stride + line * copy.target_pitch;
    const int head = static_cast<int>(reinterpret_cast<u64>(start) & 15);
    const i64 offset = chunk * 16 - head;  // of the chunk in the line
    const i64 left = copy.width - offset;
    place.source = copy.source + batch * copy.source_stride + line * copy.source_pitch + offset;
    place.target = start + offset;
    place.from = offset < 0 ? static_cast<int>(-offset) : 0;
    place.to = line < copy.lines ? static_cast<int>(left < 0 ? 0 : left < 16 ? left : 16) : 0;
    return place;
}

// The aligned 16 bytes that a whole chunk begins in and, unless it fills them, the next 16.
struct Raw {
    uint4 low, high;
    unsigned shift;
    bool whole;  // else nothing is loaded: the chunk goes by units
};

__device__ __forceinline__ Raw loaded(const Copy& copy, const Place& place) {
    Raw raw;
    raw.shift = static_cast<unsigned>(reinterpret_cast<u64>(place.source) & 15);
    const i64 base = place.source - raw.shift - copy.source;
    const bool inside = base >= 0 && base + (raw.shift ? 32 : 16) <= copy.source_bytes;
    raw.whole = inside && place.from == 0 && place.to == 16;
    const uint4* const words = reinterpret_cast<const uint4*>(place.source - raw.shift);
    raw.low.x = raw.low.y = raw.low.z = raw.low.w = 0;
    raw.high = raw.low;
    if (raw.whole) raw.low = __ldg(words);
    if (raw.whole && raw.shift) raw.high = __ldg(words + 1);
    return raw;
}

__device__ __forceinline__ void stored(const Copy& copy, const Place& place, uint4 chunk) {
    if (place.to <= place.from) return;
    if (place.from == 0 && (place.to == 16 || copy.fill)) {
        *reinterpret_cast<uint4*>(place.target) = chunk;
    } else {
        scattered(place.target, chunk, place.from, place.to);
    }
}

// Threads x: chunks of a line; y: lines, IN_FLIGHT each and further apart by all of the grid's; z: batch.
extern "C" __global__ void __launch_bounds__(256) pad(Copy copy) {
    const i64 chunks = (copy.width + (copy.fill ? 15 : 30)) / 16;
    const i64 chunk = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (chunk >= chunks) return;
    const i64 step = static_cast<i64>(gridDim.y) * blockDim.y;
    const i64 first = static_cast<i64>(blockIdx.y) * blockDim.y + threadIdx.y;
    for (i64 batch = blockIdx.z; batch < copy.batch; batch += gridDim.z) {
        for (i64 line = first; line < copy.lines; line += step * IN_FLIGHT) {
            Place places[IN_FLIGHT];
            Raw raws[IN_FLIGHT];  // all loaded before the first is used
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; i++) {
                places[i] = placed(copy, chunk, line + i * step, batch);
                raws[i] = loaded(copy, places[i]);
            }
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; i++) {
                const Place& at = places[i];
                const Raw& raw = raws[i];
                stored(copy, at, raw.whole ? shifted(raw.low, raw.high, raw.shift)
                                           : gathered(at.source, at.from, at.to));
            }
        }
    }
}
