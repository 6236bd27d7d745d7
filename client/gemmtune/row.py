"""Row: what a bundle says of one problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Protocol

from gemmtune.checked import Checked
from gemmtune.description import PARALLEL, LaunchDescription, read_launch
from gemmtune.errors import BundleError
from gemmtune.problem import DTYPES, FIELDS, OPTIONAL, Key, key

#: Vendor -> the call by which its launches were measured.
LAUNCHED_BY = {"cuda": "cuLaunchKernelEx", "hip": "hipModuleLaunchKernel", "cpu": "gemmtune_run"}
#: Bounds that no real problem exceeds: elements of an operand, bytes of a workspace, launches of a row.
_MOST_ELEMENTS, _MOST_WORKSPACE, _MOST_LAUNCHES = 2**49, 2**40, 64
_MOST_ALIGNMENT = 4096
#: The packed copy of weights among the operands; the longest name of a layout.
PACKED = "packed"
_MOST_LAYOUT = 200


class Binaries(Protocol):
    """Where a row's binaries are read: a bundle."""

    @property
    def digest(self) -> str:
        """The bundle's digest."""

    @property
    def environments(self) -> Mapping[str, Mapping[str, Any]]:
        """Where rows were measured, by id."""

    def binary(self, digest: str) -> bytes:
        """The bytes of a binary, checked against its digest. Raises BundleError."""

    def size(self, digest: str) -> int:
        """How many bytes a binary has."""


@dataclass(frozen=True)
class Operand:
    """An operand as stored: column-major, sizes and strides in elements. `row_major` is its name in a
    row-major call (a is b there). Its address is a multiple of `alignment` bytes."""

    name: str
    row_major: str
    dtype: str
    rows: int
    columns: int
    ld: int
    batch_stride: int
    bytes: int
    alignment: int


@dataclass(frozen=True)
class Packing:
    """A packed copy of the weights, which a row's launches read in place of them. `layout` names where every
    byte of it lies: copies of one layout and one problem's weights are equal, whichever row packed them.
    `launch` writes the copy, once, from the addresses of `operands`, in their order."""

    layout: str
    bytes: int
    alignment: int
    operands: Mapping[str, Operand]
    launch: LaunchDescription = field(repr=False)


@dataclass(frozen=True)
class Solution:
    """The kernel: its family with its parameters, and an id that is stable across machines."""

    id: str
    family: str
    version: int
    parameters: Mapping[str, Any]
    build: str | None


@dataclass(frozen=True)
class Verdict:
    """How the kernel compares with its baseline. Times are seconds of one launch; `speedup` is the confidence
    interval (low, mid, high). `baseline_family` is the family of the baseline ("torch"), None where the
    bundle does not say."""

    judgement: str
    seconds: float
    baseline_seconds: float
    baseline: str
    baseline_family: str | None
    speedup: tuple[float, float, float]
    rounds: int | None
    session: str | int | None
    decided_at: str | float | None


@dataclass(frozen=True, eq=False)
class Row:
    """One problem, its fastest kernel of our own, and the verdict. `operands` are in the order in which a
    launch takes their addresses; the workspace is in bytes. `canonical` is the problem in column-major terms,
    `wire` as people write it. `deterministic` is None where it is not known. `packing`: the packed copy that
    is the operand "packed", None for launches that read weights as they are stored."""

    problem_id: str
    wire: Mapping[str, Any]
    canonical: Mapping[str, Any]
    key: Key
    solution: Solution
    environment: str
    verdict: Verdict
    deterministic: bool | None
    operands: Mapping[str, Operand]
    workspace_bytes: int
    workspace_alignment: int
    launched_by: str
    launches: tuple[LaunchDescription, ...] = field(repr=False)
    bundle: Binaries = field(repr=False)
    packing: Packing | None = None

    @property
    def speedup(self) -> float:
        """The middle of the verdict's interval."""
        return self.verdict.speedup[1]

    @property
    def all_launches(self) -> tuple[LaunchDescription, ...]:
        """The launches, and the one that packs the weights where there is one."""
        return self.launches if self.packing is None else (*self.launches, self.packing.launch)


