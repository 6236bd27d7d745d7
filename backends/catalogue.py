"""The catalogue of our own kernel families (C++ for GPUs, Triton, C++ for CPUs): what each is, and whether
this machine can compile it. Needs no device; a missing compiler is reported, not raised."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from math import prod
from typing import Any

from backends.cpu import families as cpu
from backends.cpu.compiler import find_compiler
from backends.cpu.compiler import missing as no_compiler
from backends.dtypes import COMPUTE_FOR, FP4, WEIGHT_TYPES
from backends.errors import InvalidProblem
from backends.grouping import TYPES
from backends.kernel_checks.candidates import GPU_FAMILIES, GpuFamily, missing, vendors
from backends.kernels.triton.family import TritonFamily
from backends.problem import GemmProblem, from_linear, from_mm
from backends.solution import Parameter

#: The input types that a family is checked for: every dtype, and tf32 (fp32 on tensor cores).
INPUT_TYPES = (*COMPUTE_FOR, "tf32")
_MX: Mapping[str, Any] = {"scale_a": "block_1x32", "scale_b": "block_1x32", "trans_b": "T"}
_BLOCK_SCALED: Mapping[str, Any] = {
    "scale_a": "block_1x128", "scale_b": "block_128x128", "dtype_d": "bf16", "trans_b": "T",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A family as shown to users. `files` are relative to the installation. `parameters`: name -> its values,
    empty if it may be any number. `missing`: vendor -> why this machine cannot compile for it, None if it
    can."""

    name: str
    description: str
    language: str
    files: tuple[str, ...]
    version: int
    input_types: tuple[str, ...]
    parameters: Mapping[str, tuple[Parameter, ...]]
    missing: Mapping[str, str | None]

    @property
    def vendors(self) -> tuple[str, ...]:
        """The vendors that it compiles for."""
        return tuple(self.missing)

    @property
    def space(self) -> int | None:
        """Number of combinations of parameter values, legal or not; None if a parameter may be any number."""
        return prod(len(values) for values in self.parameters.values()) or None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "vendors": list(self.vendors), "space": self.space}


def catalogue() -> list[Entry]:
    """Every family, in the order in which a search on its vendor takes turns."""
    found = [
        Entry(
            family.name, _about(family), *_source(family), family.version, _types(family.supports),
            family.choices, {vendor: missing(family, vendor) for vendor in vendors(family)},
        )
        for family in GPU_FAMILIES.values()
    ]  # fmt: skip
    compiler = None if find_compiler() else no_compiler()
    for native in (cpu.StreamFamily(), cpu.PackedFamily()):
        names, file = (*native.texts, *native.tile_names, *native.numbers), f"{native.name}.h"
        found.append(
            Entry(
                native.name, _about(native), "C++", (f"backends/cpu/kernels/{file}",), native.version,
                _types(native.supports), dict.fromkeys(names, ()), {"cpu": compiler},
            )
        )  # fmt: skip
    return found


def _source(family: GpuFamily) -> tuple[str, tuple[str, ...]]:
    """The family's language and source files."""
    if isinstance(family, TritonFamily):
        return "Triton", (f"backends/kernels/triton/{family.source}",)
    return "C++", (f"backends/kernels/{family.header}",)


def _about(family: object) -> str:
    """The first paragraph of the family's class docstring, on one line."""
    return " ".join((inspect.getdoc(type(family)) or "").partition("\n\n")[0].split())


def _types(supports: Callable[[GemmProblem], bool]) -> tuple[str, ...]:
    """The input types for which the family runs a plain GEMM, or a linear layer with scales of blocks (of
    MXFP4 their own); then the types of quantised weights, and of grouped products, that it multiplies."""
    found: dict[str, None] = {}
    for name, options in product(INPUT_TYPES, ({}, _BLOCK_SCALED, _MX)):
        with suppress(InvalidProblem):
            if supports(from_mm(16, 256, 256, name, **options)):
                found[name] = None
    for name in WEIGHT_TYPES:
        scales = (("block_1x32", None),) if name == FP4 else (("block_1x128", "bf16"), ("outer", "bf16"))
        for scale, kind in scales:
            weights = {"dtype_b": name, "scale_b": scale, "scale_dtype": kind, "trans_b": "T"}
            if supports(from_mm(16, 256, 256, "bf16", **weights)):
                found[f"{name} weights"] = None
        scale, kind = scales[0]
        how = {"dtype_b": name, "scale_b": scale, "scale_dtype": kind, "groups": 4}
        with suppress(InvalidProblem):
            if supports(from_linear(16, 256, 256, "bf16", **how)):
                found[f"{name} weights of groups"] = None
    for name in TYPES:
        if supports(from_linear(16, 256, 256, name, groups=4)):
            found[f"{name} groups"] = None
    return tuple(found)
