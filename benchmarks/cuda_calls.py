"""Calls of cuBLASLt by themselves: what a launch costs the host, and which splits of k give wrong results."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from statistics import median
from typing import Any

from backends.errors import DeviceError, GemmtuneError
from backends.outcome import Outcome, Status
from backends.problem import GemmProblem, from_linear
from backends.protocol import AskedFamily, Launch
from backends.registry import FoundDevice, backend
from backends.solution import Solution
from benchmarks.cuda_tuned import kernel_cache, say
from tuners.measure import OperandSets
from tuners.owner import Task
from tuners.policy import MeasurementPolicy
from tuners.runner import DeviceRunner

#: Launches of a repetition, in bursts with a synchronisation between them that is not in the time: so few that
#: the device's queue never fills up and holds the host back.
CALLS, BURST, REPETITIONS = 2000, 200, 15
#: A problem so small that the device keeps up, and a decode shape (m, n, k of F.linear).
LAUNCHED = ((16, 64, 64), (16, 4096, 4096))
#: Problems whose splits of k are looked at (m, n, k of F.linear): decode, prefill, small k.
SPLIT = (
    (1, 4096, 4096),
    (16, 4096, 4096),
    (64, 1280, 8192),
    (512, 4096, 4096),
    (16, 4096, 256),
    (128, 1024, 128),
)
SPLIT_TYPES = ("bf16", "fp16")
SPLITS = range(1, 33)
#: cublasLtReductionScheme_t: none, in place, in the compute type, in the output type.
SCHEMES = (0, 1, 2, 4)
#: Tiles and clusters of each problem, and candidates screened in one call.
BASES, BATCH = 6, 16


# ---- launches ------------------------------------------------------------------------------------


def host_seconds(
    launch: Callable[[], object],
    synchronize: Callable[[], object],
    calls: int = CALLS,
    burst: int = BURST,
    repetitions: int = REPETITIONS,
) -> list[float]:
    """Seconds of host time a call, a value a repetition; an untimed burst goes first."""
    found = []
    for turn in range(repetitions + 1):
        spent = 0.0
        for _ in range(1 if turn == 0 else max(1, calls // burst)):
            synchronize()
            begin = time.perf_counter()
            for _ in repeat(None, burst):
                launch()
            spent += time.perf_counter() - begin
        synchronize()
        if turn:
            found.append(spent / (burst * max(1, calls // burst)))
    return found


def launches(found: FoundDevice, dtype: str) -> dict[str, Any]:
    """A stored cuBLASLt solution loaded and bound in this process, and torch.mm with out=, launched outside
    graphs."""
    device = backend(found.backend).open(found.index, kernel_cache())
    family = backend(found.backend).families()["cublaslt"]
    rows = []
    for m, n, k in LAUNCHED:
        problem = from_linear(m, n, k, dtype)
        if not isinstance(family, AskedFamily):
            raise SystemExit("the family cublaslt lists nothing")
        listed = next(iter(family.listed(problem, device, None)))
        stored = Solution.from_dict(listed.to_dict())  # as it comes out of a database
        kernel = device.load(problem, stored, None)
        sets = OperandSets(device, problem, MeasurementPolicy.of(found.environment.vendor, cache="warm"), 0)
        workspace = device.allocate(max(kernel.workspace_bytes, 1))
        bound: Launch = kernel.bind(sets.sets[0], workspace.address)
        kernel.prepare()
        size = {"m": m, "n": n, "k": k}
        rows.append({**size, "call": "cublaslt", "solution": stored.id, **_cost(bound, device.synchronize)})
        for held in (sets, workspace):
            held.free()
        if "torch" in found.environment.libraries:
            rows.append(
                {**size, "call": "torch.mm(out=)", "solution": None, **_torch(m, n, k, dtype, found.index)}
            )
    return {
        "what": "host microseconds a call from Python, outside graphs; synchronisations are not in the time",
        "dtype": dtype, "calls": CALLS, "burst": BURST, "repetitions": REPETITIONS, "rows": rows,
    }  # fmt: skip


def _torch(m: int, n: int, k: int, dtype: str, index: int) -> dict[str, float]:
    import torch  # noqa: PLC0415  (optional)

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}[
        dtype
    ]
    where = torch.device("cuda", index)
    x, w = (torch.randn(rows, k, device=where, dtype=kind) for rows in (m, n))
    y, right = torch.empty(m, n, device=where, dtype=kind), w.t()
    with torch.inference_mode():
        return _cost(lambda: torch.mm(x, right, out=y), lambda: torch.cuda.synchronize(where))


def _cost(launch: Callable[[], object], synchronize: Callable[[], object]) -> dict[str, float]:
    times = [seconds * 1e6 for seconds in host_seconds(launch, synchronize)]
    values = {"median_us": median(times), "worst_us": max(times), "best_us": min(times)}
    say(f"a launch: {values['median_us']:.2f} us (worst repetition {values['worst_us']:.2f})")
    return values


# ---- splits of k ---------------------------------------------------------------------------------


def variations(bases: Sequence[Solution], seed: int = 0) -> list[Solution]:
    """Every (split, scheme) of every base, in an order that a cut-off biases towards none of them."""
    made = [
        replace(base, parameters={**base.parameters, "splitk_num": split, "reduction_scheme": scheme})
        for base in bases
        for split in SPLITS
        for scheme in SCHEMES
    ]
    random.Random(seed).shuffle(made)
    return made


def bases_of(candidates: Iterable[Solution], algorithm: int, most: int = BASES) -> list[Solution]:
    """Candidates of an algorithm with distinct tiles and clusters: the likeliest half, the others from all
    over the list."""
    distinct: dict[tuple[Any, Any], Solution] = {}
    for solution in candidates:
        parameters = solution.parameters
        if solution.family == "cublaslt" and parameters["algo_id"] == algorithm:
            distinct.setdefault((parameters["tile_id"], parameters["cluster_shape_id"]), solution)
    found = list(distinct.values())
    first, rest = found[: (most + 1) // 2], found[(most + 1) // 2 :]
    step = max(1, len(rest) // max(1, most // 2))
    return [*first, *rest[::step][: most // 2]]


def tally(outcomes: Iterable[tuple[str, Outcome]]) -> list[dict[str, Any]]:
    """(problem, outcome) pairs by split and scheme: how many were tried, were legal, and became what; with the
    first wrong result's evidence."""
    groups: dict[tuple[int, int], list[tuple[str, Outcome]]] = defaultdict(list)
    for problem, outcome in outcomes:
        parameters = outcome.solution.parameters
        groups[int(parameters["splitk_num"] or 0), int(parameters["reduction_scheme"] or 0)].append(
            (problem, outcome)
        )
    rows = []
    for (split, scheme), pairs in sorted(groups.items()):
        counts: dict[str, int] = defaultdict(int)
        for _, outcome in pairs:
            # Verified is what counts here, however well the times agreed.
            verified = outcome.status in (Status.OK, Status.PRUNED, Status.UNSTABLE)
            counts["ok" if verified else outcome.status.value] += 1
        wrong = next(((p, o) for p, o in pairs if o.status is Status.WRONG_RESULT), None)
        rows.append(
            {"splitk_num": split, "reduction_scheme": scheme, "tried": len(pairs),
             "legal": len(pairs) - counts.get("illegal", 0), **{name: counts.get(name, 0) for name in _SHOWN},
             "other": {name: count for name, count in sorted(counts.items()) if name not in _SHOWN},
             "first_wrong": None if wrong is None else _evidence(*wrong)}
        )  # fmt: skip
    return rows