def read_row(found: Checked, vendor: str, bundle: Binaries) -> Row:
    """A row of the manifest. Raises BundleError."""
    problem, solution = found.object("problem"), found.object("solution")
    canonical = problem.mapping("canonical")
    _check_fields(problem, set(canonical))
    if any(isinstance(value, (dict, list)) for value in canonical.values()):
        raise problem.fail("canonical", "must have plain values")
    operands = _operands(found)
    workspace = found.object("workspace")
    return Row(
        problem_id=problem.text("id"),
        wire=problem.mapping("wire"),
        canonical=canonical,
        key=key(canonical),
        solution=Solution(
            solution.text("id"), solution.text("family"), solution.whole("version", 1, 10**9),
            solution.mapping("parameters"), solution.text_or_none("build"),
        ),
        environment=found.text("environment"),
        verdict=_verdict(found.object("verdict")),
        deterministic=None if found.raw("deterministic") is None else found.flag("deterministic"),
        operands=operands,
        workspace_bytes=workspace.whole("bytes", 0, _MOST_WORKSPACE),
        workspace_alignment=workspace.whole("alignment", 1, _MOST_ALIGNMENT),
        launched_by=found.one_of("launched_by", (LAUNCHED_BY[vendor],)),
        launches=_launches(found, vendor, operands),
        bundle=bundle,
        packing=_packing(found, vendor, operands, canonical),
    )  # fmt: skip


def _check_fields(problem: Checked, given: set[str]) -> None:
    """Raises BundleError for a field that a problem lacks, and for one that only a newer client knows."""
    if lacking := sorted(set(FIELDS) - set(OPTIONAL) - given):
        raise problem.fail("canonical", f"lacks fields of a problem: {', '.join(lacking)[:200]}")
    if unknown := sorted(given - set(FIELDS)):
        names = f"field{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))[:200]}"
        raise BundleError(
            f"the manifest's {problem.place('canonical')} has the {names}, which this client ({_version()}) "
            "does not know; a newer gemmtune wrote it: pip install -U gemmtune-client"
        )


def _version() -> str:
    try:
        return metadata.version("gemmtune-client")
    except metadata.PackageNotFoundError:  # a folder on the path
        return "of no installed version"


def _packing(
    found: Checked, vendor: str, operands: Mapping[str, Operand], canonical: Mapping[str, Any]
) -> Packing | None:
    """What the row says of its packed copy. The product reads the copy that is packed, and of what was packed
    nothing else."""
    if found.get("packing") is None:
        if PACKED in operands:
            raise found.fail("operands", f"has {PACKED!r}, and the row has no packing, which writes it")
        return None
    one = found.object("packing")
    if canonical.get("prepacked") is not True:
        raise found.fail("packing", "is of a problem that does not allow prepacked weights")
    size = one.whole("bytes", 1, _MOST_WORKSPACE)
    alignment = one.whole("alignment", 1, _MOST_ALIGNMENT)
    stored = _operands(one)
    for place, these in ((found, operands), (one, stored)):
        copy = these.get(PACKED)
        if copy is None or (copy.bytes, copy.alignment) != (size, alignment):
            raise place.fail("operands", f"has no {PACKED!r} of {size} bytes, aligned to {alignment}")
    if both := sorted((set(operands) & set(stored)) - {PACKED}):
        raise one.fail("operands", f"has {both[0][:80]!r}, which the row's launches read too")
    launch = read_launch(one.object("launch"), vendor, stored)
    fills = {fill.name for fill in launch.fills}
    if PACKED not in fills or not fills - {PARALLEL} <= set(stored):
        raise one.fail("launch", f"must take {PACKED!r} and other operands alone, not {sorted(fills)}"[:200])
    return Packing(one.text("layout", _MOST_LAYOUT), size, alignment, stored, launch)


def _operands(found: Checked) -> Mapping[str, Operand]:
    return {
        name: _operand(name, Checked(values, f"{found.place('operands')}.{name}"))
        for name, values in found.mapping("operands").items()
    }


def _launches(found: Checked, vendor: str, operands: Mapping[str, Operand]) -> tuple[LaunchDescription, ...]:
    launches = tuple(read_launch(one, vendor, operands) for one in found.objects("launches", _MOST_LAUNCHES))
    if not launches or (vendor == "cpu" and len(launches) != 1):
        raise found.fail("launches", f"must be {'one' if vendor == 'cpu' else 'some'}, not {len(launches)}")
    return launches


def _operand(name: str, found: Checked) -> Operand:
    return Operand(
        name,
        found.text("row_major"),
        found.one_of("dtype", tuple(DTYPES)),
        found.whole("rows", 1, _MOST_ELEMENTS),
        found.whole("columns", 1, _MOST_ELEMENTS),
        found.whole("ld", 1, _MOST_ELEMENTS),
        found.whole("batch_stride", 0, _MOST_ELEMENTS),
        found.whole("bytes", 1, 2**63 - 1),
        found.whole("alignment", 1, _MOST_ALIGNMENT),
    )


def _verdict(found: Checked) -> Verdict:
    low, mid, high = found.numbers("speedup", 3, open_ends=True)
    return Verdict(
        found.one_of("judgement", ("WIN",)),
        found.number("seconds"),
        found.number("baseline_seconds"),
        found.text("baseline"),
        None if found.get("baseline_family") is None else found.text("baseline_family"),
        (low, mid, high),
        found.get("rounds"),
        found.get("session"),
        found.get("decided_at"),
    )
