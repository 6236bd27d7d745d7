"""What a user's kernel states that it takes: number formats, and features of a problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backends.errors import ReadError
from backends.grouping import ungrouped
from backends.operands import layouts
from backends.problem import GemmProblem

#: Input type -> the output that its name alone means.
DEFAULT_OUTPUT = {"fp64": "fp64", "fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "int8": "int32"}
#: What a problem may have beyond D = A B of packed operands that are not transposed.
FEATURES = ("alpha", "beta", "bias", "activation", "batch", "padded", "transposed")


@dataclass(frozen=True)
class Contract:
    """`types`: pairs of input and output type; empty for every pair. `features`: of FEATURES."""

    types: tuple[tuple[str, str], ...] = ()
    features: frozenset[str] = frozenset()

    def excludes(self, problem: GemmProblem) -> str | None:
        """Why the kernel does not take the problem, or None."""
        p = problem
        kinds = (p.dtype_a, p.dtype_d)
        if p.dtype_a != p.dtype_b or p.dtype_a not in DEFAULT_OUTPUT or p.dtype_d not in OUTPUTS:
            return f"no user's kernel takes {p.dtype_a} x {p.dtype_b} -> {p.dtype_d}"
        if (broken := ungrouped(p)) is not None:
            return broken
        if not p.scale_a == p.scale_b == p.scale_d == "none":
            return "no user's kernel takes scales"
        if self.types and kinds not in self.types:
            stated = ", ".join(f"{a} -> {d}" for a, d in self.types)
            return f"it takes {stated}, not {p.dtype_a} -> {p.dtype_d}"
        if p.dtype_c != p.dtype_d or p.bias not in (None, p.dtype_d):
            return "no user's kernel takes a C or a bias of another type than the output's"
        missing = [name for name in FEATURES if name in features_of(p) and name not in self.features]
        return f"it does not state {', '.join(missing)}" if missing else None


#: Output types.
OUTPUTS = frozenset(DEFAULT_OUTPUT.values())


def features_of(problem: GemmProblem) -> frozenset[str]:
    """The features that the problem has."""
    p = problem
    has = {
        "alpha": p.alpha != "one",
        "beta": p.beta != "zero",
        "bias": p.bias is not None,
        "activation": p.activation != "none",
        "batch": p.batch > 1,
        "padded": _padded(p),
        "transposed": p.trans_a != "N" or p.trans_b != "N",
    }
    return frozenset(name for name, present in has.items() if present)


def _padded(p: GemmProblem) -> bool:
    """Whether an operand has gaps between its rows or matrices, or is broadcast along the batch."""
    for name in ("a", "b", "c", "d"):
        layout = layouts(p).get(name)
        if layout is None:
            continue
        if layout.columns > 1 and layout.ld != layout.rows:
            return True
        if p.batch > 1 and (layout.copies == 1 or layout.stride != layout.ld * layout.columns):
            return True
    return False


def read_types(words: Iterable[str], where: str) -> tuple[tuple[str, str], ...]:
    """Types such as "bf16" or "bf16:fp32" (input:output). Raises ReadError."""
    found = []
    for word in words:
        source, _, out = word.partition(":")
        if source not in DEFAULT_OUTPUT or (out or DEFAULT_OUTPUT[source]) not in OUTPUTS:
            raise ReadError(
                f"{where} states the type {word[:40]!r}; inputs are {', '.join(DEFAULT_OUTPUT)}, and "
                "INPUT:OUTPUT names another output, such as bf16:fp32"
            )
        found.append((source, out or DEFAULT_OUTPUT[source]))
    return tuple(dict.fromkeys(found))


def read_features(words: Iterable[str], where: str) -> frozenset[str]:
    """Names of FEATURES. Raises ReadError."""
    found = frozenset(words)
    for word in sorted(found.difference(FEATURES)):
        raise ReadError(f"{where} states the feature {word[:40]!r}; there are {', '.join(FEATURES)}")
    return found
