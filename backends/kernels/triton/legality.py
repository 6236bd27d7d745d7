"""The legality rules of the Triton kernels, each written once. A rule returns its violation as a sentence, or
None.

Triton lays out shared memory itself: the rule here is the least that a pipeline needs; what the compiler
allocated is compared with the device's limit when the kernel is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backends.archs import GpuArch
from backends.environment import Environment
from backends.grouping import ungrouped
from backends.kernels.legality import arch_of, capability
from backends.kernels.triton.configuration import INSTRUCTION, TritonConfig
from backends.problem import GemmProblem
from backends.solution import Parameter, Solution

#: The first compute capabilities (times ten) with instructions for 16-bit floats, TF32 and int8; for 8-bit
#: floats; and with the tensor memory accelerator.
OLDEST, OLDEST_FP8, OLDEST_TMA = 80, 89, 90
#: Prefixes of AMD's architectures with matrix instructions for 16-bit floats and int8; for OCP's 8-bit floats
#: and for FNUZ ones (others would emulate them); for single precision; for TF32 (xf32).
GFX, _GFX_FP8 = ("gfx90a", "gfx942", "gfx950", "gfx11", "gfx12"), ("gfx950", "gfx12")
_GFX_FNUZ = ("gfx942",)
_GFX_FP32, _GFX_TF32 = ("gfx90a", "gfx942", "gfx950"), ("gfx942",)
#: Tile indices are 32 bits wide, and a persistent program's index goes beyond the last tile.
MOST_TILES = 2**30
#: Sizes are rounded up to tiles in 32 bits.
MOST_SIZE = 2**30
#: Parameters that solutions for AMD's GPUs may have beside their family's; without one the compiler chooses.
AMD_CHOICES: Mapping[str, tuple[Parameter, ...]] = {INSTRUCTION: (16, 32)}
#: The most sums per thread, of its 255 registers. If a multiprocessor's registers leave a thread fewer, at
#: most half of them hold sums.
MOST_SUMS = 128
#: The tensor cores' step along k: 16 for 16-bit floats, 32 for 8-bit numbers.
_LEAST_K = {1: 32, 2: 16, 4: 16}

_FLOATS = ("fp32", "fp16", "bf16")
_FP8, _FNUZ = ("fp8_e4m3", "fp8_e5m2"), ("fp8_e4m3_fnuz", "fp8_e5m2_fnuz")
#: Input type -> (compute types, types of D and C).
_TYPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bf16": (("fp32",), ("bf16", "fp32")),
    "fp16": (("fp32",), ("fp16", "fp32")),
    "fp32": (("tf32", "fp32"), ("fp32",)),
    "int8": (("int32",), ("int32", *_FLOATS)),
    **dict.fromkeys(_FP8, (("fp32",), (*_FLOATS, *_FP8))),
    **dict.fromkeys(_FNUZ, (("fp32",), _FLOATS)),
}


def unsupported(p: GemmProblem) -> str | None:
    """Why the kernels do not support the problem's types, compute type or scaling, or None."""
    if (broken := ungrouped(p)) is not None:
        return broken
    kinds = _TYPES.get(p.dtype_a)
    mixed = any({p.dtype_a, p.dtype_b} <= set(formats) for formats in (_FP8, _FNUZ))
    if kinds is None or p.compute not in kinds[0] or not (mixed or p.dtype_b == p.dtype_a):
        return f"no Triton kernel multiplies {p.dtype_a} x {p.dtype_b} in {p.compute}"
    if p.dtype_d not in kinds[1] or p.dtype_c not in kinds[1]:
        return f"no Triton kernel for {p.dtype_a} has a C of {p.dtype_c} or a D of {p.dtype_d}"
    whole = p.dtype_d == "int32"
    if whole != (p.dtype_c == "int32"):
        return f"C of {p.dtype_c} is not added to {p.dtype_d}: both are whole numbers, or neither"
    if p.bias is not None and p.bias not in (("int32", "int8") if whole else _FLOATS):
        return f"no Triton kernel adds a bias of {p.bias} to {p.dtype_d}"
    scaled = {p.scale_a, p.scale_b, p.scale_d} != {"none"}
    if scaled and p.scale_dtype != "fp32":
        return f"scales are fp32 here, not {p.scale_dtype}"
    if scaled and whole:
        return "scaled sums are fractions: a product with scales has a D of fp32, fp16 or bf16, not int32"
    if not {p.scale_a, p.scale_b} <= {"none", "tensor", "outer"}:
        return f"scales are a tensor's or outer, not {p.scale_a} and {p.scale_b}"
    if max(p.m, p.n, p.k) > MOST_SIZE:
        return f"sizes up to {MOST_SIZE}, not {p.m} x {p.n} x {p.k}"
    return None


def unsupported_arch(p: GemmProblem, environment: Environment) -> str | None:
    """Why the device's architecture does not support the problem's types, or None."""
    if environment.vendor == "hip":
        return _unsupported_gfx(p, environment.arch)
    here = capability(environment)
    if environment.vendor != "cuda" or here < OLDEST:
        return f"the Triton kernels are compiled for sm_{OLDEST} and later, not {environment.arch}"
    if p.dtype_a in _FNUZ:
        return f"{p.dtype_a} is a format of {' and '.join(_GFX_FNUZ)}, not of {environment.arch}"
    if p.dtype_a in _FP8 and here < OLDEST_FP8:
        return f"8-bit floats are multiplied from sm_{OLDEST_FP8} on, not by {environment.arch}"
    if p.compute == "fp32" and p.dtype_a == "fp32":
        return f"no Triton kernel multiplies fp32 x fp32 in fp32 on {environment.arch}"
    return None


