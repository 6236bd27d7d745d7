// wgmma (sm_90a) on 8-bit elements: D[64, N] += A[64, 32] B[32, N], operands and sums as in wgmma.h. Sums of int8 are
// int32. Sums of 8-bit floats are fp32 in registers, but an instruction keeps about 14 bits of what it adds to them
// (DeepSeek-V3, arXiv:2412.19437, 3.3.2), so a kernel adds the sums of a few instructions in fp32. `add`: whether D is
// added to, or is overwritten.
#pragma once

#include "device/hopper.h"
#include "device/small_types.h"

namespace gemmtune {

// Whether there is an instruction of N columns.
template <typename T>
GEMMTUNE_DEVICE constexpr bool has_columns(int n) { return !kInteger<T> || n % 16 == 0 || n == 8 || n == 24; }

#if defined(GEMMTUNE_HOST)
template <typename A, typename B, int N, typename SUM>
inline void multiply_bytes(SUM (&d)[N / 2], u64 a, u64 b, bool add) {
    static_assert(has_columns<A>(N), "columns of an instruction");
    host::issue<N>(add ? host::add_products<A, B, N, SUM, true> : host::add_products<A, B, N, SUM, false>, d, a, b);
}
template <int N, typename SUM>
inline void settle(SUM (&)[N]) {}
#else
// Keeps uses of sums behind the wait for the instructions that make them.
template <int N>
GEMMTUNE_DEVICE void settle(float (&d)[N]) {
    GEMMTUNE_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define GEMMTUNE_R8 "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
#define GEMMTUNE_R16 GEMMTUNE_R8, "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
#define GEMMTUNE_R24 GEMMTUNE_R16, "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11])
#define GEMMTUNE_R32 GEMMTUNE_R24, "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
#define GEMMTUNE_R48 GEMMTUNE_R32, \
    "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), \
    "+r"(d[23])
#define GEMMTUNE_R64 GEMMTUNE_R48, \
    "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), \
    "+r"(d[31])
#define GEMMTUNE_R80 GEMMTUNE_R64, \
    "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), \
    "+r"(d[39])
#define GEMMTUNE_R96 GEMMTUNE_R80, \
    "+r"(d[40]), "+r"(d[41]), "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), \
    "+r"(d[47])
#define GEMMTUNE_R112 GEMMTUNE_R96, \
    "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), \
    "+r"(d[55])
#define GEMMTUNE_R128 GEMMTUNE_R112, \
    "+r"(d[56]), "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]), \
    "+r"(d[63])
#define GEMMTUNE_R144 GEMMTUNE_R128, \
    "+r"(d[64]), "+r"(d[65]), "+r"(d[66]), "+r"(d[67]), "+r"(d[68]), "+r"(d[69]), "+r"(d[70]), \
    "+r"(d[71])
#define GEMMTUNE_R160 GEMMTUNE_R144, \
    "+r"(d[72]), "+r"(d[73]), "+r"(d[74]), "+r"(d[75]), "+r"(d[76]), "+r"(d[77]), "+r"(d[78]), \
    "+r"(d[79])
#define GEMMTUNE_R176 GEMMTUNE_R160, \
    "+r"(d[80]), "+r"(d[81]), "+r"(d[82]), "+r"(d[83]), "+r"(d[84]), "+r"(d[85]), "+r"(d[86]), \
    "+r"(d[87])
#define GEMMTUNE_R192 GEMMTUNE_R176, \
    "+r"(d[88]), "+r"(d[89]), "+r"(d[90]), "+r"(d[91]), "+r"(d[92]), "+r"(d[93]), "+r"(d[94]), \
    "+r"(d[95])
#define GEMMTUNE_R208 GEMMTUNE_R192, \
    "+r"(d[96]), "+r"(d[97]), "+r"(d[98]), "+r"(d[99]), "+r"(d[100]), "+r"(d[101]), "+r"(d[102]), \
    "+r"(d[103])
#define GEMMTUNE_R224 GEMMTUNE_R208, \
    "+r"(d[104]), "+r"(d[105]), "+r"(d[106]), "+r"(d[107]), "+r"(d[108]), "+r"(d[109]), "+r"(d[110]), \
    "+r"(d[111])
#define GEMMTUNE_R240 GEMMTUNE_R224, \
    "+r"(d[112]), "+r"(d[113]), "+r"(d[114]), "+r"(d[115]), "+r"(d[116]), "+r"(d[117]), "+r"(d[118]), \
    "+r"(d[119])
#define GEMMTUNE_R256 GEMMTUNE_R240, \
    "+r"(d[120]), "+r"(d[121]), "+r"(d[122]), "+r"(d[123]), "+r"(d[124]), "+r"(d[125]), "+r"(d[126]), \
    "+r"(d[127])

template <typename A, typename B, int N>
struct WgmmaBytes;

#define GEMMTUNE_WGMMA_INT(N, A_AT, B_AT, ADD)                                                         \
    template <>                                                                                        \
    struct WgmmaBytes<Int8, Int8, N> {                                                                 \
        static __device__ __forceinline__ void issue(int (&d)[N / 2], u64 a, u64 b, int add) {         \
            asm volatile("{ .reg .pred add; setp.ne.s32 add, " ADD ", 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8"                        \
                         " {" GEMMTUNE_D##N "}, " A_AT ", " B_AT ", add; }"                            \
                         : GEMMTUNE_R##N : "l"(a), "l"(b), "r"(add));                                  \
        }                                                                                              \
    };
#define GEMMTUNE_WGMMA_FP8(A, A_NAME, B, B_NAME, N, A_AT, B_AT, ADD)                                   \
    template <>                                                                                        \
    struct WgmmaBytes<A, B, N> {                                                                       \
        static __device__ __forceinline__ void issue(float (&d)[N / 2], u64 a, u64 b, int add) {       \
            asm volatile("{ .reg .pred add; setp.ne.s32 add, " ADD ", 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." A_NAME "." B_NAME           \
                         " {" GEMMTUNE_D##N "}, " A_AT ", " B_AT ", add, 1, 1; }"                      \
                         : GEMMTUNE_S##N : "l"(a), "l"(b), "r"(add));                                  \
        }                                                                                              \
    };
#define GEMMTUNE_WGMMA_FLOATS(N, A, B, ADD)                                                            \
    GEMMTUNE_WGMMA_FP8(E4m3, "e4m3", E4m3, "e4m3", N, A, B, ADD)                                       \
    GEMMTUNE_WGMMA_FP8(E4m3, "e4m3", E5m2, "e5m2", N, A, B, ADD)                                       \
    GEMMTUNE_WGMMA_FP8(E5m2, "e5m2", E4m3, "e4m3", N, A, B, ADD)                                       \
    GEMMTUNE_WGMMA_FP8(E5m2, "e5m2", E5m2, "e5m2", N, A, B, ADD)
GEMMTUNE_WGMMA_FLOATS(8, "%4", "%5", "%6")
GEMMTUNE_WGMMA_FLOATS(16, "%8", "%9", "%10")
GEMMTUNE_WGMMA_FLOATS(24, "%12", "%13", "%14")
GEMMTUNE_WGMMA_FLOATS(32, "%16", "%17", "%18")
GEMMTUNE_WGMMA_FLOATS(40, "%20", "%21", "%22")
GEMMTUNE_WGMMA_FLOATS(48, "%24", "%25", "%26")
GEMMTUNE_WGMMA_FLOATS(56, "%28", "%29", "%30")
GEMMTUNE_WGMMA_FLOATS(64, "%32", "%33", "%34")
GEMMTUNE_WGMMA_FLOATS(72, "%36", "%37", "%38")
GEMMTUNE_WGMMA_FLOATS(80, "%40", "%41", "%42")
GEMMTUNE_WGMMA_FLOATS(88, "%44", "%45", "%46")
GEMMTUNE_WGMMA_FLOATS(96, "%48", "%49", "%50")
GEMMTUNE_WGMMA_FLOATS(104, "%52", "%53", "%54")
GEMMTUNE_WGMMA_FLOATS(112, "%56", "%57", "%58")
GEMMTUNE_WGMMA_FLOATS(120, "%60", "%61", "%62")
GEMMTUNE_WGMMA_FLOATS(128, "%64", "%65", "%66")
GEMMTUNE_WGMMA_FLOATS(136, "%68", "%69", "%70")
GEMMTUNE_WGMMA_FLOATS(144, "%72", "%73", "%74")
GEMMTUNE_WGMMA_FLOATS(152, "%76", "%77", "%78")
GEMMTUNE_WGMMA_FLOATS(160, "%80", "%81", "%82")
GEMMTUNE_WGMMA_FLOATS(168, "%84", "%85", "%86")
GEMMTUNE_WGMMA_FLOATS(176, "%88", "%89", "%90")
GEMMTUNE_WGMMA_FLOATS(184, "%92", "%93", "%94")
GEMMTUNE_WGMMA_FLOATS(192, "%96", "%97", "%98")
GEMMTUNE_WGMMA_FLOATS(200, "%100", "%101", "%102")
GEMMTUNE_WGMMA_FLOATS(208, "%104", "%105", "%106")
GEMMTUNE_WGMMA_FLOATS(216, "%108", "%109", "%110")
GEMMTUNE_WGMMA_FLOATS(224, "%112", "%113", "%114")
GEMMTUNE_WGMMA_FLOATS(232, "%116", "%117", "%118")
GEMMTUNE_WGMMA_FLOATS(240, "%120", "%121", "%122")
GEMMTUNE_WGMMA_FLOATS(248, "%124", "%125", "%126")
GEMMTUNE_WGMMA_FLOATS(256, "%128", "%129", "%130")
GEMMTUNE_WGMMA_INT(8, "%4", "%5", "%6")
GEMMTUNE_WGMMA_INT(16, "%8", "%9", "%10")
GEMMTUNE_WGMMA_INT(24, "%12", "%13", "%14")
GEMMTUNE_WGMMA_INT(32, "%16", "%17", "%18")
GEMMTUNE_WGMMA_INT(48, "%24", "%25", "%26")
GEMMTUNE_WGMMA_INT(64, "%32", "%33", "%34")
GEMMTUNE_WGMMA_INT(80, "%40", "%41", "%42")
GEMMTUNE_WGMMA_INT(96, "%48", "%49", "%50")
GEMMTUNE_WGMMA_INT(112, "%56", "%57", "%58")
GEMMTUNE_WGMMA_INT(128, "%64", "%65", "%66")
GEMMTUNE_WGMMA_INT(144, "%72", "%73", "%74")
GEMMTUNE_WGMMA_INT(160, "%80", "%81", "%82")
GEMMTUNE_WGMMA_INT(176, "%88", "%89", "%90")
GEMMTUNE_WGMMA_INT(192, "%96", "%97", "%98")
GEMMTUNE_WGMMA_INT(208, "%104", "%105", "%106")
GEMMTUNE_WGMMA_INT(224, "%112", "%113", "%114")
GEMMTUNE_WGMMA_INT(240, "%120", "%121", "%122")
GEMMTUNE_WGMMA_INT(256, "%128", "%129", "%130")

template <typename A, typename B, int N, typename SUM>
GEMMTUNE_DEVICE void multiply_bytes(SUM (&d)[N / 2], u64 a, u64 b, bool add) {
    WgmmaBytes<A, B, N>::issue(d, a, b, add);
}
#endif

}  // namespace gemmtune
