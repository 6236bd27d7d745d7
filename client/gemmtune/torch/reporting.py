"""What a table did for this process: products that its rows ran, those that torch ran, and the time saved."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gemmtune.counted import counted
from gemmtune.torch import extension, watch
from gemmtune.torch.any_product import AnyProduct
from gemmtune.torch.grouped import ends
from gemmtune.torch.grouped.few_tokens_layer import FewTokens
from gemmtune.torch.served import in_use


@dataclass(frozen=True)
class Line:
    """The calls of one product. `seconds_saved` is calls times the verdict's difference: an estimate, since
    the verdict is of cold operands; 0 for what torch ran. Under a graph's capture a call is counted once,
    whatever its replays."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    extra: str
    calls: int
    hit: bool
    speedup: float | None
    seconds_saved: float

    def __str__(self) -> str:
        by = f"{self.speedup:.3f}x {self.seconds_saved * 1e3:9.3f} ms" if self.hit else "torch"
        sizes = f"{self.m:7} {self.n:7} {self.k:7} {self.batch:5}"
        return f"{sizes}  {self.dtype:10} {self.extra:5} {self.calls:8}  {by}"


@dataclass(frozen=True)
class LayerLine:
    """The calls of a layer of experts (moe()) that ran by two launches, without products. `chosen`: experts
    of a token. Under a graph's capture a call is counted once, whatever its replays."""

    tokens: int
    chosen: int
    experts: int
    hidden: int
    intermediate: int
    dtype: str
    calls: int

    def __str__(self) -> str:
        return (
            f"{counted(self.calls, 'call')} of a layer by two launches: {counted(self.tokens, 'token')}, "
            f"{self.chosen} of {counted(self.experts, 'expert')}, {self.hidden} x {self.intermediate}, "
            f"{self.dtype}"
        )


@dataclass(frozen=True)
class Memory:
    """Bytes that the tables in use hold beside a model's weights: images of the binaries that are loaded
    (each once a device), workspaces that are held between launches, and argument blocks on the host."""

    modules: int
    workspaces: int
    argument_blocks: int

    @property
    def total(self) -> int:
        """Of all three."""
        return self.modules + self.workspaces + self.argument_blocks

    def __str__(self) -> str:
        names = "modules", "workspaces", "argument blocks"
        parts = self.modules, self.workspaces, self.argument_blocks
        each = ", ".join(f"{name} {size / 2**20:.3f}" for name, size in zip(names, parts, strict=True))
        return f"{self.total / 2**20:.3f} MiB beside the weights: {each}"


@dataclass(frozen=True)
class Report:
    """The lines, those that saved most first, then those that torch ran most often. `memory` is what the
    tables in use hold now; `path` says whether Python or the C++ extension launches rows while nothing counts
    them. `wrong_ends`: ends of groups that rows read though they were negative, beyond the rows or before
    the end of the group before; rows of such groups are wrong, and no other memory is touched. `layers`:
    layers of experts that ran without products, those called most often first. `foreign_ids`: ids of experts
    that moe() left out because its layer has fewer experts."""

    lines: tuple[Line, ...]
    memory: Memory
    path: str
    wrong_ends: int = 0
    layers: tuple[LayerLine, ...] = ()
    foreign_ids: int = 0

    @property
    def hits(self) -> int:
        """Calls that rows ran."""
        return sum(line.calls for line in self.lines if line.hit)

    @property
    def misses(self) -> int:
        """Calls that torch ran."""
        return sum(line.calls for line in self.lines if not line.hit)

    @property
    def seconds_saved(self) -> float:
        """Of all lines."""
        return sum(line.seconds_saved for line in self.lines)

    def __str__(self) -> str:
        head = (
            f"{'m':>7} {'n':>7} {'k':>7} {'batch':>5}  {'type':10} {'plus':5} {'calls':>8}  by {'saved':>18}"
        )
        saved = f"about {self.seconds_saved * 1e3:.3f} ms saved"
        total = f"{counted(self.hits, 'call')} by rows, {self.misses} by torch, {saved}"
        rows = [str(line) for line in self.lines]
        tail = [*map(str, self.layers), total, str(self.memory), f"rows are launched by {self.path}"]
        if self.wrong_ends:
            what = "negative, beyond the rows, or before the end of the group before"
            ends = counted(self.wrong_ends, "end of groups was", "ends of groups were")
            tail.append(f"{ends} wrong ({what}): look at what makes offs")
        if self.foreign_ids:
            several = "ids named no expert of their layer and were"
            ids = counted(self.foreign_ids, "id named no expert of its layer and was", several)
            tail.append(f"{ids} left out: other devices' experts, or a router that is wrong")
        return "\n".join([head, *rows, *tail])


class Count:
    """Counts products while it watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[tuple[AnyProduct, Any]] = Counter()
        self._layers: Counter[FewTokens] = Counter()
        ends.prepare()
        self._ends_before, self._ids_before = ends.counted()

    def saw(self, product: AnyProduct, row: Any | None, device_type: str) -> None:
        """See Watcher."""
        with self._lock:
            self._calls[(product, row)] += 1

    def lacked(self, product: AnyProduct, device_type: str) -> None:
        """See Watcher. What ran in its place is counted."""

    def saw_layer(self, layer: FewTokens, device_type: str) -> None:
        """See Watcher."""
        with self._lock:
            self._layers[layer] += 1

    def report(self) -> Report:
        """What was counted so far. Waits for the devices."""
        with self._lock:
            calls, counted = dict(self._calls), self._layers.most_common()
        lines = [_line(product, row, count) for (product, row), count in calls.items()]
        ordered = sorted(lines, key=lambda one: (-one.seconds_saved, -one.calls, one.m))
        wrong, foreign = ends.counted()
        layers = tuple(LayerLine(*one, count) for one, count in counted)
        return Report(
            tuple(ordered), memory(), extension.path_in_use(), wrong - self._ends_before, layers,
            foreign - self._ids_before,
        )  # fmt: skip


def memory() -> Memory:
    """What the tables in use hold now."""
    held = [served.memory() for served in in_use()]
    return Memory(*(sum(part) for part in zip((0, 0, 0), *held, strict=True)))


def _line(p: AnyProduct, row: Any | None, calls: int) -> Line:
    verdict = None if row is None else row.row.verdict
    return Line(
        p.m, p.n, p.k, p.batch, p.type_name, p.extra, calls, row is not None,
        None if verdict is None else verdict.speedup[1],
        0.0 if verdict is None else calls * (verdict.baseline_seconds - verdict.seconds),
    )  # fmt: skip


@contextmanager
def report() -> Iterator[Count]:
    """Counts the products of the block: `with report() as count: ...; print(count.report())`. Products that
    torch ran are counted as far as they pass a patched module, an enabled table or an operator of ours."""
    count = Count()
    watch.add(count)
    try:
        yield count
    finally:
        watch.remove(count)
