"""A row of a table, ready to be launched on torch's tensors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from gemmtune.errors import LaunchError
from gemmtune.torch.layouts import Product
from gemmtune.torch.precision import fp32_compute
from gemmtune.torch.runtime import Runtime

if TYPE_CHECKING:
    from gemmtune.row import Row
    from gemmtune.torch.served import Served

#: The order in which callers give addresses: the canonical (column-major) operands, so that "a" is the call's
#: second operand.
ORDER = ("a", "b", "d", "c", "bias", "scale_a", "scale_b")


class _PerThread(threading.local):
    """Launches, by device: an argument block is patched at every call, so that threads have their own."""

    def __init__(self) -> None:
        self.launches: dict[int, Callable[[int, int, tuple[int, ...]], None]] = {}


class TunedRow:
    """One row. It is live until its launch fails, or until a race finds it slower than torch."""

    __slots__ = (
        "_local", "_permutation", "_served", "alignment_mask", "deterministic", "fp32", "live", "on_gpu",
        "pending", "product", "row", "runtime", "weaker", "workspace_alignment", "workspace_bytes",
    )  # fmt: skip

    def __init__(self, served: Served, row: Row, product: Product) -> None:
        self._served, self.row, self.product = served, row, product
        self.runtime: Runtime = served.runtime
        self.on_gpu = served.runtime.type == "cuda"
        canonical: Mapping[str, Any] = row.canonical
        self.alignment_mask = int(canonical["alignment"]) - 1
        self.deterministic = row.deterministic is True
        #: Whether torch's setting of fp32 products decides if the row applies.
        self.fp32 = product.dtype == torch.float32
        #: Whether a race has to decide first if the row is faster than torch here.
        self.pending = served.differs(row)
        self.live = not self.pending
        #: The next row of the same product: for a weaker alignment, or another compute type.
        self.weaker: TunedRow | None = None
        self.workspace_bytes, self.workspace_alignment = 0, 16
        self._local = _PerThread()
        self._permutation: tuple[int, ...] | None = None

    def applies(self, addresses: int) -> TunedRow | None:
        """This row, or the next one of the product, if it may serve a call now; `addresses` are all of the
        call's addresses, or-ed."""
        one: TunedRow | None = self
        while one is not None:
            if (
                one.live
                and not addresses & one.alignment_mask
                and (one.deterministic or not torch.are_deterministic_algorithms_enabled())
                and (not one.fp32 or fp32_compute(one.runtime.type) == (one.product.compute or "fp32"))
            ):
                return one
            one = one.weaker
        return None

    def launch(self, index: int, addresses: tuple[int, ...]) -> bool:
        """Launches on torch's current stream of device `index`, with addresses in the order of ORDER, those
        that the product lacks left out. False if it could not: nothing was computed."""
        if self.runtime.several:
            with self.runtime.guard(index):
                return self._launch(index, addresses)
        return self._launch(index, addresses)

    def _launch(self, index: int, addresses: tuple[int, ...]) -> bool:
        try:
            launch = self._local.launches.get(index) or self.prepare(index)
            if launch is None:
                return False
            stream = self.runtime.stream(index)
            if self._permutation is not None:
                addresses = tuple(addresses[one] for one in self._permutation)
            if self.workspace_bytes:
                at, _held = self.runtime.workspace(
                    index, stream, self.workspace_bytes, self.workspace_alignment
                )
                launch(stream, at, addresses)
            else:
                launch(stream, 0, addresses)
        except LaunchError as error:
            self.retire(error)
            return False
        return True

    def forget(self) -> None:
        """Loads again at the next launch: kernels stay with the process that loaded them."""
        self._local = _PerThread()

    def prepare(self, index: int) -> Callable[[int, int, tuple[int, ...]], None] | None:
        """This thread's launch on a device, its binaries loaded. None for a device that the table does not
        serve, and under capture for a kernel that has not been loaded before. Raises LaunchError."""
        kernel = self._served.kernel(self.row, index)
        if kernel is None:
            return None
        names = tuple(kernel.operands)
        given = [name for name in ORDER if name in names]
        if tuple(given) != names:
            self._permutation = tuple(given.index(name) for name in names)
        self.workspace_bytes = kernel.workspace_bytes
        self.workspace_alignment = max(kernel.workspace_alignment, 1)
        launch: Callable[[int, int, tuple[int, ...]], None] = kernel.prepare()
        self._local.launches[index] = launch
        return launch

    def retire(self, error: LaunchError) -> None:
        """Leaves the product to torch from now on, and says so once."""
        if not self.live and not self.pending:
            return
        self.live = self.pending = False
        warnings.warn(
            f"gemmtune: the launch of {self.name} failed, and torch computes it from now on: {error}",
            RuntimeWarning,
            stacklevel=5,
        )

    @property
    def name(self) -> str:
        """The row's problem and solution."""
        return f"{self.row.problem_id} ({self.row.solution.id})"