def _unsupported_gfx(p: GemmProblem, arch: str) -> str | None:
    if not arch.startswith(GFX):
        return f"the Triton kernels are compiled for {', '.join(GFX)}, not {arch}"
    if p.dtype_a in _FP8 and not arch.startswith(_GFX_FP8):
        return f"OCP's 8-bit floats are multiplied by {' and '.join(_GFX_FP8)}, not by {arch}"
    if p.dtype_a in _FNUZ and not arch.startswith(_GFX_FNUZ):
        return f"FNUZ's 8-bit floats are multiplied by {' and '.join(_GFX_FNUZ)}, not by {arch}"
    if p.dtype_a in _FP8 and p.dtype_b != p.dtype_a and arch.startswith("gfx12"):
        return f"Triton does not multiply {p.dtype_a} x {p.dtype_b} for {arch}: A and B have one type"
    if p.compute == "tf32" and not arch.startswith(_GFX_TF32):
        return f"TF32 is multiplied by {' and '.join(_GFX_TF32)}, not by {arch}"
    if p.dtype_a == "fp32" and not arch.startswith(_GFX_FP32):
        return f"matrix instructions for fp32 are {', '.join(_GFX_FP32)}'s, not {arch}'s"
    return None


def malformed(
    solution: Solution, name: str, version: int, choices: Mapping[str, Sequence[Parameter]]
) -> str | None:
    """What is wrong with the parameters themselves, or None; imported ones may be anything."""
    given = solution.parameters
    if solution.family != name:
        return f"a solution of {solution.family} is none of {name}"
    if solution.version != version:
        return f"version {solution.version} of {name} is another kernel; this is {version}"
    if set(given) != set(choices):
        return f"a {name} solution has the parameters {', '.join(choices)}"
    for parameter, known in choices.items():
        value = given[parameter]
        # Not `in` alone: True == 1.
        if type(value) is not type(known[0]) or value not in known:
            return f"{parameter} must be one of {', '.join(map(str, known))}, not {value!r}"
    return None


def broken(one: TritonConfig, environment: Environment) -> str | None:
    """The rule that well-formed parameters break on an architecture, or None."""
    arch, size = arch_of(environment), one.product.element_bytes
    sums = one.block_m * one.block_n // (arch.warp * one.warps)
    most = min(MOST_SUMS, arch.unit_registers // (arch.warp * one.warps) // 2)
    if arch.vendor == "hip":
        most = min(most, arch.thread_registers // 4)
    if sums > most:
        return f"a thread of {one.warps} warps holds {sums} sums; {most} leave registers for the rest"
    if one.block_m * one.block_n < arch.warp * one.warps:
        return f"a tile of {one.block_m} x {one.block_n} is less than a sum a thread of {one.warps} warps"
    if one.block_k < _LEAST_K[size]:
        return f"block_k {one.block_k} is less than the tensor cores' step, {_LEAST_K[size]}"
    if (rule := one.miscompiled(arch)) is not None:
        return rule
    if arch.vendor == "hip" and (rule := _broken_gfx(one, arch)) is not None:
        return rule
    if one.tma and capability(environment) < OLDEST_TMA:
        return f"the tensor memory accelerator came with sm_{OLDEST_TMA}; this is {environment.arch}"
    if one.tma and one.product.batch > 1:
        return f"descriptors are of one product, not of a batch of {one.product.batch}"
    if one.tma and not one.product.describable:
        return "a descriptor's lines start at multiples of 16 bytes; A's or B's do not"
    needs = one.stage_bytes * max(1, one.stages - 1)
    if needs > arch.block_shared_bytes:
        return (
            f"{one.stages} stages hold {needs} bytes of shared memory at least; a block of "
            f"{environment.arch} has {arch.block_shared_bytes}"
        )
    programs = max(one.tiles, one.reduce_grid[0] if one.slices > 1 else 0)
    if programs > MOST_TILES:
        return f"{programs} programs; {MOST_TILES} at most"
    return None


def _broken_gfx(one: TritonConfig, arch: GpuArch) -> str | None:
    """Rules of AMD's GPUs. A kernel that spills a thousand registers takes the compiler minutes."""
    threads = arch.warp * one.warps
    if threads > arch.block_threads:
        return f"{one.warps} warps are {threads} threads; a block of {arch.name} has {arch.block_threads}"
    registers, most = one.registers(arch), min(arch.thread_registers, arch.unit_registers // threads)
    if registers > most:
        return f"a thread takes {registers} registers or so; of {threads} on {arch.name} each has {most}"
    if one.instruction is None:
        return None
    if arch.warp == 32 and one.instruction != 16:
        return f"{arch.name} multiplies 16 rows by 16 columns, not {one.instruction}"
    if min(one.block_m, one.block_n) < one.instruction:
        return f"a tile of {one.block_m} x {one.block_n} is less than an instruction of {one.instruction}"
    return None
