// wgmma (sm_90a): D[64, N] += A[64, 16] B[16, N] of 16-bit floats by a warpgroup, four consecutive warps of
// which the first has a multiple of four as its index. B is in shared memory, A there or, "held", in registers
// (a fragment of mma.h, of the warp's sixteen rows); the fp32 accumulators are in registers. Lane (group, member) =
// (lane / 4, lane % 4) of warp w holds
//   d[4 j + 0], d[4 j + 1]: D[16 w + group, 8 j + 2 member and + 1]   d[4 j + 2], d[4 j + 3]: 8 rows further
//                                                                     down
// (PTX ISA, "Asynchronous warpgroup level matrix instructions"). Each N is an instruction of its own that lists
// its registers one by one: hence the macros.
#pragma once

#include "device/types.h"

#if !defined(GEMMTUNE_HOST)
#define GEMMTUNE_D8 "%0,%1,%2,%3"
#define GEMMTUNE_D16 GEMMTUNE_D8 ",%4,%5,%6,%7"
#define GEMMTUNE_D24 GEMMTUNE_D16 ",%8,%9,%10,%11"
#define GEMMTUNE_D32 GEMMTUNE_D24 ",%12,%13,%14,%15"
#define GEMMTUNE_D40 GEMMTUNE_D32 ",%16,%17,%18,%19"
#define GEMMTUNE_D48 GEMMTUNE_D40 ",%20,%21,%22,%23"
#define GEMMTUNE_D56 GEMMTUNE_D48 ",%24,%25,%26,%27"
#define GEMMTUNE_D64 GEMMTUNE_D56 ",%28,%29,%30,%31"
#define GEMMTUNE_D72 GEMMTUNE_D64 ",%32,%33,%34,%35"
#define GEMMTUNE_D80 GEMMTUNE_D72 ",%36,%37,%38,%39"
#define GEMMTUNE_D88 GEMMTUNE_D80 ",%40,%41,%42,%43"
#define GEMMTUNE_D96 GEMMTUNE_D88 ",%44,%45,%46,%47"
#define GEMMTUNE_D104 GEMMTUNE_D96 ",%48,%49,%50,%51"
#define GEMMTUNE_D112 GEMMTUNE_D104 ",%52,%53,%54,%55"
#define GEMMTUNE_D120 GEMMTUNE_D112 ",%56,%57,%58,%59"
#define GEMMTUNE_D128 GEMMTUNE_D120 ",%60,%61,%62,%63"
#define GEMMTUNE_D136 GEMMTUNE_D128 ",%64,%65,%66,%67"
#define GEMMTUNE_D144 GEMMTUNE_D136 ",%68,%69,%70,%71"
#define GEMMTUNE_D152 GEMMTUNE_D144 ",%72,%73,%74,%75"
#define GEMMTUNE_D160 GEMMTUNE_D152 ",%76,%77,%78,%79"
#define GEMMTUNE_D168 GEMMTUNE_D160 ",%80,%81,%82,%83"
#define GEMMTUNE_D176 GEMMTUNE_D168 ",%84,%85,%86,%87"
#define GEMMTUNE_D184 GEMMTUNE_D176 ",%88,%89,%90,%91"
#define GEMMTUNE_D192 GEMMTUNE_D184 ",%92,%93,%94,%95"
#define GEMMTUNE_D200 GEMMTUNE_D192 ",%96,%97,%98,%99"
#define GEMMTUNE_D208 GEMMTUNE_D200 ",%100,%101,%102,%103"
#define GEMMTUNE_D216 GEMMTUNE_D208 ",%104,%105,%106,%107"
#define GEMMTUNE_D224 GEMMTUNE_D216 ",%108,%109,%110,%111"
#define GEMMTUNE_D232 GEMMTUNE_D224 ",%112,%113,%114,%115"
#define GEMMTUNE_D240 GEMMTUNE_D232 ",%116,%117,%118,%119"
#define GEMMTUNE_D248 GEMMTUNE_D240 ",%120,%121,%122,%123"
#define GEMMTUNE_D256 GEMMTUNE_D248 ",%124,%125,%126,%127"
#define GEMMTUNE_S8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define GEMMTUNE_S16 GEMMTUNE_S8, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define GEMMTUNE_S24 GEMMTUNE_S16, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define GEMMTUNE_S32 GEMMTUNE_S24, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define GEMMTUNE_S40 GEMMTUNE_S32, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define GEMMTUNE_S48 GEMMTUNE_S40, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define GEMMTUNE_S56 GEMMTUNE_S48, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define GEMMTUNE_S64 GEMMTUNE_S56, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define GEMMTUNE_S72 GEMMTUNE_S64, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define GEMMTUNE_S80 GEMMTUNE_S72, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define GEMMTUNE_S88 GEMMTUNE_S80, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define GEMMTUNE_S96 GEMMTUNE_S88, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define GEMMTUNE_S104 GEMMTUNE_S96, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define GEMMTUNE_S112 GEMMTUNE_S104, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define GEMMTUNE_S120 GEMMTUNE_S112, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define GEMMTUNE_S128 GEMMTUNE_S120, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define GEMMTUNE_S136 GEMMTUNE_S128, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define GEMMTUNE_S144 GEMMTUNE_S136, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define GEMMTUNE_S152 GEMMTUNE_S144, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define GEMMTUNE_S160 GEMMTUNE_S152, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define GEMMTUNE_S168 GEMMTUNE_S160, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define GEMMTUNE_S176 GEMMTUNE_S168, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define GEMMTUNE_S184 GEMMTUNE_S176, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define GEMMTUNE_S192 GEMMTUNE_S184, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define GEMMTUNE_S200 GEMMTUNE_S192, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define GEMMTUNE_S208 GEMMTUNE_S200, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define GEMMTUNE_S216 GEMMTUNE_S208, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define GEMMTUNE_S224 GEMMTUNE_S216, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define GEMMTUNE_S232 GEMMTUNE_S224, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define GEMMTUNE_S240 GEMMTUNE_S232, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define GEMMTUNE_S248 GEMMTUNE_S240, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define GEMMTUNE_S256 GEMMTUNE_S248, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

