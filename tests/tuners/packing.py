"""A kernel that reads a packed copy of the weights, in numpy, and what may be wrong with such a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES, to_host
from backends.kernels.prepacked import PACKED_ALIGNMENT, REPLACED
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.quantisation import dequantised, groups_of
from tests.tuners.test_verify import memory

Bytes = npt.NDArray[np.uint8]

#: Every byte of a packed copy is the stored byte with these bits flipped: no stored byte is read as packed.
FLIPPED = np.uint8(0x5A)


def stored(problem: GemmProblem, operands: Operands, names: tuple[str, ...] = REPLACED) -> Bytes:
    """The bytes of the stored weights, their scales and zero points, one operand after another."""
    shapes = layouts(problem)
    parts = [memory(getattr(operands, name), shapes[name].bytes) for name in names if name in shapes]
    return np.concatenate([np.zeros(0, np.uint8), *parts])


def packed_bytes(problem: GemmProblem) -> int:
    """Bytes of a packed copy."""
    return sum(layout.bytes for name, layout in layouts(problem).items() if name in REPLACED)


def product(problem: GemmProblem, weights: Bytes, operands: Operands) -> None:
    """The product by weights, scales and zero points that lie one after another."""
    shapes, found, at = layouts(problem), dict[str, npt.NDArray[Any]](), 0
    for name in REPLACED:
        if name in shapes:
            part = weights[at : at + shapes[name].bytes]
            found[name] = shapes[name].view(part.copy().view(shapes[name].dtype.storage))
            at += shapes[name].bytes
    scales = found["scale_a"][0].reshape(-1, groups_of(problem))
    zeros = found["zero_a"][0] if "zero_a" in found else None
    with np.errstate(invalid="ignore", over="ignore"):
        wide = dequantised(problem, found["a"][0], scales, zeros).astype(np.float32)
        b, d = (
            shapes[name].view(
                memory(getattr(operands, name), shapes[name].bytes).view(shapes[name].dtype.storage)
            )
            for name in ("b", "d")
        )
        d[0] = to_host(b[0].astype(np.float32) @ wide.T, DTYPES[problem.dtype_d])


@dataclass
class PackingKernel:
    """Right where nothing is planted. It counts its launches: those that pack, and those of the product."""

    problem: GemmProblem
    layout: str | None = "flipped"
    workspace_bytes: int = 0
    partial_sums: int = 1
    packs: int = 0
    launches: int = 0

    @property
    def packed_bytes(self) -> int:
        return packed_bytes(self.problem)

    def prepare(self) -> None:
        pass

    def copy(self, operands: Operands) -> Bytes:
        """The bytes of the packed copy."""
        assert operands.packed
        assert operands.packed % PACKED_ALIGNMENT == 0
        return memory(operands.packed, self.packed_bytes)

    def pack(self, operands: Operands) -> Launch:
        assert (operands.b, operands.c, operands.d, operands.bias) == (0, 0, 0, 0)

        def launch() -> None:
            self.packs += 1
            self.packing(operands)

        return launch

    def bind(self, operands: Operands, workspace: int) -> Launch:
        def launch() -> None:
            self.launches += 1
            self.multiply(operands)

        return launch

    def packing(self, operands: Operands) -> None:
        """What the packing launch does."""
        self.copy(operands)[...] = stored(self.problem, operands) ^ FLIPPED

    def multiply(self, operands: Operands) -> None:
        """What the product's launch does."""
        product(self.problem, self.copy(operands) ^ FLIPPED, operands)


def _writes(distance: Callable[[int], int]) -> Callable[[PackingKernel, Operands], None]:
    def act(kernel: PackingKernel, operands: Operands) -> None:
        memory(operands.packed + distance(kernel.packed_bytes), 1)[...] = 0x33

    return act


