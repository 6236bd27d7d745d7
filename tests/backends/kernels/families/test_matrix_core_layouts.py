"""Register layouts of AMD's matrix instructions against an independent statement, and 8-bit number formats.

The formulas below are those that AMD's matrix instruction calculator prints as "Register to matrix element
mapping" (github.com/ROCm/amd_matrix_instruction_calculator; CDNA2, CDNA3, and RDNA3 and RDNA4 in wave32).
CDNA4's instructions continue CDNA3's pattern (CDNA4 ISA guide). A lane holds element `e` of an operand's
line, and sum `i` of D.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from backends.archs import GPU_ARCHS
from backends.dtypes import DTYPES, to_host
from backends.kernels.matrix_core_tile import kind_of
from backends.kernels.matrix_epilogue import MATRIX_TYPES
from tests.backends.kernels.emulator.host import compiled
from tests.backends.kernels.matrix_cores import TYPES, copied, counted

Place = Callable[[int, int], tuple[int, int]]


def mfma_operand(m: int, elements: int) -> Place:
    """(line, k) of a lane's element."""
    return lambda lane, e: (lane % m, elements * (lane // m) + e)


def mfma_sum(m: int) -> Place:
    """(row, column) of a lane's sum."""
    if m == 16:
        return lambda lane, i: (4 * (lane // 16) + i % 4, lane % 16)
    return lambda lane, i: (8 * (i // 4) % 32 + 4 * (lane // 32) + i % 4, lane % 32)


def wmma_operand(generation: int, bits: int) -> Place:
    if generation == 11:
        return lambda lane, e: (lane % 16, e)
    if bits == 16:  # of registers with two elements
        return lambda lane, e: (lane % 16, 8 * (e // 2 // 2) + 4 * (lane // 16) + 2 * (e // 2 % 2) + e % 2)
    return lambda lane, e: (lane % 16, 8 * (lane // 16) + 4 * (e // 4) + e % 4)


def wmma_sum(generation: int) -> Place:
    if generation == 11:
        return lambda lane, i: (2 * i + lane // 16, lane % 16)
    return lambda lane, i: (8 * (lane // 16) + i, lane % 16)


@dataclass(frozen=True)
class Instruction:
    """A struct of mfma.h or wmma.h, and where its elements lie."""

    struct: str
    wave: int
    kinds: tuple[str, str]
    lines: int
    depth: int
    elements: int
    sums: int
    operand: Place
    sum: Place

    @property
    def words(self) -> int:
        return self.elements * DTYPES[self.kinds[0]].bytes // 4


def instructions() -> list[Instruction]:
    """Every instruction of every architecture's row, and mixed 8-bit floats."""
    found = {}
    for arch, kinds in TYPES.items():
        row = GPU_ARCHS[arch]
        assert row.matrix_cores is not None
        pairs = [(kind, kind) for kind in kinds]
        pairs += [(a, b) for a in kinds for b in kinds if a != b and {kind_of(a), kind_of(b)} == {"fp8"}]
        for pair in pairs:
            types = ", ".join(MATRIX_TYPES[kind] for kind in pair)
            for m, _, k in row.matrix_cores.shapes[kind_of(pair[0])]:
                if row.warp == 64:
                    elements, text = m * k // 64, f"Mfma<{types}, {m}, {k}>"
                    place, sums = mfma_operand(m, elements), mfma_sum(m)
                else:
                    generation = int(row.matrix_cores.instruction.removeprefix("wmma_gfx"))
                    elements, text = 16 if generation == 11 else 8, f"Wmma<{types}, {generation}>"
                    place, sums = wmma_operand(generation, DTYPES[pair[0]].bits), wmma_sum(generation)
                found[text] = Instruction(
                    text, row.warp, pair, m, k, elements, m * m // row.warp, place, sums
                )
    return list(found.values())


ALL = instructions()
#: What the layout functions say, and one instruction with registers and sums in memory.
PROBE = """
template <typename I>
void tables(int* out) {
    for (int n : {I::kWave, I::kLines, I::kDepth, I::kWords, I::kSums}) *out++ = n;
    for (int line = 0; line < I::kLines; ++line)
        for (int k = 0; k < I::kDepth; ++k) *out++ = I::lane(line, k), *out++ = I::element(k);
    for (int lane = 0; lane < I::kWave; ++lane)
        for (int i = 0; i < I::kSums; ++i) *out++ = I::row(lane, i), *out++ = I::column(lane);
}
template <typename I>
struct Probe {
    struct Args {
        const unsigned *a, *b;
        typename I::Sum* d;
    };
    static void run(const Args& args, char*) {
        Packed<I::kWords> a, b;
        typename I::Sums d = {};
        const int lane = lane_index();
        memcpy(a.at, args.a + lane * I::kWords, sizeof a.at);
        memcpy(b.at, args.b + lane * I::kWords, sizeof b.at);
        I::multiply(d, a, b);
        for (int i = 0; i < I::kSums; ++i) args.d[lane * I::kSums + i] = d[i];
    }
};
"""


def library_of(
    wave: int, path: Path, structs: Sequence[int], planted: Sequence[tuple[str, str]] = ()
) -> ctypes.CDLL:
    """Instructions (by their places in ALL) of wavefronts of 32 or 64: from the headers as they are, or once
    for each mistake (text, what stands there instead)."""
    lines = []
    for number, (text, wrong) in enumerate(planted or [("struct Packed {", "struct Packed {")]):
        lines.append(copied(text, wrong, f"planted{number}"))
        lines += [f"namespace gemmtune {{\nnamespace planted{number} {{", PROBE, "}\n}"]
        for index in structs:
            name, space = f"{number}_{index}", f"gemmtune::planted{number}"
            lines += [
                f"using I{name} = {space}::{ALL[index].struct};",
                f"using P{name} = {space}::Probe<I{name}>;",
                f"GEMMTUNE_KERNEL(probe_{name}, P{name})",
                f'extern "C" void tables_{name}(int* out) {{ {space}::tables<I{name}>(out); }}',
            ]
    return compiled("\n".join(lines), path, wave)


def packed(one: Instruction, matrix: npt.NDArray[np.float64], kind: str) -> npt.NDArray[np.uint8]:
    """A [lines, depth] operand as the lanes' registers hold it."""
    lanes = np.array(
        [[matrix[one.operand(lane, e)] for e in range(one.elements)] for lane in range(one.wave)]
    )
    return to_host(lanes, DTYPES[kind]).reshape(-1).view(np.uint8).copy()


def wrong_tables(library: ctypes.CDLL, index: int, planted: int = 0) -> str:
    """The first entry of an instruction's tables that the formulas contradict, or ""."""
    one = ALL[index]
    operands, sums = one.lines * one.depth * 2, one.wave * one.sums * 2
    found = counted(library, f"tables_{planted}_{index}", 5 + operands + sums)
    if found[:5] != [one.wave, one.lines, one.depth, one.words, one.sums]:
        return f"numbers {found[:5]}"
    for line in range(one.lines):
        for k in range(one.depth):
            lane, element = found[5 + 2 * (line * one.depth + k) :][:2]
            if one.operand(lane, element) != (line, k):
                return f"element {k} of line {line} in lane {lane} at {element}"
    for lane in range(one.wave):
        for i in range(one.sums):
            place = tuple(found[5 + operands + 2 * (lane * one.sums + i) :][:2])
            if one.sum(lane, i) != place:
                return f"sum {i} of lane {lane} at {place}"
    return ""


def launched(
    library: ctypes.CDLL, index: int, planted: int, args: ctypes.Array[ctypes.c_void_p]
) -> bytes | None:
    """Runs one wavefront; what the launch says."""
    run = getattr(library, f"launch_probe_{planted}_{index}")
    run.restype = ctypes.c_char_p
    fault: bytes | None = run(args, (ctypes.c_uint * 3)(1, 1, 1), ALL[index].wave, ctypes.c_ulonglong(0), 0)
    return fault


def wrong_product(library: ctypes.CDLL, index: int, planted: int = 0) -> str:
    """What is wrong with the product of small whole numbers, or ""."""
    one, rng = ALL[index], np.random.default_rng(index)
    a, b = (rng.integers(-4, 5, (one.lines, one.depth)).astype(np.float64) for _ in range(2))
    registers = [packed(one, matrix, kind) for matrix, kind in zip((a, b), one.kinds, strict=True)]
    d = np.zeros(one.wave * one.sums, np.int32 if one.kinds[0] == "int8" else np.float32)
    args = (ctypes.c_void_p * 3)(registers[0].ctypes.data, registers[1].ctypes.data, d.ctypes.data)
    fault = launched(library, index, planted, args)
    if fault:
        return str(fault.decode())
    product = a @ b.T
    for lane in range(one.wave):
        for i in range(one.sums):
            if d[lane * one.sums + i] != product[one.sum(lane, i)]:
                return f"sum {i} of lane {lane} is {d[lane * one.sums + i]}"
    return ""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[int, ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("layouts")
    mine = {wave: [at for at, one in enumerate(ALL) if one.wave == wave] for wave in (32, 64)}
    return {wave: library_of(wave, folder / f"{wave}.so", places) for wave, places in mine.items()}


def test_layouts_are_the_vendors(libraries: dict[int, ctypes.CDLL]) -> None:
    assert len(ALL) > 30
    found = {one.struct: wrong_tables(libraries[one.wave], at) for at, one in enumerate(ALL)}
    assert found == dict.fromkeys(found, "")


def test_an_instruction_multiplies_what_lies_there(libraries: dict[int, ctypes.CDLL]) -> None:
    found = {one.struct: wrong_product(libraries[one.wave], at) for at, one in enumerate(ALL)}
    assert found == dict.fromkeys(found, "")


#: Lanes swapped, k in another order, a lane's number cut to five bits, rows of D in another order.
MISTAKES = (
    (64, "k / kElements * M + line", "k / kElements * M + (line ^ 1)"),
    (64, "k / kElements * M + line", "k / kElements * M % 32 + line"),
    (64, "k / kElements * M + line", "k % kGroups * M + line"),
    (64, "return k % kElements;", "return k % kElements ^ 1;"),
    (64, "return k % kElements;", "return k / kGroups;"),
    (64, "lane / M * 4 + i % 4", "lane / M + i % 4 * kGroups"),
    (64, "lane / M * 4 + i % 4", "lane % 32 / M * 4 + i % 4"),
    (64, "i / 4 * (4 * kGroups)", "i / 4 * 4"),
    (64, "return lane % M; }", "return lane / (64 / M); }"),
    (32, "k / 4 % 2) * 16 + line", "k / 8) * 16 + line"),
    (32, "k / 4 % 2) * 16 + line", "k / 4 % 2) * 16 + (line ^ 1)"),
    (32, "kByte ? k / 8 :", "kByte ? k / 4 % 2 :"),
    (32, "k / 8 * 4 + k % 4;", "k / 8 * 4 + (k % 4 ^ 1);"),
    (32, "2 * i + lane / 16", "8 * (lane / 16) + i"),
    (32, "lane / 16 * 8 + i;", "2 * i + lane / 16;"),
    (32, "return lane % 16; }", "return lane / 2; }"),
)


@pytest.mark.parametrize("wave", [32, 64])
def test_mistakes_in_a_layout_show(wave: int, tmp_path: Path) -> None:
    """Against the formulas; and those in D's layout by a product, too (what both operands do alike changes no
    product)."""
    half, byte = "gemmtune::Half, gemmtune::Half", "gemmtune::Int8, gemmtune::Int8"
    names = [f"Mfma<{half}, 16, 16>", f"Mfma<{half}, 32, 8>", f"Mfma<{byte}, 16, 32>"]
    if wave == 32:
        names = [f"Wmma<{half}, 11>", f"Wmma<{half}, 12>", f"Wmma<{byte}, 12>"]
    chosen = [at for at, one in enumerate(ALL) if one.struct in names]
    mistakes = [(text, wrong) for of, text, wrong in MISTAKES if of == wave]
    library = library_of(wave, tmp_path / "planted.so", chosen, mistakes)
    for number, (text, wrong) in enumerate(mistakes):
        assert any(wrong_tables(library, at, number) for at in chosen), (text, wrong)
        if "lane" in text:
            assert any(wrong_product(library, at, number) for at in chosen), (text, wrong)


def test_half_waves_of_gfx11_must_hold_the_same(libraries: dict[int, ctypes.CDLL]) -> None:
    (index,) = (at for at, one in enumerate(ALL) if one.struct == "Wmma<gemmtune::Half, gemmtune::Half, 11>")
    one = ALL[index]
    words = np.zeros(one.wave * one.words, np.uint32)
    other = words.copy()
    other[20 * one.words] = 1
    d = np.zeros(one.wave * one.sums, np.float32)
    args = (ctypes.c_void_p * 3)(words.ctypes.data, other.ctypes.data, d.ctypes.data)
    fault = launched(libraries[32], index, 0, args)
    assert fault == b"half-waves give a matrix instruction different operands"


# ---- number formats -----------------------------------------------------------------------------

FORMATS = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz")


def test_8_bit_floats_and_integers_are_numpys(tmp_path: Path) -> None:
    """Every code of the four formats widened; rounding to them and to integers, by ties, subnormals, values
    beyond the range, infinities and NaN."""
    lines = ['#include "device/small_types.h"', "using namespace gemmtune;"]
    for name in (*FORMATS, "int8", "int32"):
        kind = MATRIX_TYPES[name]
        lines.append(
            f'extern "C" void narrow_{name}(const float* from, void* to, int count) {{ for (int i = 0; '
            f"i < count; ++i) static_cast<{kind}*>(to)[i] = narrow<{kind}>(from[i]); }}"
        )
        lines.append(
            f'extern "C" void widen_{name}(const void* from, float* to, int count) {{ for (int i = 0; '
            f"i < count; ++i) to[i] = widen(static_cast<const {kind}*>(from)[i]); }}"
        )
    library = compiled("\n".join(lines), tmp_path / "formats.so")
    rng = np.random.default_rng(1)
    spread = rng.standard_normal(20_000) * 2.0 ** rng.integers(-20, 18, 20_000)
    for name in FORMATS:
        storage = DTYPES[name].storage
        codes = np.arange(256, dtype=np.uint8)
        widened = np.zeros(256, np.float32)
        library[f"widen_{name}"](codes.ctypes.data_as(ctypes.c_void_p), _address(widened), 256)
        wanted = codes.view(storage).astype(np.float32)
        np.testing.assert_array_equal(widened, wanted)
        finite = np.sort(wanted[np.isfinite(wanted)])
        ties = (finite[1:] + finite[:-1]) / 2
        special = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e30, 480.0, 464.0, 61440.0, 1e-30, -1e-30]
        values = np.concatenate([finite, ties, spread, special]).astype(np.float32)
        rounded = np.zeros(values.size, np.uint8)
        library[f"narrow_{name}"](_address(values), _address(rounded), values.size)
        expected = values.astype(storage)
        same = (rounded == expected.view(np.uint8)) | (np.isnan(expected.astype(np.float32)) & np.isnan(
            rounded.view(storage).astype(np.float32)))  # fmt: skip
        assert same.all(), (name, values[~same][:5])
    for name in ("int8", "int32"):
        whole = DTYPES[name]
        edges = [0.5, 1.5, -0.5, -1.5, 126.5, 127.5, -128.5, 2.0**31, -(2.0**31), -1e30, 1e30, np.inf]
        values = np.concatenate([spread, spread * 1e5, edges]).astype(np.float32)
        out = np.zeros(values.size, whole.storage)
        library[f"narrow_{name}"](_address(values), _address(out), values.size)
        np.testing.assert_array_equal(out, to_host(values, whole))


def _address(values: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)
