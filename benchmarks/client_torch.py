"""gemmtune.torch on the first device of this machine, with the rows of a bundle. No service is needed.

    python -m benchmarks.client_torch host BUNDLE     host time of a call: by a row, and passed on to torch
    python -m benchmarks.client_torch rows BUNDLE     every row against torch, as the client launches both
    python -m benchmarks.client_torch graphs BUNDLE   capture, replay and several streams give the same bits

`host` calls products whose device time is below the host's, and waits for the device outside of what is timed.
`rows` times graphs over rotating operands, interleaved, and compares with the speed-up that the bundle states.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gemmtune
import gemmtune.torch
import torch
from gemmtune.torch import extension
from gemmtune.torch.operands import make, torch_call
from gemmtune.torch.race import operand_sets, timed_on_cpu, timed_on_gpu
from gemmtune.torch.served import Served, acquire, linear_key, release
from gemmtune.torch.tuned_row import TunedRow

from benchmarks.cuda_tuned import machine, say
from benchmarks.report import RESULTS, geometric_mean, write

#: Calls that are timed together, and how often: the least and the median of these are reported.
_CALLS, _REPEATS = 100, 40
#: Turns of torch's call and of a miss, and repeats in a turn.
_TURNS, _TURN_REPEATS = 9, 8
#: Launches of a graph of `rows` at least, and replays of each side.
_LAUNCHES, _ROUNDS = 64, 41


def wait(device: Any) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def host_microseconds(call: Callable[[], Any], device: Any, repeats: int = _REPEATS) -> dict[str, float]:
    """Host time of a call in us."""
    times = []
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        times.append((time.perf_counter() - start) / _CALLS * 1e6)
    return {"least": min(times), "median": median(times)}


def smallest(served: Served) -> list[TunedRow]:
    """For every nn.Linear of the table with and without a bias, its row of fewest elements."""
    found: dict[Any, TunedRow] = {}
    for row in served.rows:
        key = linear_key(row.product)
        if key is None or not row.live:
            continue
        size = row.product.m * row.product.n * row.product.k
        known = found.get(key[3])
        if known is None or size < known.product.m * known.product.n * known.product.k:
            found[key[3]] = row
    return list(found.values())


def host(table: Any, device: Any) -> list[dict[str, Any]]:
    """Host time of torch's calls, by a row (hit) and passed on (miss), under apply() and under enable(): where
    Python launches rows, and where the C++ extension does, which is compiled if it is not there."""
    gemmtune.torch.build_extension()
    found = []
    for setting in ("off", "on"):
        os.environ[extension.SETTING] = setting
        extension.ask_again()
        served = acquire(table)
        try:
            with torch.no_grad():
                path = extension.path_in_use()
                found += [{"path": path, **_host(table, served, row, device)} for row in smallest(served)]
        finally:
            release(served)
    return found


def _host(table: Any, served: Served, row: TunedRow, device: Any) -> dict[str, Any]:
    p, index = row.product, device.index or 0
    key = linear_key(p)
    assert key is not None
    module = torch.nn.Linear(p.k, p.n, key[3], device=device, dtype=p.dtype).requires_grad_(False)
    miss = next(m for m in range(1, 10_000) if m not in served.linear[key])
    weight, operands = module.weight.t(), make(p, device)
    given = operands.addresses()

    def times() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind, m in (("hit", p.m), ("miss", miss)):
            x = torch.randn(m, p.k, device=device).to(p.dtype)
            calls: dict[str, Callable[[], Any]] = {
                "mm": partial(torch.mm, x, weight),
                "F.linear": partial(torch.nn.functional.linear, x, module.weight, module.bias),
                "nn.Linear": partial(module, x),
            }
            found |= {f"{name} {kind}": host_microseconds(call, device) for name, call in calls.items()}
        return found

    values: dict[str, Any] = {"torch": times()}
    with gemmtune.torch.apply(module, table):
        values["apply"] = times()
    with gemmtune.torch.enable(table):
        values["enable"] = times()
    values["torch again"] = times()
    values["added to a miss"] = _added_to_a_miss(table, key, miss, device)
    values["launch alone"] = host_microseconds(lambda: row.launch(index, given), device)
    values["torch.empty"] = host_microseconds(
        lambda: torch.empty((p.m, p.n), dtype=p.dtype, device=device), device
    )
    say(f"m={p.m} n={p.n} k={p.k} bias={key[3]}: {values}")
    return {"m": p.m, "n": p.n, "k": p.k, "bias": key[3], "miss_m": miss, **values}


def _added_to_a_miss(table: Any, key: Any, m: int, device: Any) -> dict[str, float]:
    """What a product without a row costs more, in us: torch.mm under enable(), and nn.Linear under apply(),
    each beside torch's in turns. The median of the differences, since both drift together."""
    n, k, dtype, bias = key
    x, weight = torch.randn(m, k, device=device).to(dtype), torch.randn(n, k, device=device).to(dtype).t()
    module = torch.nn.Linear(k, n, bias, device=device, dtype=dtype).requires_grad_(False)
    found = {}
    calls: list[tuple[str, Any, Callable[[], Any]]] = [
        ("enable mm", partial(gemmtune.torch.enable, table), partial(torch.mm, x, weight)),
        ("apply nn.Linear", partial(gemmtune.torch.apply, module, table), partial(module, x)),
    ]
    for name, use, call in calls:
        differences = []
        for _ in range(_TURNS):
            plain = host_microseconds(call, device, _TURN_REPEATS)["least"]
            with use():
                differences.append(host_microseconds(call, device, _TURN_REPEATS)["least"] - plain)
        found[name] = median(differences)
    return found


