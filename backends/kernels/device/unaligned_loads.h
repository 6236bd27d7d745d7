// Loads and reductions shared by the families for few columns. One operand (A, the weights) is far larger than
// everything else: it is read once, 16 bytes a load, with many loads in flight before the first is used, and
// bypasses L1. B (the activations) is small and read from the caches. Speed is bytes in flight: at 4.6 TB/s and
// about 800 ns of latency, each of a GPU's 132 multiprocessors needs about 28 KB of loads in flight.
#pragma once

#include "device/epilogue.h"

namespace gemmtune {

// The 16 bytes from byte `shift` on (even, below 16) of two consecutive words.
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

// Loads 16 bytes from an address that is only a multiple of an element: by two aligned loads and a funnel
// shift, or element by element where the aligned loads would leave the operand [begin, end).
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

// Loads 16 bytes of the operand that is read once.
template <bool ALIGNED, typename T>
GEMMTUNE_DEVICE Words load_once(const T* source, const char* begin, const char* end) {
    if constexpr (ALIGNED) return stream16(source);
    else return load_any(source, begin, end);
}

// Loads 16 bytes' worth of elements of the small operand along k, `step` elements apart, and widens them.
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

// Reduces each of N values (a power of two) over the lanes of a warp. Every exchange halves the number of
// values that a lane is responsible for, so N values cost about N shuffles instead of N log2(warp). Afterwards
// a lane holds kKept complete sums, from index(lane) on; if there are more lanes than values, groups of kWarp /
// N lanes hold the same one.
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
                    const float given = GEMMTUNE_PICK(upper, value[i], value[i + COUNT / 2]);
                    const float kept = GEMMTUNE_PICK(upper, value[i + COUNT / 2], value[i]);
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
