"""A row of a table, ready to be launched on torch's tensors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gemmtune.errors import LaunchError
from gemmtune.torch.any_product import AnyProduct
from gemmtune.torch.layouts import OPEN_SCALAR, Product
from gemmtune.torch.native_rows import NativeRow
from gemmtune.torch.precision import fp32_compute
from gemmtune.torch.runtime import Runtime

if TYPE_CHECKING:
    from gemmtune.launch import PreparedLaunch
    from gemmtune.row import Row

#: The order in which callers give addresses: the canonical (column-major) operands, so that "a" is the call's
#: second operand. A packed copy of weights stands in the place of a.
ORDER = ("packed", "a", "b", "d", "c", "bias", "scale_a", "scale_b", "scale_d", "zero_a", "offsets")


class Owner(Protocol):
    """What a row needs of the table that serves it."""

    runtime: Runtime
    #: The C++ extension, None where Python launches rows.
    extension: Any

    def differs(self, row: Row) -> bool:
        """Whether the row has to be raced before it is used."""

    def kernel(self, row: Row, index: int) -> Any | None:
        """The row's kernel on a device, loaded once; see TunedRow.prepare()."""


class _PerThread(threading.local):
    """Launches, by device: an argument block is patched at every call, so that threads have their own."""

    def __init__(self) -> None:
        self.launches: dict[int, PreparedLaunch] = {}


class TunedRow:
    """One row. It is live until its launch fails, or until a race finds it slower than torch."""

    __slots__ = (
        "_blocks", "_live", "_local", "_permutation", "_prepared", "_served", "alignment_mask",
        "deterministic", "fp32", "layout", "native", "on_gpu", "packed_bytes", "pending", "product", "row",
        "runtime", "weaker", "workspace_alignment", "workspace_bytes",
    )  # fmt: skip

    def __init__(self, served: Owner, row: Row, product: AnyProduct) -> None:
        self._served, self.row = served, row
        #: Of which kind, what found the row knows.
        self.product: Any = product
        self.runtime: Runtime = served.runtime
        self.on_gpu = served.runtime.type == "cuda"
        canonical: Mapping[str, Any] = row.canonical
        self.alignment_mask = int(canonical["alignment"]) - 1
        self.deterministic = row.deterministic is True
        #: The layout of the packed copy that a launch reads, and its bytes; None and 0 for weights as stored.
        self.layout = None if row.packing is None else row.packing.layout
        self.packed_bytes = 0 if row.packing is None else row.packing.bytes
        #: Whether torch's setting of fp32 products decides if the row applies.
        self.fp32 = product.dtype == torch.float32
        #: Whether a race has to decide first if the row is faster than torch here.
        self.pending = served.differs(row)
        #: The row of the C++ extension, where that is in use: it has torch's own products alone.
        self.native = (
            None
            if served.extension is None or not isinstance(product, Product)
            else NativeRow(served.extension, product, self.alignment_mask, self.deterministic)
        )
        self.live = not self.pending
        #: The next row of the same product: for a weaker alignment, or another compute type.
        self.weaker: TunedRow | None = None
        self.workspace_bytes, self.workspace_alignment = 0, 16
        self._local = _PerThread()
        self._blocks = 0
        #: Devices on which the C++ extension launches the row.
        self._prepared: set[int] = set()
        self._permutation: tuple[int, ...] | None = None

    @property
    def live(self) -> bool:
        """Whether the row may be used."""
        return self._live

    @live.setter
    def live(self, live: bool) -> None:
        self._live = live
        if self.native is not None:
            self.native.set_live(live)

    def applies(self, addresses: int) -> TunedRow | None:
        """This row, or the next one of the product, if it may serve a call now; `addresses` are all of the
        call's addresses, or-ed."""
        one: TunedRow | None = self
        while one is not None:
            if (
                one._live
                and not addresses & one.alignment_mask
                and (one.deterministic or not torch.are_deterministic_algorithms_enabled())
                and (not one.fp32 or fp32_compute(one.runtime.type) == (one.product.compute or "fp32"))
            ):
                return one
            one = one.weaker
        return None

    def launch(self, index: int, addresses: tuple[int, ...], beta: float | None = None) -> bool:
        """Launches on torch's current stream of device `index`, with addresses in the order of ORDER, those
        that the product lacks left out. `beta` is given where the row leaves it open. False if it could not:
        nothing was computed."""
        if self.runtime.several:
            with self.runtime.guard(index):
                return self._launch(index, addresses, beta)
        return self._launch(index, addresses, beta)

    def _launch(self, index: int, addresses: tuple[int, ...], beta: float | None) -> bool:
        try:
            launch = self._local.launches.get(index) or self.prepare(index)
            if launch is None:
                return False
            if self.native is not None and (status := self.native.failed):
                raise launch.failure(status)
            if beta is not None:
                launch.set_scalars(beta=beta)
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

    def pack(self, index: int, addresses: Mapping[str, int]) -> None:
        """Packs weights on torch's current stream of device `index`: the addresses of the stored tensors (a,
        scale_a, zero_a) and of the copy (packed). Raises LaunchError."""
        if self.runtime.capture(self.runtime.stream(index)) != 0:
            raise LaunchError(
                f"a graph is being captured, which would pack the weights of {self.name} at each replay and "
                "not now: pack them before the capture"
            )
        kernel = self._served.kernel(self.row, index)
        if kernel is None:
            raise LaunchError(
                f"the kernel of {self.name} cannot be loaded: the device is of another class than the table's"
            )
        given = tuple(addresses[name] for name in kernel.packing_operands)
        kernel.check_packing(given)
        with self.runtime.guard(index):
            kernel.prepare_packing()(self.runtime.stream(index), 0, given)

    def forget(self) -> None:
        """Loads again at the next launch: kernels stay with the process that loaded them."""
        if self.native is not None:
            self.native.forget()
            self._prepared.clear()
        self._local = _PerThread()

    def prepare(self, index: int) -> PreparedLaunch | None:
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
        launch: PreparedLaunch = kernel.prepare(**dict.fromkeys(kernel.scalars, OPEN_SCALAR))
        self._local.launches[index] = launch
        self._blocks += 1
        if self.native is not None and not kernel.scalars and index not in self._prepared:
            self._prepared.add(index)
            self.native.prepare(index, kernel, self.runtime.stream_function or 0)
            self._blocks += 1
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
    def block_bytes(self) -> int:
        """Bytes of the argument blocks that were made, of every thread and device, and of the extension's."""
        return self._blocks * sum(len(launch.template) for launch in self.row.launches)

    @property
    def name(self) -> str:
        """The row's problem and solution."""
        return f"{self.row.problem_id} ({self.row.solution.id})"
