"""Families whose solutions a framework can name: their parameters are those of the framework's own Triton
kernel, under its names, and mean the same there (framework_kernels.py)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar

from backends.environment import Environment
from backends.grouping import ungrouped
from backends.kernels.legality import arch_of, capability
from backends.kernels.triton.configuration import INSTRUCTION
from backends.kernels.triton.family import LIBRARY, TritonFamily, Values
from backends.kernels.triton.framework_configuration import (
    BlockScaledConfig,
    FrameworkConfig,
    InductorConfig,
)
from backends.kernels.triton.legality import GFX, MOST_SIZE, OLDEST, OLDEST_FP8
from backends.problem import GemmProblem
from backends.problem_rules import BLOCKS
from backends.solution import Parameter, Solution

#: AMD's options: 0 leaves the choice to the compiler.
_AMD_CHOICES: Mapping[str, tuple[Parameter, ...]] = {
    INSTRUCTION: (0, 16, 32), "waves_per_eu": (0, 1, 2, 3, 4, 5, 6, 7, 8), "kpack": (1, 2),
}  # fmt: skip
SIDES: tuple[Parameter, ...] = (16, 32, 64, 128, 256)
GROUPS: tuple[Parameter, ...] = (1, 2, 4, 8, 16, 32, 64)
WARPS: tuple[Parameter, ...] = (1, 2, 4, 8, 16)
STAGES: tuple[Parameter, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
#: The 8-bit floats that an AMD GPU multiplies, and the frameworks use there, by the beginning of its
#: architecture.
_FP8_OF = {"gfx942": "fp8_e4m3_fnuz", "gfx950": "fp8_e4m3", "gfx12": "fp8_e4m3"}


class FrameworkFamily(TritonFamily):
    """A family of one of these kernels."""

    source: ClassVar[str] = "framework_kernels.py"
    #: TritonConfig's name of a parameter -> the framework's.
    names: ClassVar[Mapping[str, str]]
    made: ClassVar[type[FrameworkConfig]]
    #: Rows of tiles in a band, as the framework's own configurations mostly have them.
    group: ClassVar[int]
    #: The configurations of the framework that a search tries first; none that a problem or a device refuses.
    first: ClassVar[tuple[tuple[Parameter, ...], ...]]
    #: The most candidates of a problem: only programs of the framework gain by them.
    most: ClassVar[int] = 60
    amd_choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = _AMD_CHOICES

    def config(self, problem: GemmProblem, parameters: Mapping[str, Parameter]) -> FrameworkConfig:
        """See TritonFamily."""
        own = {theirs: ours for ours, theirs in self.names.items()}
        return self.made.of(problem, {own.get(name, name): value for name, value in parameters.items()})

    def vary(self, problem: GemmProblem, values: Values, environment: Environment) -> Iterator[Values]:
        """The tile itself, with the framework's bands, unless it is likely to spill."""
        arch = arch_of(environment)
        if arch.vendor != "hip" or not self.made.of(problem, {**values, "group_m": self.group}).spills(arch):
            yield {**values, "group_m": self.group}

    def _worth_trying(self, problem: GemmProblem, environment: Environment) -> Iterator[Values]:
        for values in self._tiles(problem, environment, False):
            yield from self.vary(problem, values, environment)

    def firsts(self, problem: GemmProblem, environment: Environment) -> Iterable[tuple[Parameter, ...]]:
        """The rows of values that a search of the problem tries first."""
        return self.first

    def _solutions(self, problem: GemmProblem, environment: Environment) -> Iterator[Solution]:
        firsts = self.firsts(problem, environment)
        listed = [self.solution(dict(zip(self.choices, row, strict=True)), environment) for row in firsts]
        listed += [self._named(values, environment) for values in self._estimated(problem, environment)]
        legal = (one for one in dict.fromkeys(listed) if self.illegal(problem, one, environment) is None)
        yield from islice(legal, self.most)

    def _named(self, values: Values, environment: Environment) -> Solution:
        """The solution of a tile's values, by the framework's names."""
        named = {theirs: values[ours] for ours, theirs in self.names.items()}
        options = {name: values[name] for name in self.amd_choices if name in values}
        return self.solution(named | options, environment)

    def _solution(self, problem: GemmProblem, values: Values, environment: Environment) -> Solution:
        return self.solution(values, environment)

    def solution(self, values: Mapping[str, Parameter], environment: Environment) -> Solution:
        """The solution of the framework's parameters under the environment's Triton."""
        return Solution(self.name, self.version, dict(values), environment.libraries.get(LIBRARY), 0, True)

    def notes(self, problem: GemmProblem, environment: Environment) -> tuple[str, ...]:
        """Nothing: NVIDIA's heuristics know other kernels."""
        return ()

    @abstractmethod
    def unsupported(self, problem: GemmProblem) -> str | None:
        """See TritonFamily."""