def _packs_half(kernel: PackingKernel, operands: Operands) -> None:
    kernel.copy(operands)[kernel.packed_bytes // 2 :] = 0xFF


def _packs_nothing(kernel: PackingKernel, operands: Operands) -> None:
    kernel.copy(operands)[...] = 0xFF


def _packs_a_weight_wrongly(kernel: PackingKernel, operands: Operands) -> None:
    kernel.copy(operands)[7] ^= 0xFF


def _changes(name: str) -> Callable[[PackingKernel, Operands], None]:
    def act(kernel: PackingKernel, operands: Operands) -> None:
        memory(getattr(operands, name), 1)[...] += 0x11

    return act


def _reads_stored(name: str) -> Callable[[PackingKernel, Operands], None]:
    """One of the operands comes from where it is stored, the others from the copy."""

    def act(kernel: PackingKernel, operands: Operands) -> None:
        shapes, mixed = layouts(kernel.problem), kernel.copy(operands) ^ FLIPPED
        at = sum(shapes[one].bytes for one in REPLACED[: REPLACED.index(name)])
        mixed[at : at + shapes[name].bytes] = stored(kernel.problem, operands, (name,))
        product(kernel.problem, mixed, operands)

    return act


#: What a packing launch does beyond packing -> what a verifier says of it.
PACKING_FAULTS: Mapping[str, tuple[Callable[[PackingKernel, Operands], None], str]] = {
    "packs before the copy": (_writes(lambda size: -1), "wrote outside its packed copy"),
    "packs beyond the copy": (_writes(lambda size: size), "wrote outside its packed copy"),
    "packs far beyond the copy": (_writes(lambda size: size + 4095), "wrote outside its packed copy"),
    "packs half": (_packs_half, "elements are off; first D["),
    "packs nothing": (_packs_nothing, "elements are off; first D["),
    "packs a weight wrongly": (_packs_a_weight_wrongly, "elements are off; first D["),
    "packing changes the weights": (_changes("a"), "packing changed its input a or the bytes around it"),
    "packing changes the scales": (_changes("scale_a"), "packing changed its input scale_a or the bytes"),
    "packing changes the zero points": (_changes("zero_a"), "packing changed its input zero_a or the bytes"),
}
#: What a product's launch does besides, or in its place -> what a verifier says of it.
PRODUCT_FAULTS: Mapping[str, tuple[Callable[[PackingKernel, Operands], None], str]] = {
    "reads the stored weights": (_reads_stored("a"), "reads the stored weights, not its packed copy"),
    "reads the stored scales": (_reads_stored("scale_a"), "reads the stored weights, not its packed copy"),
    "reads the stored zero points": (
        _reads_stored("zero_a"),
        "reads the stored weights, not its packed copy",
    ),
    "changes its copy": (_changes("packed"), "changed its packed copy or the bytes around it"),
    "writes before its copy": (_writes(lambda size: -1), "changed its packed copy or the bytes around it"),
    "writes beyond its copy": (_writes(lambda size: size), "changed its packed copy or the bytes around it"),
    "changes the stored weights": (_changes("a"), "changed its input a or the bytes around it"),
    "changes the stored scales": (_changes("scale_a"), "changed its input scale_a or the bytes around it"),
    "changes the activations": (_changes("b"), "changed its input b or the bytes around it"),
}


@dataclass
class FaultyKernel(PackingKernel):
    """A kernel with a fault of PACKING_FAULTS or PRODUCT_FAULTS planted."""

    fault: str = ""

    def packing(self, operands: Operands) -> None:
        super().packing(operands)
        if self.fault in PACKING_FAULTS:
            PACKING_FAULTS[self.fault][0](self, operands)

    def multiply(self, operands: Operands) -> None:
        super().multiply(operands)
        if self.fault in PRODUCT_FAULTS:
            PRODUCT_FAULTS[self.fault][0](self, operands)


@dataclass
class OtherCopyKernel(PackingKernel):
    """Its copy is larger by a byte that nobody reads: the number of the packing launch, or `mark`."""

    mark: int | None = None

    @property
    def packed_bytes(self) -> int:
        return packed_bytes(self.problem) + 1

    def packing(self, operands: Operands) -> None:
        copy = self.copy(operands)
        copy[:-1] = stored(self.problem, operands) ^ FLIPPED
        copy[-1] = self.packs if self.mark is None else self.mark

    def multiply(self, operands: Operands) -> None:
        product(self.problem, self.copy(operands)[:-1] ^ FLIPPED, operands)
