// Accesses to global memory by epilogues: one element, or WORDS words at a multiple of their size.
#pragma once

#include "device/portable.h"

namespace gemmtune {

#if defined(GEMMTUNE_HOST)
template <typename T>
inline T load_global(const T* p) { return *p; }
template <typename T>
inline void store_global(T* p, T value) { *p = value; }
template <int WORDS>
inline void store_words(void* p, const unsigned (&words)[WORDS]) {
    if (reinterpret_cast<u64>(p) % (4 * WORDS)) host::fail("a wide store to a misaligned address");
    memcpy(p, words, sizeof words);
}
#elif defined(__HIP__) || defined(__HIPCC_RTC__)
// Address space 1 is global memory: pointers in a kernel's argument do not always show that.
#define GEMMTUNE_GLOBAL __attribute__((address_space(1)))

template <int BYTES>
struct BitsOf;
template <>
struct BitsOf<1> {
    typedef unsigned char Type;
};
template <>
struct BitsOf<2> {
    typedef unsigned short Type;
};
template <>
struct BitsOf<4> {
    typedef unsigned Type;
};
template <typename T>
GEMMTUNE_DEVICE T load_global(const T* p) {
    typedef typename BitsOf<sizeof(T)>::Type Bits;
    return __builtin_bit_cast(T, *(const GEMMTUNE_GLOBAL Bits*)p);
}
template <typename T>
GEMMTUNE_DEVICE void store_global(T* p, T value) {
    typedef typename BitsOf<sizeof(T)>::Type Bits;
    *(GEMMTUNE_GLOBAL Bits*)p = __builtin_bit_cast(Bits, value);
}
template <int WORDS>
GEMMTUNE_DEVICE void store_words(void* p, const unsigned (&words)[WORDS]) {
    typedef unsigned Vector __attribute__((ext_vector_type(WORDS)));
    Vector all;
    GEMMTUNE_UNROLL
    for (int i = 0; i < WORDS; ++i) all[i] = words[i];
    *(GEMMTUNE_GLOBAL Vector*)p = all;
}
#else
template <typename T>
GEMMTUNE_DEVICE T load_global(const T* p) { return *p; }
template <typename T>
GEMMTUNE_DEVICE void store_global(T* p, T value) { *p = value; }
template <int WORDS>
GEMMTUNE_DEVICE void store_words(void* p, const unsigned (&words)[WORDS]) {
    static_assert(WORDS == 1 || WORDS == 2 || WORDS == 4, "a store of one instruction");
    if constexpr (WORDS == 4) write16(p, Words{{words[0], words[1], words[2], words[3]}});
    else if constexpr (WORDS == 2) write8(p, words);
    else *static_cast<unsigned*>(p) = words[0];
}
#endif

}  // namespace gemmtune