class TritonBlockFp8(FrameworkFamily):
    """8-bit floats with scales of 1 x 128 and 128 x 128 blocks, by the parameters of vLLM's and SGLang's
    kernel: a verdict on them can be written into their tuned configurations."""

    name = "triton-block-fp8"
    names: ClassVar[Mapping[str, str]] = {
        "block_m": "BLOCK_SIZE_M", "block_n": "BLOCK_SIZE_N", "block_k": "BLOCK_SIZE_K",
        "group_m": "GROUP_SIZE_M", "num_warps": "num_warps", "num_stages": "num_stages",
    }  # fmt: skip
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "BLOCK_SIZE_M": SIDES, "BLOCK_SIZE_N": SIDES, "BLOCK_SIZE_K": (32, 64, 128),
        "GROUP_SIZE_M": GROUPS, "num_warps": WARPS, "num_stages": STAGES,
    }  # fmt: skip
    made = BlockScaledConfig
    group = 32
    #: What both frameworks run without a file for the weight and the device (vLLM:
    #: w8a8_triton_block_scaled_mm; SGLang: w8a8_block_fp8_matmul_triton).
    first = ((64, 128, 128, 32, 4, 2),)

    def default(self, environment: Environment) -> Solution:
        """The configuration that the frameworks run untuned."""
        return self.solution(dict(zip(self.choices, self.first[0], strict=True)), environment)

    def vary(self, problem: GemmProblem, values: Values, environment: Environment) -> Iterator[Values]:
        """Steps of a whole block of scales: SGLang raises shorter ones to it, so no other configuration means
        the same to both frameworks."""
        if values["block_k"] == BLOCKS["block_128x128"][1]:
            yield from super().vary(problem, values, environment)

    def unsupported(self, problem: GemmProblem) -> str | None:
        """The kernel multiplies x[M,K] by w[N,K] transposed, both e4m3, and has no epilogue."""
        p = problem
        if p.dtype_a != p.dtype_b or p.dtype_a not in _FP8_OF.values():
            return f"the block-scaled kernel multiplies e4m3 by e4m3, not {p.dtype_b} by {p.dtype_a}"
        if p.dtype_d not in ("bf16", "fp16", "fp32"):
            return f"the block-scaled kernel has a D of bf16, fp16 or fp32, not {p.dtype_d}"
        if (p.scale_b, p.scale_a) != ("block_1x128", "block_128x128") or p.scale_dtype != "fp32":
            return (
                "the block-scaled kernel takes fp32 scales of 1x128 and 128x128, row-major, not "
                f"{p.scale_b} and {p.scale_a} of {p.scale_dtype}"
            )
        if (p.trans_a, p.trans_b) != ("T", "N"):
            return "the block-scaled kernel multiplies x[M,K] by w[N,K] transposed, both row-major"
        return _plain(p, "the block-scaled kernel")

    def unsupported_arch(self, problem: GemmProblem, environment: Environment) -> str | None:
        """See TritonFamily."""
        return unsupported_fp8(problem, environment)


