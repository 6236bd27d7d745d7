"""Verifies a candidate in poisoned buffers between guard bands, and checks its results element by element.

The output starts as NaN (integers: a large odd number), which exposes elements that are never written, and
results that depend on the output, the workspace or the padding. Inputs, guard bands and padding must stay
unchanged. Ragged cases run twice, so that state left behind by the first run shows in the second.

A packed copy of the weights starts as poison between guard bands, too. While the product runs, poison is in
the place of the stored weights, and the copy must stay unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES
from backends.kernels.prepacked import REPLACED
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Buffer, Device, Kernel, PrepackedKernel
from tuners.inputs import Case, physical
from tuners.packed import (
    CHANGED_COPY,
    OUTSIDE_COPY,
    READS_STORED,
    aligned,
    copy_bytes,
    other_copy,
    packing_operands,
    prepacked,
)
from tuners.reference import Reference, chunk_sums, make_reference

#: Bytes before and after every operand that must stay unchanged.
GUARD = 4096
#: The byte of a workspace and its guard bands before a launch; operands have their format's (DType.poison).
POISON = 0xFF
#: Operand -> its bytes, guard bands included.
Images = Mapping[str, npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class Finding:
    """The result of a verification: what is wrong ("" if nothing); the largest ratio of error to bound; the
    relative Frobenius error; the share of elements that were compared individually; whether all runs gave the
    same bits (None if not checked)."""

    wrong: str
    error_over_bound: float
    relative_error: float
    coverage: float
    repeatable: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; errors that are not finite become null."""
        return {
            name: (value if not isinstance(value, float) or np.isfinite(value) else None)
            for name, value in vars(self).items()
        }


def wrong(text: str, repeatable: bool | None = None) -> Finding:
    """What is wrong though, or before, nothing was compared."""
    return Finding(text, np.inf, np.inf, 0.0, repeatable)


def changed_input(name: str) -> str:
    """What is wrong with a launch that changes an input."""
    return f"changed its input {name} or the bytes around it"


def compare(reference: Reference, out: npt.NDArray[Any]) -> Finding:
    """Compares D's view [batch, n, m] with the reference."""
    chosen = out if reference.columns is None else out[:, :, reference.columns]
    value = chosen.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(value - reference.expected)
        ratio = difference / reference.tolerance
        size = float(np.linalg.norm(reference.expected))
        relative = float(np.linalg.norm(difference)) / size if size else float(np.max(difference))
    worst = float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))
    coverage = value.size / out.size
    if not worst <= 1.0:
        bad = np.argwhere(~(ratio <= 1.0))
        at = tuple(int(i) for i in bad[0])
        column = at[2] if reference.columns is None else int(reference.columns[at[2]])
        text = (
            f"{len(bad)} of {value.size} elements are off; first D[{column},{at[1]}] of batch {at[0]}: "
            f"{value[at]:g}, expected {reference.expected[at]:g} within {reference.tolerance[at]:.3g}"
        )
        return Finding(text, worst, relative, coverage)
    if reference.projection is not None:
        check = reference.projection
        unit = DTYPES[reference.case.problem.dtype_d].unit_roundoff
        with np.errstate(invalid="ignore", over="ignore"):
            rounding = np.sqrt(chunk_sums(np.square(out.astype(np.float64)), np.ones(out.shape[2])))
            off = np.abs(chunk_sums(out, check.signs) - check.sums) / (
                check.accumulated + 6 * unit * rounding
            )
        if not np.all(off <= 1.0):
            text = "a random projection of the columns that were not compared one by one is off"
            return Finding(text, float(np.nan_to_num(off.max(), nan=np.inf)), relative, coverage)
    return Finding("", worst, relative, coverage)


@dataclass
class _Bench:
    """A case laid out on the device: its reference, the bytes of every operand before a run (`images`), the
    buffers, and the packed copy of each layout with its guard bands, as it was packed first (`copies`)."""

    reference: Reference
    images: dict[str, npt.NDArray[np.uint8]]
    buffers: dict[str, Buffer]
    copies: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict)

    def operands(self, p: GemmProblem) -> Operands:
        """The operands between their guard bands."""
        at = {name: buffer.address + p.alignment + GUARD for name, buffer in self.buffers.items()}
        return Operands.at(at, p.scalars)

    def upload(self, p: GemmProblem, images: Images) -> None:
        """Writes operands with their guard bands."""
        for name, image in images.items():
            self.buffers[name].upload(image, p.alignment)

    def changed(self, p: GemmProblem, images: Images) -> str:
        """What is wrong if an input does not hold its image any more."""
        for name, image in images.items():
            if name != "d" and not _same_bytes(self.buffers[name].download(p.alignment, image.size), image):
                return changed_input(name)
        return ""

    def free(self) -> None:
        for buffer in self.buffers.values():
            buffer.free()


