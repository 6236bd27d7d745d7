"""cuBLASLt on copies of misaligned operands: tensor cores load 16 bytes at a time, and a leading dimension
that is no multiple of them costs more than copying the operand, which a launch pays too.

n and k stay as they are: aligned leading dimensions are all that the library's kernels ask of the inputs, so
that nothing has to be filled with zeros along k. Of D they ask whole 16 bytes of rows as well: where D is
copied m is rounded up, and the rows added, of whatever lies there, are not copied back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from backends.dtypes import DTYPES
from backends.gpu.context import GpuContext
from backends.gpu.copies import SOURCE, CopyLaunch, copy_launch
from backends.gpu.units import device_unit
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem
from backends.problem_rules import MAX_SIZE
from backends.protocol import Kernel, Launch
from backends.toolchains.toolchain import CompileUnit

#: Bytes that tensor-core kernels load at once.
ALIGNMENT = 16
#: `pad`: every misaligned operand and what m runs along, or misaligned inputs alone (the copy of D costs more
#: than it may bring), likeliest first.
PADS = ("all", "inputs")
#: Of kernels that care for A and B alone.
FACTORS = "factors"
#: Bytes of a cache line; a copy is by at most one so-manieth larger for its columns to start at them.
_CACHE_LINE, _MOST_EXCESS = 128, 16
#: Buffers start at multiples of this many bytes in the workspace, as allocations do.
BUFFER_ALIGN = 256


def misaligned(problem: GemmProblem) -> tuple[str, ...]:
    """Operands of which some column does not start at a multiple of 16 bytes."""
    found = layouts(problem)
    if problem.alignment < ALIGNMENT:
        return tuple(found)
    return tuple(
        name for name in ("a", "b", "c", "d") if name in found and not _aligned(found[name], problem.batch)
    )


def _aligned(layout: Layout, batch: int) -> bool:
    size = layout.dtype.bytes
    return layout.ld * size % ALIGNMENT == 0 and (batch == 1 or layout.stride * size % ALIGNMENT == 0)


def _padded_m(problem: GemmProblem) -> int:
    """m in whole 16 bytes of D, and of A where its rows are m's."""
    sizes = [DTYPES[problem.dtype_d].bytes]
    if problem.trans_a == "N":
        sizes.append(DTYPES[problem.dtype_a].bytes)
    m = _up(problem.m, max(1, ALIGNMENT // min(sizes)))
    return m if m <= MAX_SIZE else problem.m


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _along_m(problem: GemmProblem) -> set[str]:
    """Operands with an element or more for every row of D."""
    found = {"a", "c", "d"}
    if problem.bias_axis == "m":
        found.add("bias")
    if problem.scale_a == "outer":
        found.add("scale_a")
    return found


@lru_cache(maxsize=256)
def copied(problem: GemmProblem, pad: str) -> tuple[str, ...]:
    """The operands that `pad` copies; none where it is no choice for this problem. Packed operands, two
    elements to a byte, have none: no family that reads copies multiplies them."""
    if min(DTYPES[problem.dtype_a].bits, DTYPES[problem.dtype_b].bits) < 8:
        return ()
    found = misaligned(problem)
    if pad == "all":
        if "d" not in found or _padded_m(problem) == problem.m:
            return found
        wanted = _along_m(problem).union(found)
        return tuple(name for name in layouts(problem) if name in wanted)
    if pad == FACTORS:
        return tuple(name for name in found if name in "ab") if problem.alignment >= ALIGNMENT else ()
    inputs = tuple(name for name in found if name != "d")
    # With addresses misaligned, D is as well: its copy is what makes the twin.
    useful = pad == "inputs" and inputs != found and problem.alignment >= ALIGNMENT
    return inputs if useful else ()


@lru_cache(maxsize=256)
def padded_twin(problem: GemmProblem, pad: str) -> GemmProblem:
    """The same product on the copies, m rounded up where D is one: leading dimensions of whole cache lines
    where those cost little, else the least aligned ones; batches one after another."""
    changed: dict[str, Any] = {"alignment": max(problem.alignment, ALIGNMENT)}
    names, found = copied(problem, pad), layouts(problem)
    more = 0
    if "d" in names:
        changed["m"] = _padded_m(problem)
        more = changed["m"] - problem.m
    for name in names:
        if name in ("a", "b", "c", "d"):
            layout = found[name]
            in_rows = name in ("c", "d") or (name == "a" and problem.trans_a == "N")
            in_columns = name == "a" and not in_rows
            ld = _padded_ld(layout.rows + more * in_rows, layout.dtype.bytes)
            changed[f"ld{name}"] = ld
            columns = layout.columns + more * in_columns
            changed[f"stride_{name}"] = ld * columns if layout.stride else 0
    return replace(problem, **changed)


def _padded_ld(rows: int, size: int) -> int:
    """Tiles are read in cache lines: where columns start within them, one more of every column's part."""
    least, lines = (_up(rows, max(1, unit // size)) for unit in (ALIGNMENT, _CACHE_LINE))
    return lines if lines * _MOST_EXCESS <= least * (_MOST_EXCESS + 1) else least


@lru_cache(maxsize=256)
def buffers(problem: GemmProblem, pad: str) -> tuple[Mapping[str, int], int]:
    """Where each copy starts in the workspace, and the bytes of all of them."""
    starts, at = {}, 0
    found = layouts(padded_twin(problem, pad))
    for name in copied(problem, pad):
        starts[name] = at
        layout = found[name]
        size = layout.copies * max(layout.stride, layout.ld * layout.columns) * layout.dtype.bytes
        at += _up(size, BUFFER_ALIGN)
    return starts, at


def copying_unit(problem: GemmProblem, pad: str, arch: str) -> CompileUnit:
    """The unit of the kernels that copy for this padding on an architecture."""
    return device_unit(SOURCE, arch, _defines(problem, copied(problem, pad)))


def _defines(problem: GemmProblem, names: Iterable[str]) -> dict[str, str]:
    """Addresses are known to be aligned to the problem's bytes, leading dimensions to an element."""
    found = layouts(problem)
    return {"UNIT": str(min([problem.alignment, *(found[name].dtype.bytes for name in names)]))}


@dataclass(frozen=True)
class _Plan:
    """What launches need but addresses: copies in (`names`, in order) and of D back."""

    names: tuple[str, ...]
    into: CopyLaunch | None
    back: CopyLaunch | None
    defines: Mapping[str, str]


@lru_cache(maxsize=64)
def _plan(problem: GemmProblem, pad: str) -> _Plan:
    own, ours, copies = layouts(problem), layouts(padded_twin(problem, pad)), copied(problem, pad)
    names = tuple(name for name in copies if name != "d")
    into = copy_launch([(own[name], ours[name]) for name in names]) if names else None
    back = copy_launch([(own["d"], ours["d"])], out=True) if "d" in copies else None
    return _Plan(names, into, back, _defines(problem, copies))


class PaddedKernel:
    """A product's kernel between copies."""

    def __init__(self, problem: GemmProblem, pad: str, kernel: Kernel, device: GpuContext) -> None:
        self._kernel, self._device, self._plan = kernel, device, _plan(problem, pad)
        self._starts, self._bytes = buffers(problem, pad)
        self.workspace_bytes = self._bytes + kernel.workspace_bytes
        self._functions = {
            launch.kernel: device.function(SOURCE, launch.kernel, self._plan.defines)
            for launch in (self._plan.into, self._plan.back)
            if launch is not None
        }

    @property
    def partial_sums(self) -> int:
        """The partial sums of the product's kernel."""
        return self._kernel.partial_sums

    def prepare(self) -> None:
        """Prepares the product's kernel."""
        self._kernel.prepare()

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """A launch of steps() in order."""
        steps = tuple(step for step in self.steps(operands, workspace).values() if step is not None)

        def launch() -> None:
            for step in steps:
                step()

        return launch

    def steps(self, operands: Operands, workspace: int) -> dict[str, Launch | None]:
        """What a launch consists of, in order: the copies into the workspace, the product, the copy of D
        back; None for what this padding does not need."""
        plan, own = self._plan, operands
        inside = {name: workspace + start for name, start in self._starts.items()}
        at = inside.get
        ours = Operands(
            at("a", own.a), at("b", own.b), at("c", own.c), at("d", own.d), at("bias", own.bias),
            own.alpha, own.beta,
            at("scale_a", own.scale_a), at("scale_b", own.scale_b), at("scale_d", own.scale_d),
        )  # fmt: skip
        return {
            "into": self._copying(plan.into, [(getattr(own, name), inside[name]) for name in plan.names]),
            "product": self._kernel.bind(ours, workspace + self._bytes),
            "back": self._copying(plan.back, [(ours.d, own.d)]),
        }

    def _copying(self, launch: CopyLaunch | None, addresses: Iterable[tuple[int, int]]) -> Launch | None:
        if launch is None:
            return None
        return self._device.bind(self._functions[launch.kernel], launch.shape, launch.at(addresses))
