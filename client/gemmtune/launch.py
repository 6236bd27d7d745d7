"""Launches a row's kernels: argument blocks are packed once, and a launch patches the addresses in them.

A launch allocates nothing and waits for nothing, so that a graph can capture it.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gemmtune.description import FORMATS, SCALARS, TENSOR_MAP, WORKSPACE, Fill, LaunchDescription
from gemmtune.device import DeviceClass
from gemmtune.drivers import Driver, open_driver, process
from gemmtune.drivers.protocol import Bound
from gemmtune.errors import BundleError, LaunchError
from gemmtune.row import Operand, Row

#: An argument block starts at a multiple of so many bytes: tensor maps are encoded in place.
_BLOCK_ALIGNMENT = 128


class OpenTable:
    """A table on one device, which loads kernels as they are asked for. Threads may share it."""

    def __init__(self, device: DeviceClass, requires_driver: int | None, ordinal: int = 0) -> None:
        """Opens the device. Raises LaunchError if it is of another class, or its driver is too old."""
        self.driver: Driver = open_driver(device.vendor, ordinal)
        if self.driver.device != device:
            raise LaunchError(
                f"the bundle is for {device}, this device is {self.driver.device}: launches and verdicts "
                "hold for one class only; export a bundle of this one"
            )
        version = self.driver.version
        if requires_driver is not None and version is not None and version < requires_driver:
            raise LaunchError(
                f"the bundle's kernels need a driver of CUDA {_version(requires_driver)}; this one knows "
                f"{_version(version)}: update the driver"
            )
        self._owner = process.current
        self._lock = threading.Lock()
        self._kernels: dict[tuple[str, Any], Kernel] = {}

    def make_current(self) -> None:
        """Makes the device current on this thread. Threads that launch on several devices call it before they
        launch on another one; prepare() does it for a thread that has no current device. A thread of HIP has
        device 0 from its start: it calls this before it launches on another one."""
        self.driver.make_current()

    def kernel(self, row: Row) -> Kernel:
        """The row's kernel, loaded at the first call. Loading may wait for the device, so that it belongs
        before a graph's capture. Raises LaunchError, also for binaries that cannot be read."""
        process.check(self._owner)
        with self._lock:
            place = (row.bundle.digest, row.key)
            if place not in self._kernels:
                self._kernels[place] = Kernel(row, self.driver)
            return self._kernels[place]