class Verifier:
    """Runs candidates on cases, in buffers that timed launches never use."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: dict[tuple[str, int, str], _Bench] = {}

    def forget(self) -> None:
        """Frees the cases that are kept laid out (when the problem changes)."""
        for bench in self._kept.values():
            bench.free()
        self._kept.clear()

    def check(self, kernel: Kernel, case: Case, keep: bool = True, runs: int = 2) -> Finding:
        """Runs `kernel` (loaded for the case's problem) `runs` times and checks each result. `keep` keeps
        the case laid out for the next candidate. Exceptions of a launch propagate."""
        bench = self._kept.pop(_key(case), None) or self._make(case)
        try:
            for _ in range(runs):
                finding = self._run(kernel, case.problem, bench)
                if finding.wrong:
                    break
        except BaseException:
            bench.free()
            raise
        if keep and not finding.wrong:
            self._kept[_key(case)] = bench
        else:  # a wrong candidate may have written anywhere, so the case must be laid out again
            bench.free()
        return finding

    def lay_out(self, case: Case) -> None:
        """Computes a case's reference and keeps it laid out, ahead of the first check."""
        if _key(case) not in self._kept:
            self._kept[_key(case)] = self._make(case)

    def _make(self, case: Case) -> _Bench:
        reference, inputs = make_reference(case)
        p = case.problem
        images = {
            name: physical(layout, inputs.get(name), GUARD, layout.dtype.poison)
            for name, layout in layouts(p).items()
        }
        # Addresses have the alignment that the problem promises and no more.
        buffers = {
            name: self._device.allocate(image.size + 2 * p.alignment) for name, image in images.items()
        }
        bench = _Bench(reference, images, buffers)
        bench.upload(p, images)
        return bench

    def _run(self, kernel: Kernel, p: GemmProblem, bench: _Bench) -> Finding:
        packing = prepacked(kernel)
        if packing is None:
            return self._launched(kernel, p, bench, bench.images)
        copy = self._device.allocate(copy_bytes(packing) + 2 * GUARD)
        try:
            return self._packed(kernel, packing, p, bench, copy)
        finally:
            copy.free()

    def _packed(
        self, kernel: Kernel, packing: PrepackedKernel, p: GemmProblem, bench: _Bench, copy: Buffer
    ) -> Finding:
        """Packs the weights, then launches the product with poison in their place."""
        start, size = aligned(copy.address) - copy.address, packing.packed_bytes
        copy.upload(np.full(size + 2 * GUARD, POISON, np.uint8), start)
        address = copy.address + start + GUARD
        kernel.prepare()
        packing.pack(packing_operands(bench.operands(p), address))()
        image = copy.download(start, size + 2 * GUARD)
        if changed := bench.changed(p, bench.images):
            return wrong(f"packing {changed}")
        if np.any(np.concatenate([image[:GUARD], image[GUARD + size :]]) != POISON):
            return wrong(OUTSIDE_COPY)
        stored = {name: bench.images[name] for name in REPLACED if name in bench.images}
        hidden = {
            name: np.full(one.size, layouts(p)[name].dtype.poison, np.uint8) for name, one in stored.items()
        }
        bench.upload(p, hidden)
        finding = self._launched(kernel, p, bench, bench.images | hidden, address)
        same = _same_bytes(copy.download(start, size + 2 * GUARD), image)
        bench.upload(p, stored)
        if not same:
            return Finding(CHANGED_COPY, np.inf, finding.relative_error, finding.coverage)
        if finding.wrong and not self._launched(kernel, p, bench, bench.images, address).wrong:
            return replace(finding, wrong=READS_STORED)
        if not finding.wrong and not _same_bytes(bench.copies.setdefault(str(packing.layout), image), image):
            return wrong(other_copy(packing.layout))
        return finding

    def _launched(
        self, kernel: Kernel, p: GemmProblem, bench: _Bench, images: Images, packed: int = 0
    ) -> Finding:
        """Launches the product once and checks its result, its workspace and its inputs, which hold `images`.
        `packed`: the address of the packed copy."""
        workspace = self._device.allocate(kernel.workspace_bytes + 2 * GUARD)
        try:
            bench.buffers["d"].upload(bench.images["d"], p.alignment)
            workspace.upload(np.full(workspace.size, POISON, np.uint8))
            kernel.prepare()
            kernel.bind(replace(bench.operands(p), packed=packed), workspace.address + GUARD)()
            finding = _judge(p, bench, images)
            if not finding.wrong and _touched(workspace, kernel.workspace_bytes):
                return Finding(
                    "wrote outside its workspace", np.inf, finding.relative_error, finding.coverage
                )
            return finding
        finally:
            workspace.free()


def _key(case: Case) -> tuple[str, int, str]:
    return case.problem.id, case.seed, case.distribution


def _judge(p: GemmProblem, bench: _Bench, images: Images) -> Finding:
    if changed := bench.changed(p, images):
        return wrong(changed)
    layout = layouts(p)["d"]
    image = bench.images["d"]
    result = bench.buffers["d"].download(p.alignment, image.size)
    view = layout.view(result[GUARD : GUARD + layout.bytes].view(layout.dtype.storage))
    finding = compare(bench.reference, view)
    poison = image[:1].repeat(layout.dtype.bytes).view(layout.dtype.storage)
    view[...] = poison[0]  # the other bytes, padding and guard bands, must still be poison
    if not _same_bytes(result, image):
        return Finding("wrote outside its output", np.inf, finding.relative_error, finding.coverage)
    return finding


def _same_bytes(a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8]) -> bool:
    """Equality of two byte arrays, compared eight bytes at a time."""
    whole = a.size // 8 * 8
    words = np.array_equal(a[:whole].view(np.uint64), b[:whole].view(np.uint64))
    return words and np.array_equal(a[whole:], b[whole:])


def _touched(workspace: Buffer, size: int) -> bool:
    edges = np.concatenate([workspace.download(0, GUARD), workspace.download(GUARD + size, GUARD)])
    return bool(np.any(edges != POISON))
