"""Packed copies of weights: for candidates that read one in place of the weights as they are stored
(backends/kernels/prepacked.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from backends.kernels.prepacked import PACKED_ALIGNMENT, REPLACED
from backends.operands import Operands
from backends.outcome import Outcome
from backends.protocol import Device, Kernel, PrepackedKernel

#: Rounds over all copies in which packing is timed; the fastest counts. The first wakes the device.
PACKING_ROUNDS = 4
#: The evidence that says what a candidate's packed copy costs.
PACKING = "packing"
#: What a verifier says of a product that needs the stored weights, which were poison when it ran.
READS_STORED = "reads the stored weights, not its packed copy"
CHANGED_COPY = "changed its packed copy or the bytes around it"
OUTSIDE_COPY = "wrote outside its packed copy"


def prepacked(kernel: Kernel) -> PrepackedKernel | None:
    """The kernel, if it reads a packed copy."""
    return kernel if isinstance(kernel, PrepackedKernel) and kernel.layout is not None else None


def packing_operands(operands: Operands, packed: int) -> Operands:
    """The operands of a packing launch that writes its copy to `packed`: a program that loads its weights has
    no others yet, so these are 0."""
    there = {name: getattr(operands, name) for name in REPLACED}
    return Operands(b=0, c=0, d=0, bias=0, alpha=operands.alpha, beta=operands.beta, packed=packed, **there)


def aligned(address: int) -> int:
    """The first address from `address` on where a packed copy may begin."""
    return -(-address // PACKED_ALIGNMENT) * PACKED_ALIGNMENT


def copy_bytes(kernel: PrepackedKernel, count: int = 1) -> int:
    """Bytes to allocate for so many packed copies, each at an aligned address."""
    return count * aligned(kernel.packed_bytes) + PACKED_ALIGNMENT


class PackedCopies:
    """Packed copies in one layout: one of each of the given operand sets, so that timed launches that rotate
    among the sets read cold copies. Candidates of the layout share them: their contents are equal."""

    def __init__(
        self, device: Device, kernel: Kernel, packing: PrepackedKernel, sets: Sequence[Operands]
    ) -> None:
        """Allocates the copies and packs them. Raises DeviceMemoryExceeded, LaunchError."""
        self.bytes = packing.packed_bytes
        self._device, self._sets = device, sets
        self._buffer = device.allocate(copy_bytes(packing, len(sets)))
        first, apart = aligned(self._buffer.address), aligned(self.bytes)
        self.addresses = [first + number * apart for number in range(len(sets))]
        try:
            self.seconds = self.time(kernel, packing)
        except BaseException:
            self._buffer.free()
            raise

    def time(self, kernel: Kernel, packing: PrepackedKernel) -> float:
        """Packs every copy by a candidate's own packing kernel, a few times. Returns the seconds of packing
        one, launched by the host: the least of the rounds. Raises LaunchError."""
        at = zip(self._sets, self.addresses, strict=True)
        launches = [packing.pack(packing_operands(one, address)) for one, address in at]
        series = self._device.series(kernel, launches, "eager", launches[-1:])
        try:
            return min(series.sample().seconds for _ in range(PACKING_ROUNDS))
        finally:
            series.close()

    def free(self) -> None:
        """Frees the memory."""
        self._buffer.free()


@dataclass(frozen=True)
class PackingCost:
    """What a candidate's packed copy costs beside its launches: the layout's name, the bytes of the copy, and
    the microseconds that packing takes, once for all launches. Raises ValueError for values that cannot
    be."""

    layout: str
    bytes: int
    us: float

    def __post_init__(self) -> None:
        if not isinstance(self.layout, str):
            raise ValueError(f"a packed copy's layout must be a text, not {self.layout!r}")
        if isinstance(self.bytes, bool) or not isinstance(self.bytes, int) or self.bytes < 1:
            raise ValueError(f"a packed copy's bytes must be an integer above 0, not {self.bytes!r}")
        if isinstance(self.us, bool) or not isinstance(self.us, int | float) or not 0 <= self.us < inf:
            raise ValueError(f"packing must take a number of microseconds from 0, not {self.us!r}")

    @classmethod
    def of(cls, packing: PrepackedKernel, seconds: float) -> PackingCost:
        """That of a kernel that reads a packed copy, which took so many seconds to write."""
        return cls(str(packing.layout), packing.packed_bytes, round(seconds * 1e6, 3))

    @classmethod
    def within(cls, outcome: Outcome | None) -> PackingCost | None:
        """What an outcome's evidence says; None without an outcome or a packed copy."""
        found = None if outcome is None else outcome.evidence.get(PACKING)
        return None if found is None else cls.from_dict(found)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; from_dict() is the inverse."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PackingCost:
        """Raises TypeError or ValueError for a malformed record."""
        return cls(**values)


def other_copy(layout: str | None) -> str:
    """What a verifier says of a packed copy that differs from that of an earlier run or kernel."""
    return f"packed other bytes than an earlier run, or another kernel, of layout {layout}"