namespace gemmtune {

template <typename T, int N>
struct WgmmaInstruction;

#define GEMMTUNE_WGMMA_OF(TYPE, NAME, N, A, B)                                                         \
    template <>                                                                                        \
    struct WgmmaInstruction<TYPE, N> {                                                                 \
        static __device__ __forceinline__ void issue(float (&d)[N / 2], u64 a, u64 b) {                \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME               \
                         " {" GEMMTUNE_D##N "}, " A ", " B ", 1, 1, 1, 0, 0;"                          \
                         : GEMMTUNE_S##N : "l"(a), "l"(b));                                            \
        }                                                                                              \
    };
#define GEMMTUNE_WGMMA(N, A, B) \
    GEMMTUNE_WGMMA_OF(Half, "f16", N, A, B) GEMMTUNE_WGMMA_OF(Bf16, "bf16", N, A, B)
GEMMTUNE_WGMMA(8, "%4", "%5") GEMMTUNE_WGMMA(16, "%8", "%9")
GEMMTUNE_WGMMA(24, "%12", "%13") GEMMTUNE_WGMMA(32, "%16", "%17")
GEMMTUNE_WGMMA(40, "%20", "%21") GEMMTUNE_WGMMA(48, "%24", "%25")
GEMMTUNE_WGMMA(56, "%28", "%29") GEMMTUNE_WGMMA(64, "%32", "%33")
GEMMTUNE_WGMMA(72, "%36", "%37") GEMMTUNE_WGMMA(80, "%40", "%41")
GEMMTUNE_WGMMA(88, "%44", "%45") GEMMTUNE_WGMMA(96, "%48", "%49")
GEMMTUNE_WGMMA(104, "%52", "%53") GEMMTUNE_WGMMA(112, "%56", "%57")
GEMMTUNE_WGMMA(120, "%60", "%61") GEMMTUNE_WGMMA(128, "%64", "%65")
GEMMTUNE_WGMMA(136, "%68", "%69") GEMMTUNE_WGMMA(144, "%72", "%73")
GEMMTUNE_WGMMA(152, "%76", "%77") GEMMTUNE_WGMMA(160, "%80", "%81")
GEMMTUNE_WGMMA(168, "%84", "%85") GEMMTUNE_WGMMA(176, "%88", "%89")
GEMMTUNE_WGMMA(184, "%92", "%93") GEMMTUNE_WGMMA(192, "%96", "%97")
GEMMTUNE_WGMMA(200, "%100", "%101") GEMMTUNE_WGMMA(208, "%104", "%105")
GEMMTUNE_WGMMA(216, "%108", "%109") GEMMTUNE_WGMMA(224, "%112", "%113")
GEMMTUNE_WGMMA(232, "%116", "%117") GEMMTUNE_WGMMA(240, "%120", "%121")
GEMMTUNE_WGMMA(248, "%124", "%125") GEMMTUNE_WGMMA(256, "%128", "%129")

template <typename T, int N>
struct WgmmaHeld;

#define GEMMTUNE_WGMMA_HELD_OF(TYPE, NAME, N, A, B)                                                    \
    template <>                                                                                        \
    struct WgmmaHeld<TYPE, N> {                                                                        \
        static __device__ __forceinline__ void issue(float (&d)[N / 2], const unsigned (&a)[4], u64 b) { \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME               \
                         " {" GEMMTUNE_D##N "}, {" A "}, " B ", 1, 1, 1, 0;"                           \
                         : GEMMTUNE_S##N : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));        \
        }                                                                                              \
    };
#define GEMMTUNE_WGMMA_HELD(N, A, B) \
    GEMMTUNE_WGMMA_HELD_OF(Half, "f16", N, A, B) GEMMTUNE_WGMMA_HELD_OF(Bf16, "bf16", N, A, B)
GEMMTUNE_WGMMA_HELD(8, "%4,%5,%6,%7", "%8")
GEMMTUNE_WGMMA_HELD(16, "%8,%9,%10,%11", "%12")
GEMMTUNE_WGMMA_HELD(24, "%12,%13,%14,%15", "%16")
GEMMTUNE_WGMMA_HELD(32, "%16,%17,%18,%19", "%20")
GEMMTUNE_WGMMA_HELD(40, "%20,%21,%22,%23", "%24")
GEMMTUNE_WGMMA_HELD(48, "%24,%25,%26,%27", "%28")
GEMMTUNE_WGMMA_HELD(56, "%28,%29,%30,%31", "%32")
GEMMTUNE_WGMMA_HELD(64, "%32,%33,%34,%35", "%36")
GEMMTUNE_WGMMA_HELD(72, "%36,%37,%38,%39", "%40")
GEMMTUNE_WGMMA_HELD(80, "%40,%41,%42,%43", "%44")
GEMMTUNE_WGMMA_HELD(88, "%44,%45,%46,%47", "%48")
GEMMTUNE_WGMMA_HELD(96, "%48,%49,%50,%51", "%52")
GEMMTUNE_WGMMA_HELD(104, "%52,%53,%54,%55", "%56")
GEMMTUNE_WGMMA_HELD(112, "%56,%57,%58,%59", "%60")
GEMMTUNE_WGMMA_HELD(120, "%60,%61,%62,%63", "%64")
GEMMTUNE_WGMMA_HELD(128, "%64,%65,%66,%67", "%68")
GEMMTUNE_WGMMA_HELD(136, "%68,%69,%70,%71", "%72")
GEMMTUNE_WGMMA_HELD(144, "%72,%73,%74,%75", "%76")
GEMMTUNE_WGMMA_HELD(152, "%76,%77,%78,%79", "%80")
GEMMTUNE_WGMMA_HELD(160, "%80,%81,%82,%83", "%84")
GEMMTUNE_WGMMA_HELD(168, "%84,%85,%86,%87", "%88")
GEMMTUNE_WGMMA_HELD(176, "%88,%89,%90,%91", "%92")
GEMMTUNE_WGMMA_HELD(184, "%92,%93,%94,%95", "%96")
GEMMTUNE_WGMMA_HELD(192, "%96,%97,%98,%99", "%100")
GEMMTUNE_WGMMA_HELD(200, "%100,%101,%102,%103", "%104")
GEMMTUNE_WGMMA_HELD(208, "%104,%105,%106,%107", "%108")
GEMMTUNE_WGMMA_HELD(216, "%108,%109,%110,%111", "%112")
GEMMTUNE_WGMMA_HELD(224, "%112,%113,%114,%115", "%116")
GEMMTUNE_WGMMA_HELD(232, "%116,%117,%118,%119", "%120")
GEMMTUNE_WGMMA_HELD(240, "%120,%121,%122,%123", "%124")
GEMMTUNE_WGMMA_HELD(248, "%124,%125,%126,%127", "%128")
GEMMTUNE_WGMMA_HELD(256, "%128,%129,%130,%131", "%132")

}  // namespace gemmtune
#endif
