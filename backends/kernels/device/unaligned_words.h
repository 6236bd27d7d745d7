// Words of 16 bytes that lines which start anywhere lie in (skinny_shifted.h): which of a word's elements are a
// line's, and whether it lies in the operand.
#pragma once

#include "device/types.h"

namespace gemmtune {

// Which of eight neighbouring elements are a line's: those from `from` on, before `to`.
struct Within {
    int from, to;

    // Of the elements from e on, of a line of k.
    GEMMTUNE_DEVICE Within(i64 e, i64 k)
        : from(e < 0 ? static_cast<int>(-e) : 0), to(k <= e ? 0 : k - e < 8 ? static_cast<int>(k - e) : 8) {}

    GEMMTUNE_DEVICE bool any() const { return from < to; }
    GEMMTUNE_DEVICE bool has(int i) const { return (i >= from) & (i < to); }  // & is no branch
    // Of a word of two.
    GEMMTUNE_DEVICE unsigned mask(int word) const {
        return (has(2 * word) ? 0xffffu : 0u) | (has(2 * word + 1) ? 0xffff0000u : 0u);
    }
    // Them alone of the eight at p, and zeros.
    template <typename T>
    GEMMTUNE_DEVICE Words read(const char* p) const {
        T element[8];
        GEMMTUNE_UNROLL
        for (int i = 0; i < 8; ++i) element[i] = has(i) ? reinterpret_cast<const T*>(p)[i] : T{};
        Words out;
        GEMMTUNE_UNROLL
        for (int i = 0; i < 4; ++i) out.at[i] = Word<T>::pack(element + 2 * i);
        return out;
    }
};

// Where an operand lies.
struct Extent {
    const char *begin, *end;

    GEMMTUNE_DEVICE Extent(const void* operand, i64 bytes)
        : begin(static_cast<const char*>(operand)), end(begin + bytes) {}
    GEMMTUNE_DEVICE bool holds(const char* word) const { return (word >= begin) & (word + 16 <= end); }
};

}  // namespace gemmtune
