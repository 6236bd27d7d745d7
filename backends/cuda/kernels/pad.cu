// Copies lines (columns of a column-major operand) between layouts of different alignment, at the speed of
// the memory, several operands in one launch. A thread writes aligned 16-byte chunks of the target, each from
// one or two aligned 16-byte loads of the source and a funnel shift; where the loads would leave their
// operand, or a chunk is not the line's alone, it goes by units instead.
//
// UNIT: bytes (1, 2, 4, 8, 16) that all operands' addresses, pitches and widths are multiples of.

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

#define THREADS 256
#define MOST_COPIES 8

// Pitches and strides in bytes. `source_bytes`: from the source's first byte to the end of its last line.
// A block's threads are `across` (a power of two) chunks of a line by THREADS / across lines, and the copy's
// blocks, from `first` on, are span_x by span_y by span_z. A thread's chunks in flight lie apart by all that
// the blocks cover: along the line where `along`, else from line to line.
// `fill`: the target's lines are aligned to 16 and have room up to the next 16 bytes, which is set to zero.
struct Copy {
    const unsigned char* source;
    unsigned char* target;
    i64 source_bytes, source_pitch, target_pitch, source_stride, target_stride;
    i64 width, lines, batch;
    unsigned first, span_x, span_y, span_z, across_log;
    int along, fill;
};

// In the order of their blocks.
struct Copies {
    Copy of[MOST_COPIES];
    int count;
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

// A chunk's first `to` bytes, zero elsewhere.
__device__ __forceinline__ unsigned kept(unsigned word, int to) {
    return to >= 4 ? word : to <= 0 ? 0 : word & ((1u << (to * 8)) - 1);
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

// A chunk on its way: its place in the target, its line's bytes of it (to <= from: none), and what they lie
// in: aligned 16 bytes of the source from byte `shift` on and, where they reach those, the next 16.
struct Chunk {
    unsigned char* target;  // aligned to 16
    uint4 low, high;
    int bits;  // from, to, shift: a byte each, which spares registers

    __device__ __forceinline__ int from() const { return bits & 255; }
    __device__ __forceinline__ int to() const { return bits >> 8 & 255; }
    __device__ __forceinline__ unsigned shift() const { return static_cast<unsigned>(bits) >> 16; }
};

__device__ __forceinline__ Chunk loaded(const Copy& copy, i64 number, i64 line, i64 batch) {
    Chunk chunk;
    unsigned char* const start = copy.target + batch * copy.target_stride + line * copy.target_pitch;
    const int head = copy.fill ? 0 : static_cast<int>(reinterpret_cast<u64>(start) & 15);
    const i64 offset = number * 16 - head;  // of the chunk in the line, before which it may begin
    const i64 left = copy.width - offset;
    chunk.target = start + offset;
    const int from = offset < 0 ? static_cast<int>(-offset) : 0;
    const int to = line < copy.lines ? static_cast<int>(left < 0 ? 0 : left < 16 ? left : 16) : 0;

    const i64 at = batch * copy.source_stride + line * copy.source_pitch + offset;
    const unsigned char* const source = copy.source + at;
    int shift = static_cast<int>(reinterpret_cast<u64>(source) & 15);
    const bool both = shift + to > 16;
    const i64 base = at - shift;
    chunk.low.x = chunk.low.y = chunk.low.z = chunk.low.w = 0;
    chunk.high = chunk.low;
    if (to <= from) {
        chunk.bits = 0;
        return chunk;
    }
    if (base >= 0 && base + (both ? 32 : 16) <= copy.source_bytes) {
        const uint4* const words = reinterpret_cast<const uint4*>(source - shift);
        chunk.low = *words;  // not by __ldg(): D was stored since this launch started (see pad())
        if (both) chunk.high = words[1];
    } else {
        chunk.low = gathered(source, from, to);
        shift = 0;
    }
    chunk.bits = from | to << 8 | shift << 16;
    return chunk;
}

__device__ __forceinline__ void stored(const Copy& copy, const Chunk& chunk) {
    const int from = chunk.from(), to = chunk.to();
    if (to <= from) return;
    uint4 out = shifted(chunk.low, chunk.high, chunk.shift());
    if (to - from == 16) {
        *reinterpret_cast<uint4*>(chunk.target) = out;
    } else if (copy.fill) {
        out.x = kept(out.x, to), out.y = kept(out.y, to - 4);
        out.z = kept(out.z, to - 8), out.w = kept(out.w, to - 12);
        *reinterpret_cast<uint4*>(chunk.target) = out;
    } else {
        scattered(chunk.target, out, from, to);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) pad(const __grid_constant__ Copies copies) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");  // launched while the launch before this one ends
#endif
    int which = 0;
    while (which + 1 < copies.count && blockIdx.x >= copies.of[which + 1].first) which++;
    const Copy& copy = copies.of[which];
    const unsigned block = blockIdx.x - copy.first, row = block / copy.span_x, layer = row / copy.span_y;
    const unsigned x = block - row * copy.span_x, y = row - layer * copy.span_y;
    const unsigned across = 1u << copy.across_log, down = THREADS >> copy.across_log;
    const i64 first_chunk = static_cast<i64>(x) * across + (threadIdx.x & (across - 1));
    const i64 first_line = static_cast<i64>(y) * down + (threadIdx.x >> copy.across_log);
    const i64 wide = static_cast<i64>(copy.span_x) * across, high = static_cast<i64>(copy.span_y) * down;
    const i64 step_x = copy.along ? wide : 0, step_y = copy.along ? 0 : high;
    const i64 far_x = copy.along ? wide * IN_FLIGHT : wide, far_y = copy.along ? high : high * IN_FLIGHT;
    const i64 chunks = (copy.width + (copy.fill ? 15 : 30)) / 16;
    for (i64 batch = layer; batch < copy.batch; batch += copy.span_z) {
        for (i64 line = first_line; line < copy.lines; line += far_y) {
            for (i64 chunk = first_chunk; chunk < chunks; chunk += far_x) {
                Chunk moving[IN_FLIGHT];  // all loaded before the first is used
#pragma unroll
                for (int i = 0; i < IN_FLIGHT; i++) {
                    moving[i] = loaded(copy, chunk + i * step_x, line + i * step_y, batch);
                }
#pragma unroll
                for (int i = 0; i < IN_FLIGHT; i++) stored(copy, moving[i]);
            }
        }
    }
}