def rows(table: Any, device: Any) -> list[dict[str, Any]]:
    """Each row's ratio to torch as the client launches it, beside the verdict's."""
    served = acquire(table)
    found = []
    try:
        for row in served.rows:
            row.live = False  # torch's side is torch's
            p, verdict = row.product, row.row.verdict
            with torch.no_grad():
                sets = operand_sets(p, device)
                if device.type == "cuda":  # graphs that last long beside the start of a replay
                    sets *= -(-_LAUNCHES // len(sets))
                    ratio = 1 / timed_on_gpu(row, sets, _ROUNDS)
                else:
                    ratio = 1 / timed_on_cpu(row, sets)
            found.append(
                {"problem": row.row.problem_id, "solution": row.row.solution.id, "ratio": ratio,
                 "speedup": list(verdict.speedup), "baseline": verdict.baseline,
                 "of_the_verdict": ratio / verdict.speedup[1]}
            )  # fmt: skip
            say(f"{row.row.problem_id:44} {ratio:6.3f}x, verdict {verdict.speedup[1]:6.3f}x")
    finally:
        release(served)
    return found


def graphs(table: Any, device: Any) -> list[dict[str, Any]]:
    """Whether a captured row replays what it computes eagerly, and computes the same on several streams."""
    served = acquire(table)
    found = []
    try:
        served.load(served.rows, device.index or 0)
        for row in served.rows:
            if row.live:
                with torch.no_grad():
                    found.append(_replayed(row, device))
                    found[-1]["streams_equal"] = _streams_equal(row, device)
                say(str(found[-1]))
    finally:
        release(served)
    return found


def _replayed(row: TunedRow, device: Any) -> dict[str, Any]:
    p, index = row.product, device.index or 0
    first, second = make(p, device), make(p, device)
    row.launch(index, first.addresses())
    eager = first.out.clone()
    graph = torch.cuda.CUDAGraph()
    first.out.zero_()
    with torch.cuda.graph(graph):  # a stream of the capture's own: the workspace is of the graph's pool
        launched = row.launch(index, first.addresses())
    graph.replay()
    wait(device)
    replayed = first.out.clone()
    # Other values at the addresses that were captured.
    for own, other in zip((first.a, first.b, *first.added), (second.a, second.b, *second.added), strict=True):
        own.copy_(other)
    graph.replay()
    second_out = torch_call(p, second)()
    wait(device)
    error = (first.out.double() - second_out.double()).abs().max() / second_out.double().abs().max()
    return {
        "problem": row.row.problem_id, "captured": launched, "deterministic": row.deterministic,
        "replay_equal": bool(torch.equal(replayed, eager)), "distance_to_torch": float(error),
        "workspace_bytes": row.workspace_bytes,
    }  # fmt: skip


def _streams_equal(row: TunedRow, device: Any) -> bool:
    """Whether launches on four streams at once, each with its outputs, equal one launch by itself."""
    p, index = row.product, device.index or 0
    given = make(p, device)
    row.launch(index, given.addresses())
    wait(device)
    weight, a, _, *rest = given.addresses()
    streams, outputs = [torch.cuda.Stream() for _ in range(4)], []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                out = torch.empty_like(given.out)
                row.launch(index, (weight, a, out.data_ptr(), *rest))
                outputs.append(out)
    wait(device)
    return all(bool(torch.equal(one, given.out)) for one in outputs)


_WHAT: dict[str, tuple[Callable[[Any, Any], list[dict[str, Any]]], str]] = {
    "host": (
        host,
        "host time of a call in us, by the Python path (ctypes) and by the C++ extension: torch's own, by a row, "
        "passed on",
    ),
    "rows": (
        rows,
        "torch's time over the row's, both as graphs over rotating operands, beside the verdict's",
    ),
    "graphs": (graphs, "whether replays and launches on several streams give the same bits as one launch"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("which", choices=tuple(_WHAT))
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    options = parser.parse_args(arguments)
    table = gemmtune.load(options.bundle)
    vendor = table.device.vendor
    if vendor == "cpu" and options.which == "graphs":
        sys.exit("a CPU has no graphs")
    device = torch.device("cpu") if vendor == "cpu" else torch.device("cuda", 0)
    run, what = _WHAT[options.which]
    measured = run(table, device)
    figures: dict[str, Any] = {"what": what, "bundle": table.digest, "torch": str(torch.__version__)}
    if options.which == "rows":
        figures["mean_ratio"] = geometric_mean([one["ratio"] for one in measured])
        figures["mean_speedup"] = geometric_mean([one["speedup"][1] for one in measured])
    if options.which == "graphs":
        figures["unequal"] = [
            one["problem"] for one in measured if not (one["replay_equal"] and one["streams_equal"])
        ]
    environment = machine(vendor, 1)[0].environment
    write(f"client-torch-{options.which}", environment, {**figures, "rows": measured}, options.output)


if __name__ == "__main__":
    main()
