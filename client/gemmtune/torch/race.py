"""Races rows that were measured elsewhere against this process's torch, once.

A row is a verdict against the libraries that it was measured with. Where torch, cuBLAS or the driver are
others, it is off until a race has found it faster here. Results are kept on disk, by bundle and environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gemmtune.errors import LaunchError
from gemmtune.torch.any_product import AnyProduct
from gemmtune.torch.grouped import products as grouped
from gemmtune.torch.grouped import scaled as scaled_grouped
from gemmtune.torch.grouped import weights as grouped_weights
from gemmtune.torch.operands import make, torch_call
from gemmtune.torch.precision import fp32_compute
from gemmtune.torch.quantised import products as quantised
from gemmtune.torch.quantised import scaled
from gemmtune.torch.quantised.prepack import with_copy
from gemmtune.torch.served import Served
from gemmtune.torch.tuned_row import TunedRow

#: All races of one apply() or enable() together. What is left then stays off until the next one.
SECONDS = 3.0
#: A row is used if it takes at most so much of torch's time.
MOST = 0.99
#: Operands are rotated over so many bytes, so that no cache holds them; at most so many sets.
_BYTES, _SETS = 192 * 2**20, 32
_ROUNDS, _CPU_ROUNDS = 7, 5
_CPU_BYTES = 64 * 2**20


def race_rows(
    served: Served, rows: Iterable[TunedRow], allowed: bool, index: int = 0, seconds: float = SECONDS
) -> None:
    """Decides the rows that are pending, on device `index`: on where they are faster than torch, else off.
    The rows with the most to gain are raced first. Rows that cannot be timed now stay pending, and off.
    Without `allowed`, all of them do."""
    pending = [row for row in rows if row.pending]
    if not pending or not allowed:
        return
    file = _file(served)
    known = _read(file)
    raced = {}
    end = time.monotonic() + seconds
    for row in sorted(pending, key=lambda one: -_gain(one)):
        share = known.get(row.name)
        if share is None and time.monotonic() < end:
            share = _raced(served, row, index)
            if share is not None:
                raced[row.name] = share
        if share is not None:
            row.pending, row.live = False, share <= MOST
    if raced:
        _write(file, {**known, **raced})


def _gain(row: TunedRow) -> float:
    verdict = row.row.verdict
    return verdict.baseline_seconds - verdict.seconds


def _raced(served: Served, row: TunedRow, index: int) -> float | None:
    """The row's time over torch's; None if there is none: torch computes fp32 products otherwise now, has no
    such call or no memory for it, or the row cannot be launched."""
    p = row.product
    if p.dtype == torch.float32 and fp32_compute(served.runtime.type) != (p.compute or "fp32"):
        return None
    gpu = served.runtime.type == "cuda"
    device = torch.device("cuda", index) if gpu else torch.device("cpu")
    try:
        with served.runtime.guard(index), torch.no_grad():
            sets = operand_sets(p, device)
            return timed_on_gpu(row, sets) if gpu else timed_on_cpu(row, sets)
    except _NotLaunched:  # a launch that failed has said so
        return None
    except (RuntimeError, ValueError) as error:  # torch's; one of them is OutOfMemoryError
        warnings.warn(
            f"gemmtune: {row.name} cannot be raced against torch, and stays off: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def operand_sets(p: AnyProduct, device: Any) -> list[Any]:
    """Operands to rotate over: at least two sets, and together more than a cache holds."""
    first = _make(p, device)
    most = _BYTES if device.type == "cuda" else _CPU_BYTES
    count = min(_SETS, max(2, most // max(first.bytes, 1)))
    return [first, *(_make(p, device) for _ in range(count - 1))]


def _make(p: AnyProduct, device: Any) -> Any:
    if isinstance(p, scaled.ScaledProduct):
        return scaled.make(p, device)
    if isinstance(p, quantised.WeightProduct):
        return quantised.make(p, device)
    if isinstance(p, scaled_grouped.ScaledGroupedProduct):
        return scaled_grouped.make(p, device)
    if isinstance(p, grouped_weights.GroupedWeightProduct):
        return grouped_weights.make(p, device)
    return grouped.make(p, device) if isinstance(p, grouped.GroupedProduct) else make(p, device)


class _NotLaunched(Exception):
    """The row cannot be launched here."""


def _sides(row: TunedRow, sets: Sequence[Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    """One pass over all operands, by the row and by torch. The row is not live meanwhile, so that torch's
    calls are torch's."""
    index = sets[0].a.device.index or 0
    p = row.product
    if isinstance(p, quantised.WeightProduct):
        calls = [quantised.torch_call(p, one) for one in sets]
        sets = _with_copies(row, sets)
    elif isinstance(p, scaled.ScaledProduct):
        calls = [scaled.torch_call(p, one) for one in sets]
    elif isinstance(p, grouped.GroupedProduct):
        calls = [grouped.torch_call(p, one) for one in sets]
    elif isinstance(p, scaled_grouped.ScaledGroupedProduct):
        calls = [scaled_grouped.torch_call(p, one) for one in sets]
    elif isinstance(p, grouped_weights.GroupedWeightProduct):
        calls = [grouped_weights.torch_call(p, one) for one in sets]
    else:
        calls = [torch_call(p, one) for one in sets]

    def ours() -> None:
        for one in sets:
            # An output is allocated, as torch's call does.
            fresh = torch.empty_like(one.out)
            weight, given, _, *rest = one.addresses()
            if not row.launch(index, (weight, given, fresh.data_ptr(), *rest)):
                raise _NotLaunched

    def theirs() -> None:
        for call in calls:
            call()

    return ours, theirs


