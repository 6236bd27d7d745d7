// Helpers for unaligned rows that are read as the aligned 16-byte words that contain them (skinny_shifted.h):
// which elements of a word belong to the row, and whether the word lies in the operand.
#pragma once

#include "device/types.h"

namespace gemmtune {

// The elements [from, to) of an 8-element word that belong to a line.
struct Within {
    int from, to;

    // For the word that starts at element e of a line of k elements.
    GEMMTUNE_DEVICE Within(i64 e, i64 k)
        : from(e < 0 ? static_cast<int>(-e) : 0), to(k <= e ? 0 : k - e < 8 ? static_cast<int>(k - e) : 8) {}

    GEMMTUNE_DEVICE bool any() const { return from < to; }
    GEMMTUNE_DEVICE bool has(int i) const { return (i >= from) & (i < to); }  // & avoids a branch
    // The mask of the 32-bit word `word`, of two elements.
    GEMMTUNE_DEVICE unsigned mask(int word) const {
        return (has(2 * word) ? 0xffffu : 0u) | (has(2 * word + 1) ? 0xffff0000u : 0u);
    }
    // Loads only the line's own elements of the eight at p; the others are zero.
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

// The address range of an operand.
struct Extent {
    const char *begin, *end;

    GEMMTUNE_DEVICE Extent(const void* operand, i64 bytes)
        : begin(static_cast<const char*>(operand)), end(begin + bytes) {}
    GEMMTUNE_DEVICE bool holds(const char* word) const { return (word >= begin) & (word + 16 <= end); }
};

}  // namespace gemmtune