_SHOWN = ("ok", "wrong_result", "illegal", "crash")


def _evidence(problem: str, outcome: Outcome) -> dict[str, Any]:
    return {"problem": problem, "solution": outcome.solution.to_dict(), **outcome.evidence}


def splits(runner: DeviceRunner, algorithm: int, seconds: float) -> dict[str, Any]:
    """Screens (verifies and times) an algorithm's splits of k over several problems, each for its part of the
    seconds."""
    problems = [from_linear(*shape, dtype) for dtype in SPLIT_TYPES for shape in SPLIT]
    policy = MeasurementPolicy.of(runner.environment.vendor, cache="warm")
    found: list[tuple[str, Outcome]] = []
    rows: list[dict[str, Any]] = []
    begin = time.monotonic()
    for number, problem in enumerate(problems):
        until = begin + seconds * (number + 1) / len(problems)
        try:
            mine, wanted = _screened(runner, problem, policy, algorithm, until)
        except DeviceError:
            raise
        except GemmtuneError as error:
            rows.append({"problem": problem.slug, "error": str(error)})
            continue
        found += [(problem.slug, outcome) for outcome in mine]
        wrong = sum(outcome.status is Status.WRONG_RESULT for outcome in mine)
        rows.append({"problem": problem.slug, "wanted": wanted, "tried": len(mine), "wrong_result": wrong})
        say(f"{problem.slug}: {len(mine)} of {wanted} tried, {wrong} wrong")
    by = tally(found)
    return {
        "what": f"cuBLASLt's algorithm {algorithm} by split of k and reduction scheme: each configuration verified",
        "algorithm": algorithm, "seconds": seconds, "took_seconds": time.monotonic() - begin,
        "tried": len(found), "legal": sum(one["legal"] for one in by), "ok": sum(one["ok"] for one in by),
        "wrong_result": sum(one["wrong_result"] for one in by), "crash": sum(one["crash"] for one in by),
        "wrong_schemes": _wrong_by_scheme(by), "problems": rows, "rows": by,
    }  # fmt: skip


def _wrong_by_scheme(by: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Scheme -> legal and wrong, of real splits."""
    found: dict[str, dict[str, int]] = {}
    for one in by:
        if one["splitk_num"] > 1:
            mine = found.setdefault(str(one["reduction_scheme"]), {"legal": 0, "wrong_result": 0})
            mine["legal"] += one["legal"]
            mine["wrong_result"] += one["wrong_result"]
    return found


def _screened(
    runner: DeviceRunner, problem: GemmProblem, policy: MeasurementPolicy, algorithm: int, until: float
) -> tuple[list[Outcome], int]:
    task = Task(problem, policy, 0)
    tried = variations(bases_of(runner.space(task, ("cublaslt",)).candidates, algorithm))
    runner.open(task)
    found: list[Outcome] = []
    while len(found) < len(tried) and time.monotonic() < until:
        found += runner.screen(tried[len(found) : len(found) + BATCH], None)
    return found, len(tried)