class TritonInductorMm(FrameworkFamily):
    """16-bit floats by the parameters of Inductor's template mm: a verdict on them can be written into
    Inductor's lookup table."""

    name = "triton-inductor-mm"
    names: ClassVar[Mapping[str, str]] = {
        "block_m": "BLOCK_M", "block_n": "BLOCK_N", "block_k": "BLOCK_K", "group_m": "GROUP_M",
        "num_stages": "num_stages", "num_warps": "num_warps",
    }  # fmt: skip
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "BLOCK_M": SIDES, "BLOCK_N": SIDES, "BLOCK_K": SIDES, "GROUP_M": GROUPS,
        "num_stages": STAGES, "num_warps": WARPS,
    }  # fmt: skip
    made = InductorConfig
    group = 8
    first = ()

    def unsupported(self, problem: GemmProblem) -> str | None:
        """The table has keys for plain mm of 16-bit floats."""
        p = problem
        kinds = {p.dtype_a, p.dtype_b, p.dtype_d}
        if kinds not in ({"bf16"}, {"fp16"}) or p.compute != "fp32":
            return (
                "Inductor's template mm is written for bf16 and fp16 with sums in fp32 and a D of the same "
                f"type, not {p.dtype_a} x {p.dtype_b} in {p.compute} to {p.dtype_d}"
            )
        if {p.scale_a, p.scale_b} != {"none"}:
            return f"Inductor's template mm has no scales, not {p.scale_a} and {p.scale_b}"
        return _plain(p, "Inductor's template mm")

    def unsupported_arch(self, problem: GemmProblem, environment: Environment) -> str | None:
        """See TritonFamily."""
        return unsupported_halves(environment)


def unsupported_halves(environment: Environment) -> str | None:
    """Why the device's architecture has no matrix instructions for 16-bit floats, or None."""
    if environment.vendor == "hip":
        return None if environment.arch.startswith(GFX) else _not_compiled(GFX, environment)
    if environment.vendor != "cuda" or capability(environment) < OLDEST:
        return _not_compiled((f"sm_{OLDEST} and later",), environment)
    return None


def unsupported_fp8(p: GemmProblem, environment: Environment) -> str | None:
    """Why the device's architecture, or the frameworks on it, do not multiply the problem's 8-bit floats, or
    None."""
    arch = environment.arch
    if environment.vendor == "hip":
        kinds = [kind for start, kind in _FP8_OF.items() if arch.startswith(start)]
        if kinds == [p.dtype_a]:
            return None
        return f"{arch} does not multiply {p.dtype_a}: " + (
            f"the frameworks use {kinds[0]} there" if kinds else f"{', '.join(_FP8_OF)} have 8-bit floats"
        )
    if environment.vendor != "cuda" or capability(environment) < OLDEST_FP8:
        return f"8-bit floats are multiplied from sm_{OLDEST_FP8} on, not by {arch}"
    return None if p.dtype_a == "fp8_e4m3" else f"{p.dtype_a} is a format of AMD's gfx942, not of {arch}'s"


def _not_compiled(known: Sequence[str], environment: Environment) -> str:
    return f"the Triton kernels are compiled for {', '.join(known)}, not {environment.arch}"


def _plain(p: GemmProblem, kernel: str) -> str | None:
    """What a product has beside its operands that `kernel` does not, or None."""
    if (broken := ungrouped(p)) is not None:
        return broken
    if p.batch > 1:
        return f"{kernel} has no batches, not of {p.batch}"
    if p.alpha != "one" or p.beta != "zero":
        return f"{kernel} has neither alpha nor beta"
    if p.epilogue != "none":
        return f"{kernel} has no epilogue, not {p.epilogue}"
    if p.scale_d != "none":
        return f"{kernel} has no scale of D"
    if max(p.m, p.n, p.k) > MOST_SIZE:
        return f"sizes up to {MOST_SIZE}, not {p.m} x {p.n} x {p.k}"
    return None