def _with_copies(row: TunedRow, sets: Sequence[Any]) -> Sequence[Any]:
    """Operands with the packed copies that the row reads, whose packing is not part of the time."""
    try:
        return [with_copy(row, one) for one in sets]
    except LaunchError as error:
        row.retire(error)
        raise _NotLaunched from error


def timed_on_cpu(row: TunedRow, sets: Sequence[Any]) -> float:
    """The row's time over torch's, both called by the host. Passes are interleaved."""
    sides = _sides(row, sets)
    seconds: list[list[float]] = [[], []]
    for number in range(_CPU_ROUNDS + 1):
        for side, run in enumerate(sides):
            start = time.perf_counter()
            run()
            if number:  # the first pass warms up
                seconds[side].append(time.perf_counter() - start)
    return median(seconds[0]) / median(seconds[1])


def timed_on_gpu(row: TunedRow, sets: Sequence[Any], rounds: int = _ROUNDS) -> float:
    """The row's time over torch's, both as graphs, as rows are measured: replays interleaved, timed by
    events."""
    graphs = [_captured(run) for run in _sides(row, sets)]
    times: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for side, graph in enumerate(graphs):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number:
                times[side].append(start.elapsed_time(end))
    return median(times[0]) / median(times[1])


def _captured(run: Callable[[], None]) -> Any:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # loads kernels, and lets libraries allocate what they need
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph


# ---- results on disk -----------------------------------------------------------------------------


def _file(served: Served) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    environment = json.dumps(dict(served.environment), sort_keys=True).encode()
    name = f"{served.digest[:16]}-{hashlib.sha256(environment).hexdigest()[:16]}.json"
    return Path(base) / "gemmtune" / "races" / name


def _read(file: Path) -> dict[str, float]:
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError):  # none yet, or broken: raced again
        return {}
    if not isinstance(values, dict):
        return {}
    numbers = {name: float(share) for name, share in values.items() if isinstance(share, (int, float))}
    return {name: share for name, share in numbers.items() if isfinite(share)}


def _write(file: Path, shares: dict[str, float]) -> None:
    fresh = file.with_suffix(f".{os.getpid()}")
    try:
        # The folder of bundles too, which must be this user's alone.
        file.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.parent.mkdir(exist_ok=True)
        fresh.write_text(json.dumps(shares, indent=1))
        fresh.replace(file)
    except OSError as error:
        warnings.warn(
            f"gemmtune: the results of a race cannot be kept in {file}, so that the next process races "
            f"again: {error.strerror or error}",
            RuntimeWarning,
            stacklevel=2,
        )