class Kernel:
    """A row's loaded kernels. `operands` are the names of the addresses that a launch takes, in order;
    `alignments` are the bytes of which each address must be a multiple. `scalars` are those of alpha and beta
    that the problem leaves open. `layout` is that of the packed copy which a launch reads as "packed", of
    `packed_bytes` bytes; None and 0 for weights as they are stored. prepare_packing() writes the copy."""

    def __init__(self, row: Row, driver: Driver) -> None:
        self.row = row
        self.operands: tuple[str, ...] = tuple(row.operands)
        self.alignments: tuple[int, ...] = tuple(one.alignment for one in row.operands.values())
        self.workspace_bytes, self.workspace_alignment = row.workspace_bytes, row.workspace_alignment
        fills = {fill.name for launch in row.launches for fill in launch.fills}
        self.scalars: tuple[str, ...] = tuple(name for name in SCALARS if name in fills)
        packing = row.packing
        self.layout = None if packing is None else packing.layout
        self.packed_bytes = 0 if packing is None else packing.bytes
        #: The names of the addresses that the packing launch takes, in order; none without one.
        self.packing_operands: tuple[str, ...] = () if packing is None else tuple(packing.operands)
        self.driver, self._owner = driver, process.current
        partition = row.bundle.environments[row.environment].get("partition")
        if isinstance(partition, str) and partition:
            driver.check_partition(partition)
        #: The loaded kernels, as the driver has them, in the order of row.launches.
        self.functions: list[Any] = [self._loaded(launch) for launch in row.launches]
        self._packing = None if packing is None else self._loaded(packing.launch)

    def _loaded(self, launch: LaunchDescription) -> Any:
        try:
            return self.driver.load(launch, self.row.bundle.binary)
        except BundleError as error:
            raise LaunchError(f"{self.row.solution.id} cannot be loaded: {error}") from error

    def prepare(self, alpha: float | None = None, beta: float | None = None) -> PreparedLaunch:
        """The argument blocks of one thread, which calls this and then launches. alpha and beta are given
        exactly where `scalars` names them. Raises LaunchError."""
        process.check(self._owner)
        given = {name: value for name, value in (("alpha", alpha), ("beta", beta)) if value is not None}
        if set(given) != set(self.scalars):
            wanted, found = " and ".join(self.scalars) or "no scalar", " and ".join(given) or "none"
            raise LaunchError(f"{self.row.problem_id} takes {wanted}; given: {found}")
        self.driver.ensure_current()
        row = self.row
        return PreparedLaunch(row, row.launches, row.operands, self.functions, self.driver, given)

    def prepare_packing(self) -> PreparedLaunch:
        """The launch that packs the weights, for one thread: launch(stream, 0, addresses), with addresses in
        the order of `packing_operands`. The copy is whole when the stream has come so far. Raises LaunchError
        for a kernel that reads weights as they are stored."""
        process.check(self._owner)
        packing = self.row.packing
        if packing is None:
            raise LaunchError(f"{self.row.solution.id} reads weights as they are stored: nothing is packed")
        self.driver.ensure_current()
        launches, functions = (packing.launch,), (self._packing,)
        return PreparedLaunch(self.row, launches, packing.operands, functions, self.driver, {})

    def check(self, workspace: int, addresses: Sequence[int]) -> None:
        """Checks addresses as a launch does not: their number, and the bytes of which each is a multiple.
        Raises LaunchError."""
        _check_addresses(addresses, self.row.operands)
        if self.workspace_bytes and (workspace == 0 or workspace % self.workspace_alignment):
            raise LaunchError(
                f"the workspace ({self.workspace_bytes} bytes) is at {workspace:#x}; it must be at a "
                f"multiple of {self.workspace_alignment} bytes"
            )

    def check_packing(self, addresses: Sequence[int]) -> None:
        """The same of the addresses of the launch that packs the weights. Raises LaunchError."""
        packing = self.row.packing
        _check_addresses(addresses, {} if packing is None else packing.operands)


