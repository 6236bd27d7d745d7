// What mfma.h and wmma.h share: the operands of AMD's matrix instructions, how the host emulates one, and the
// loads and byte permutations of the tiles that feed them.
//
// An instruction is a struct (mfma.h: Mfma, wmma.h: Wmma) that multiplies kLines rows of A by kLines columns
// of B over kDepth elements of k and adds to D. A *line* is a row of A or a column of B; both operands have
// the same layout.
//
//   A, B, Sum              element types of the operands, and of D (float or int)
//   kWave                  lanes of the wavefront that executes it
//   kGroups                groups of kLines lanes that hold different elements of k of the same lines
//   kCopies                groups that hold the same elements
//   kWords, kSums          32-bit registers of a lane for an operand, and for D
//   lane(line, k)          the lane that holds element k of a line (of several copies, the first)
//   element(k)             its place among the lane's elements, the lowest bits first
//   row(lane, i)           the row of D that sum i of a lane belongs to
//   column(lane)           and the column
//   multiply(d, a, b)      the instruction
#pragma once

#include "device/global_memory.h"
#include "device/small_types.h"

namespace gemmtune {

// A lane's part of an operand.
template <int WORDS>
struct Packed {
    unsigned at[WORDS];
};

GEMMTUNE_DEVICE constexpr bool is_power_of_two(int x) { return x > 0 && (x & (x - 1)) == 0; }

#if defined(GEMMTUNE_HOST)
template <typename T, int N>
struct VectorOf {
    struct Type {
        T at[N];
        T& operator[](int i) { return at[i]; }
        const T& operator[](int i) const { return at[i]; }
    };
};

// Bytes of `low` (selectors 0 to 3) and `high` (4 to 7), one for each byte of the selector.
inline unsigned permute_bytes(unsigned high, unsigned low, unsigned selector) {
    const u64 both = static_cast<u64>(high) << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) out |= (both >> (selector >> 8 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}

// load_words() and load_element() read A or B: WORDS words at a multiple of their size or (ALIGNED false) at any
// address, or one element.
template <bool ALIGNED, int WORDS>
inline void load_words(const void* p, unsigned (&out)[WORDS]) {
    within_operand(p, 4 * WORDS);
    if (ALIGNED && reinterpret_cast<u64>(p) % (4 * WORDS))
        host::fail("a wide load from a misaligned address");
    memcpy(out, p, sizeof out);
}
template <typename T>
inline T load_element(const T* p) {
    within_operand(p, sizeof(T));
    return *p;
}
// block_barrier() that orders accesses to shared memory alone: loads from global memory stay in flight.
inline void shared_barrier() { block_barrier(); }
// Keeps the compiler from moving instructions across.
inline void schedule_barrier() {}
// Values are computed before this point. Compilers would put off what nothing near needs, and keep its operands.
template <typename VALUES>
inline void computed_here(VALUES&) {}
// An offset of whose bits the compiler knows nothing. Where it knows that the bits of an added constant are free, it
// makes one XOR of two constants, and a register of every such sum; else the constant stays that of a load.
inline int any_offset(int offset) { return offset; }
// A value that is the same for all lanes, in scalar registers. Of an address: what is added to it afterwards
// stays an offset; compilers would otherwise advance the sum in every lane.
inline int uniform(int value) { return value; }
inline const char* uniform(const char* p) { return p; }

template <typename T>
inline float multiplicand(T value) { return widen(value); }
inline int multiplicand(Int8 value) { return value.value; }
template <typename T, int WORDS>
inline auto element_of(const Packed<WORDS>& packed, int e) {
    T out;
    memcpy(static_cast<void*>(&out), reinterpret_cast<const char*>(packed.at) + e * sizeof(T), sizeof(T));
    return multiplicand(out);
}

// The instruction, by exchange of the lanes' operands, as the layout functions of INSTRUCTION say.
template <typename INSTRUCTION>
inline void emulate(typename INSTRUCTION::Sums& d, const Packed<INSTRUCTION::kWords>& a,
                    const Packed<INSTRUCTION::kWords>& b) {
    using I = INSTRUCTION;
    static_assert(kWarp == I::kWave, "wavefronts as the instruction has them");
    // A lane widens its own elements, which many others multiply.
    struct Operands {
        typename I::Sum a[I::kElements], b[I::kElements];
    };
    Operands mine;
    for (int e = 0; e < I::kElements; ++e)
        mine.a[e] = element_of<typename I::A>(a, e), mine.b[e] = element_of<typename I::B>(b, e);
    const auto lanes = host::exchange(mine);
    const int lane = lane_index(), column = I::column(lane);
    if (I::kCopies == 2 && memcmp(&lanes.of(lane), &lanes.of(lane ^ I::kLines), sizeof(Operands)) != 0)
        host::fail("half-waves give a matrix instruction different operands");
    typename I::Sum of_b[I::kDepth];
    int element[I::kDepth];
    for (int k = 0; k < I::kDepth; ++k) {
        element[k] = I::element(k);
        of_b[k] = lanes.of(I::lane(column, k)).b[element[k]];
    }
    for (int i = 0; i < I::kSums; ++i) {
        const int row = I::row(lane, i);
        typename I::Sum sum = d[i];
        for (int k = 0; k < I::kDepth; ++k) sum += lanes.of(I::lane(row, k)).a[element[k]] * of_b[k];
        d[i] = sum;
    }
}
#elif defined(__HIP__) || defined(__HIPCC_RTC__)
template <typename T, int N>
struct VectorOf {
    typedef T Type __attribute__((ext_vector_type(N)));
};

GEMMTUNE_DEVICE unsigned permute_bytes(unsigned high, unsigned low, unsigned selector) {
    return __builtin_amdgcn_perm(high, low, selector);
}

template <typename T>
GEMMTUNE_DEVICE T load_element(const T* p) { return load_global(p); }

// A load at any address is one instruction, too: the HSA ABI enables unaligned accesses (LLVM, "User Guide
// for AMDGPU Backend": unaligned-access-mode).
template <bool ALIGNED, int WORDS>
GEMMTUNE_DEVICE void load_words(const void* p, unsigned (&out)[WORDS]) {
    typedef unsigned Aligned __attribute__((ext_vector_type(WORDS)));
    typedef Aligned Unaligned __attribute__((aligned(1)));
    Aligned found;
    if constexpr (ALIGNED) found = *(const GEMMTUNE_GLOBAL Aligned*)p;
    else found = *(const GEMMTUNE_GLOBAL Unaligned*)p;
    GEMMTUNE_UNROLL
    for (int i = 0; i < WORDS; ++i) out[i] = found[i];
}

GEMMTUNE_DEVICE void shared_barrier() {
#if __clang_major__ >= 19  // the first whose fences take an address space
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
#else
    block_barrier();
#endif
}
GEMMTUNE_DEVICE void schedule_barrier() { __builtin_amdgcn_sched_barrier(0); }
template <typename VALUES>
GEMMTUNE_DEVICE void computed_here(VALUES& values) {
    asm volatile("" : "+v"(values));
}
GEMMTUNE_DEVICE int any_offset(int offset) {
    asm("" : "+v"(offset));
    return offset;
}
GEMMTUNE_DEVICE int uniform(int value) { return __builtin_amdgcn_readfirstlane(value); }
GEMMTUNE_DEVICE const char* uniform(const char* p) {
    const u64 bits = reinterpret_cast<u64>(p);
    unsigned low = static_cast<unsigned>(uniform(static_cast<int>(bits)));
    const unsigned high = static_cast<unsigned>(uniform(static_cast<int>(bits >> 32)));
    asm volatile("" : "+s"(low));
    return reinterpret_cast<const char*>(static_cast<u64>(high) << 32 | low);
}
#else
#error "matrix_core.h is for AMD's matrix instructions; NVIDIA's are in mma.h and wgmma.h"
#endif

// Shifts an array of words right by whole bytes; zeros come in at its end.
template <int WORDS>
GEMMTUNE_DEVICE void shift_right(unsigned (&words)[WORDS], unsigned bytes) {
    GEMMTUNE_UNROLL
    for (int by = WORDS / 2; by > 0; by /= 2) {
        const bool far = bytes & (4 * by);
        GEMMTUNE_UNROLL
        for (int i = 0; i < WORDS; ++i) {
            const unsigned other = i + by < WORDS ? words[i + by < WORDS ? i + by : i] : 0u;
            words[i] = far ? other : words[i];
        }
    }
    const unsigned bits = (bytes & 3) * 8;
    GEMMTUNE_UNROLL
    for (int i = 0; i < WORDS; ++i) {
        const unsigned next = i + 1 < WORDS ? words[i + 1 < WORDS ? i + 1 : i] : 0u;
        const u64 both = static_cast<u64>(next) << 32 | words[i];
        words[i] = bytes >= 4 * WORDS ? 0u : static_cast<unsigned>(both >> bits);
    }
}

}  // namespace gemmtune
