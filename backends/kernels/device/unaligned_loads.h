// What the families for few columns share. One operand (A, the weights) is far larger than all the rest: it
// is read once, 16 bytes a load, many loads in flight before the first is used, and kept out of the L1
// cache; B (the activations) is small and read from the caches. Speed is bytes in flight: at 4.6 TB/s and
// some 800 ns a GPU of 132 multiprocessors needs about 28 KB of loads on their way on each.
#pragma once

#include "device/epilogue.h"

namespace gemmtune {

// 16 bytes from byte `shift` on, an even one of the first 16, of two neighbouring words.
GEMMTUNE_DEVICE Words joined(const Words& first, const Words& second, u64 shift) {
    Words out;
    unsigned all[8];
    GEMMTUNE_UNROLL
    for (int i = 0; i < 4; ++i) all[i] = first.at[i], all[i + 4] = second.at[i];
    GEMMTUNE_UNROLL
    for (int i = 0; i < 5; ++i) if (shift & 8) all[i] = all[i + 2];
    if (shift & 8) all[5] = all[7];
    GEMMTUNE_UNROLL
    for (int i = 0; i < 5; ++i) if (shift & 4) all[i] = all[i + 1];
    const unsigned bits = static_cast<unsigned>(shift & 3) * 8;
    GEMMTUNE_UNROLL
    for (int i = 0; i < 4; ++i) {
        const u64 both = static_cast<u64>(all[i + 1]) << 32 | all[i];
        out.at[i] = static_cast<unsigned>(both >> bits);
    }
    return out;
}

// 16 bytes from an address that is a multiple of an element only: two aligned loads and a funnel shift;
// where those would leave the operand [begin, end), element by element.
template <typename T>
GEMMTUNE_DEVICE Words load_any(const T* source, const char* begin, const char* end) {
    const u64 shift = reinterpret_cast<u64>(source) & 15;
    const char* const low = reinterpret_cast<const char*>(source) - shift;
    if (shift == 0) return read16(low);
    if (low >= begin && low + 32 <= end) {
        const Words first = read16(low), second = read16(low + 16);
        return joined(first, second, shift);
    }
    Words out;
    GEMMTUNE_UNROLL
    for (int i = 0; i < 4; ++i) out.at[i] = Word<T>::pack(source + i * Word<T>::kElements);
    return out;
}

// 16 bytes of the operand that is read once.
template <bool ALIGNED, typename T>
GEMMTUNE_DEVICE Words load_once(const T* source, const char* begin, const char* end) {
    if constexpr (ALIGNED) return stream16(source);
    else return load_any(source, begin, end);
}

// 16 bytes' elements of the small operand along k, `step` elements apart, widened.
template <bool CONTIGUOUS, bool ALIGNED, typename T>
GEMMTUNE_DEVICE void load_again(const T* source, i64 step, const char* begin, const char* end,
                                float (&out)[kChunk<T>]) {
    if constexpr (CONTIGUOUS) {
        unpack<T>((ALIGNED ? read16(source) : load_any(source, begin, end)).at, out);
    } else {
        GEMMTUNE_UNROLL
        for (int i = 0; i < kChunk<T>; ++i) out[i] = widen(source[i * step]);
    }
}

// Adds each of N values (a power of two) over the warp's lanes. Every exchange halves what a lane is in
// charge of, so that N values cost about N shuffles, not N log2(warp). Afterwards a lane has kKept whole
// sums, those of index(lane) on; where there are more lanes than values, groups of kWarp / N lanes have the
// same one.
template <int N>
struct WarpSums {
    static_assert((N & (N - 1)) == 0, "a power of two");
    static constexpr int kKept = N > kWarp ? N / kWarp : 1;
    static constexpr int kSharers = N < kWarp ? kWarp / N : 1;

    static GEMMTUNE_DEVICE int index(int lane) { return lane / kSharers * kKept; }

    static GEMMTUNE_DEVICE void run(float (&value)[N], int lane) { halve<N, kWarp / 2>(value, lane); }

private:
    template <int COUNT, int OFFSET>
    static GEMMTUNE_DEVICE void halve(float (&value)[N], int lane) {
        if constexpr (OFFSET > 0) {
            if constexpr (COUNT > 1) {
                const bool upper = lane & OFFSET;
                GEMMTUNE_UNROLL
                for (int i = 0; i < COUNT / 2; ++i) {
                    const float given = upper ? value[i] : value[i + COUNT / 2];
                    const float kept = upper ? value[i + COUNT / 2] : value[i];
                    value[i] = kept + shuffle_xor(given, OFFSET);
                }
                halve<COUNT / 2, OFFSET / 2>(value, lane);
            } else {
                value[0] += shuffle_xor(value[0], OFFSET);
                halve<1, OFFSET / 2>(value, lane);
            }
        }
    }
};

}  // namespace gemmtune