class PreparedLaunch:
    """launch(stream, workspace, addresses) queues a row's kernels on a stream. Belongs to one thread: its
    argument blocks are written at each call, and read by the driver before the call returns.

    `addresses` are device addresses in the order of Kernel.operands, or of Kernel.packing_operands for the
    launch that packs weights. They are not checked: Kernel.check() does that. The workspace may be 0 where
    workspace_bytes is. Raises LaunchError.
    """

    __slots__ = ("_addresses", "_blocks", "_bound", "_driver", "_maps", "_operands", "_owner", "_places",
                 "_row", "_runs", "_scalars", "_stream", "_workspace")  # fmt: skip

    def __init__(
        self, row: Row, launches: Sequence[LaunchDescription], operands: Iterable[str],
        functions: Sequence[Any], driver: Driver, scalars: Mapping[str, float],
    ) -> None:  # fmt: skip
        self._row, self._driver, self._owner = row, driver, process.current
        self._operands = tuple(operands)
        self._blocks = [_Block(launch.template) for launch in launches]
        order = {name: number for number, name in enumerate((*self._operands, WORKSPACE))}
        #: (words of a block, index of the word, index of the address, bytes to add)
        self._places: list[tuple[memoryview, int, int, int]] = []
        #: (function that encodes a map, index of its address, bytes to add)
        self._maps: list[tuple[Callable[[int], int], int, int]] = []
        #: alpha or beta -> (block, offset, type) of its places.
        self._scalars: dict[str, list[tuple[_Block, int, str]]] = {name: [] for name in scalars}
        for launch, function, block in zip(launches, functions, self._blocks, strict=True):
            own = driver.values(function)
            for fill in launch.fills:
                self._place(fill, block, order, own)
        self.set_scalars(**scalars)
        self._bound: list[Bound] = [
            driver.bind(function, launch, block.address)
            for function, launch, block in zip(functions, launches, self._blocks, strict=True)
        ]
        self._runs: list[Callable[[], int]] = [bound.run for bound in self._bound]
        self._stream, self._workspace = 0, -1
        self._addresses: tuple[int, ...] = ()

    def _place(self, fill: Fill, block: _Block, order: Mapping[str, int], own: Mapping[str, float]) -> None:
        if fill.type == TENSOR_MAP and fill.tensor_map is not None:
            encode = self._driver.encoder(fill.tensor_map, block.address + fill.offset)
            self._maps.append((encode, order[fill.name], fill.plus))
        elif fill.name in order:
            self._places.append((block.words, fill.offset // 8, order[fill.name], fill.plus))
        elif fill.name in self._scalars:
            self._scalars[fill.name].append((block, fill.offset, fill.type))
        else:
            block.write(fill.offset, fill.type, own[fill.name])

    def set_scalars(self, **scalars: float) -> None:
        """Sets alpha or beta of the launches from now on, by name; Kernel.scalars has the names. Raises
        LaunchError for another one."""
        for name, value in scalars.items():
            if name not in self._scalars:
                raise LaunchError(f"{self._row.problem_id} has a fixed {name}")
            for block, offset, kind in self._scalars[name]:
                block.write(offset, kind, value)

    def __call__(self, stream: int, workspace: int, addresses: tuple[int, ...]) -> None:
        """Queues the kernels."""
        if self._owner != process.current:
            process.check(self._owner)
        if addresses != self._addresses or workspace != self._workspace:
            self._patch(workspace, addresses)
        if stream != self._stream:
            for bound in self._bound:
                bound.move(stream)
            self._stream = stream
        for run in self._runs:
            status = run()
            if status:
                raise self.failure(status)

    def _patch(self, workspace: int, addresses: tuple[int, ...]) -> None:
        if len(addresses) != len(self._operands):
            names = ", ".join(self._operands)
            raise LaunchError(f"{len(addresses)} addresses; the operands are {names}")
        values = (*addresses, workspace)
        for words, index, which, plus in self._places:
            words[index] = values[which] + plus
        if self._maps:
            self._encode(values)
        self._addresses, self._workspace = tuple(addresses), workspace

    def _encode(self, values: tuple[int, ...]) -> None:
        """Encodes the maps whose address is another one than before."""
        before = (*self._addresses, self._workspace) if self._addresses else None
        self._addresses = ()  # until every map is encoded
        for encode, which, plus in self._maps:
            if before is None or before[which] != values[which]:
                status = encode(values[which] + plus)
                if status:
                    raise LaunchError(
                        f"cuTensorMapEncodeTiled at {values[which] + plus:#x} ({self._row.solution.id}): "
                        f"{self._driver.describe(status)}"
                    )

    def failure(self, status: int) -> LaunchError:
        """The error of a launch's status."""
        return LaunchError(
            f"{self._row.launched_by} of {self._row.solution.id}: {self._driver.describe(status)}"
        )


class _Block:
    """The bytes of one launch's arguments, at an aligned host address."""

    __slots__ = ("address", "memory", "start", "words")

    def __init__(self, template: bytes) -> None:
        size = -(-len(template) // 8) * 8
        self.memory = (ctypes.c_ubyte * (size + _BLOCK_ALIGNMENT))()
        base = ctypes.addressof(self.memory)
        self.address = -(-base // _BLOCK_ALIGNMENT) * _BLOCK_ALIGNMENT
        self.start = self.address - base
        ctypes.memmove(self.address, template, len(template))
        self.words = memoryview(self.memory).cast("B")[self.start : self.start + size].cast("Q")

    def write(self, offset: int, kind: str, value: float) -> None:
        """Writes a number of a C type."""
        number = value if kind in ("float", "double") else int(value)
        struct.pack_into("<" + FORMATS[kind], self.memory, self.start + offset, number)


def _check_addresses(addresses: Sequence[int], operands: Mapping[str, Operand]) -> None:
    if len(addresses) != len(operands):
        raise LaunchError(f"{len(addresses)} addresses; the operands are {', '.join(operands)}")
    for address, one in zip(addresses, operands.values(), strict=True):
        if address == 0 or address % one.alignment:
            raise LaunchError(
                f"{one.name} is at {address:#x}; it must be at a multiple of {one.alignment} bytes"
            )


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
