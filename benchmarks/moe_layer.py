"""Whole layers of experts: gemmtune.torch.moe with tuned products, against vLLM's untuned kernel and torch.

    python -m benchmarks.moe_layer --json OUT [--quick] [--models M ...] [--tokens N ...] [--routings R ...]
        [--seconds S] [--minutes M] [--device cuda]

For each case the layer's two grouped products are tuned, and what won is bundled; no service is needed. `--quick`:
Qwen3-30B-A3B at 1, 8 and 64 tokens, uniform routing. `--minutes` begins no further case after that time. The exit code
is 1 if a case failed.

Every row is one layer of bf16: rows sorted by expert and gathered, gate and up, SiLU, down, the weighted sum, in `tokens`
tokens whose experts are distributed as `routing` says (backends/grouping.py). Ways, all by the same call: ours (by the
tuned rows), torch_glue (by the same rows, with torch's operations between the products), fused_moe and fused_moe_newer (both
products by triton-fused-moe as vLLM configures it untuned, of earlier and of newer releases) and torch (no table: torch's
grouped products, where a graph can capture them). Each way's output is compared with fp32 mathematics before it is timed: `error` is the root mean square of
the difference over that of the values, at most 0.01. `hits` is how many of the two products a row served: 2, and of
ours 1 or 0 where torch's product won. Every way is one CUDA graph of `copies` calls with weights of their own, which no
cache holds; the graphs are replayed one after another, `rounds` times. `us` are medians, and `over` the median of a way's time over ours in
the same round; over_fused_moe is the lesser of both configurations'. On a CPU calls are timed without a graph.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from backends.cache import BinaryCache
from backends.errors import DeviceError, GemmtuneError
from backends.grouping import NAMED, active_groups, counts_of
from backends.kernels.triton.families import FAMILIES
from backends.kernels.triton.fused_moe import TritonFusedMoe
from backends.packages.bundle import BundleBuilder, Measured, describe_row
from backends.problem import GemmProblem
from backends.registry import FoundDevice
from benchmarks import grouped
from benchmarks.client_quantised import measured
from benchmarks.cuda_tuned import Tuned, kernel_cache, machine, say, tune
from benchmarks.graph_time import Timer, graph_timer, host_timer, interleaved
from benchmarks.report import geometric_mean, write
from tuners.device_client import DeviceClient
from tuners.policy import MeasurementPolicy

TOKENS = (1, 8, 64, 512, 4096)
QUICK: dict[str, Any] = {"models": ["qwen3-30b-a3b"], "tokens": [1, 8, 64], "routings": ["uniform"]}
MODELS = ("qwen3-30b-a3b", "mixtral-8x7b")
#: Bytes of weights that a graph reads at least, several times an L2; copies of a layer at least and at most.
_READ, _LEAST, _MOST = 2**29, 2, 16
_ROUNDS, _CPU_ROUNDS = 25, 3
#: The largest error, over the values. Four roundings to bf16 are 0.004 together.
_ERROR = 0.01
#: Ways by vLLM's configurations, in the order of TritonFusedMoe.untuned().
FUSED = ("fused_moe", "fused_moe_newer")


@dataclass(frozen=True)
class Case:
    """One layer of the list."""

    model: str
    tokens: int
    routing: str

    @property
    def products(self) -> tuple[GemmProblem, GemmProblem]:
        """Gate and up, and down."""
        first, last = (
            grouped.Case(self.model, layer, self.tokens, self.routing).problem for layer in grouped.LAYERS
        )
        return first, last

    def words(self) -> dict[str, Any]:
        """The case as a row has it."""
        problem = self.products[0]
        counts = counts_of(problem)
        return {**vars(self), "active": active_groups(problem), "most_rows": int(counts.max())}


def cases(models: Sequence[str], tokens: Sequence[int], routings: Sequence[str]) -> Iterator[Case]:
    """Every layer, few tokens first."""
    for count, model, routing in product(tokens, models, routings):
        yield Case(model, count, routing)


def copies(case: Case) -> int:
    """Copies of the layer's weights, so that what a graph reads fits no cache."""
    read = sum(2 * active_groups(p) * p.m * p.k for p in case.products)
    return max(_LEAST, min(_MOST, -(-_READ // read)))


def ids_of(case: Case) -> list[list[int]]:
    """The experts of each token, whose rows are distributed as the routing says. An expert's rows are of
    different tokens where it has at most as many."""
    top = grouped.MODELS[case.model][1]
    every = [expert for expert, count in enumerate(counts_of(case.products[0])) for _ in range(count)]
    return [every[token :: case.tokens][:top] for token in range(case.tokens)]


# ---- tables --------------------------------------------------------------------------------------


def fused_rows(tuned: Tuned, case: Case) -> dict[str, Measured]:
    """Way -> the product by vLLM's untuned configuration. The verdict is that of the tuning's winner, since
    a bundle has rows that won alone: nothing here reads it."""
    family, environment = FAMILIES["triton-fused-moe"], tuned.session.runner.environment
    assert isinstance(family, TritonFusedMoe)
    verdict, problem = tuned.verdict, tuned.session.problem
    said = {
        "judgement": "WIN", "seconds": verdict.seconds, "baseline_seconds": verdict.baseline_seconds,
        "baseline": "torch, grouped_mm", "baseline_family": "torch-grouped", "speedup": [1.0, 1.0, None],
        "rounds": verdict.rounds, "session": None, "decided_at": None,
    }  # fmt: skip
    chosen = family.untuned(case.tokens, problem.groups, environment)
    return {
        way: Measured(problem, solution, environment, said)
        for way, solution in zip(FUSED, chosen, strict=True)
        if family.illegal(problem, solution, environment) is None
    }


def write_bundles(
    found: FoundDevice, case: Case, seconds: float, folder: Path, cache: BinaryCache
) -> tuple[dict[str, Path], dict[str, Any]]:
    """Tunes both products; way -> its bundle, and what was found."""
    policy, device = MeasurementPolicy.of(found.environment.vendor), found.environment.device_class
    rows: dict[str, list[Measured]] = {"ours": [], **{way: [] for way in FUSED}}
    told: dict[str, Any] = {}
    with DeviceClient(found, cache) as runner:
        for layer, problem in zip(grouped.LAYERS, case.products, strict=True):
            tuned = tune(runner, problem, seconds)
            best = measured(tuned)
            told[layer] = {
                "verdict": tuned.verdict.judgement.value, "reason": tuned.verdict.reason,
                "us": tuned.verdict.seconds * 1e6,
                "family": None if best is None else best.solution.family,
                "parameters": None if best is None else dict(best.solution.parameters),
            }  # fmt: skip
            if best is not None:
                rows["ours"].append(best)
            if found.environment.vendor != "cpu":  # Triton compiles for GPUs alone
                for way, one in fused_rows(tuned, case).items():
                    rows[way].append(one)
    bundles = {}
    for way, held in rows.items():
        if not held:
            continue
        with BundleBuilder(device, policy.id, policy.to_dict()) as builder:
            for one in held:
                builder.add(describe_row(one, device.arch, cache))
            bundles[way] = folder / f"{way}.gtb"
            builder.write(bundles[way])
    return bundles, told


# ---- layers --------------------------------------------------------------------------------------


def operands(torch: Any, case: Case, device: Any) -> tuple[Any, Any, Any, list[tuple[Any, Any]]]:
    """x, weights, ids, and copies of both experts' weights."""
    _, top, hidden, inner = grouped.MODELS[case.model]
    experts = case.products[0].groups
    torch.manual_seed(0)

    def of(*shape: int) -> Any:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    x = of(case.tokens, hidden)
    weights = torch.rand(case.tokens, top, device=device).softmax(-1)
    made = [
        (of(experts, 2 * inner, hidden).mul_(hidden**-0.5), of(experts, hidden, inner).mul_(inner**-0.5))
        for _ in range(copies(case))
    ]
    return x, weights, torch.tensor(ids_of(case), device=device), made


def exact(torch: Any, x: Any, gate_up: Any, down: Any, weights: Any, ids: Any) -> Any:
    """The layer in fp32, expert by expert."""
    out = torch.zeros(x.shape, device=x.device, dtype=torch.float32)
    for expert in range(gate_up.shape[0]):
        tokens, places = torch.where(ids == expert)
        if len(tokens):
            gate, up = (x[tokens].float() @ gate_up[expert].float().t()).chunk(2, dim=-1)
            found = (torch.nn.functional.silu(gate) * up) @ down[expert].float().t()
            out.index_add_(0, tokens, found * weights[tokens, places, None])
    return out


def distance(found: Any, expected: Any) -> float:
    """The root mean square of a difference over that of the values; not a number if a value is none."""
    return float((found.float() - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def layer_row(torch: Any, case: Case, bundles: Mapping[str, Path], device: Any) -> dict[str, Any]:
    """Checks and times every way. Raises GemmtuneError for one that is wrong, or whose rows are not used."""
    import gemmtune.torch  # noqa: PLC0415  (torch is optional)

    x, weights, ids, made = operands(torch, case, device)
    expected = exact(torch, x, *made[0], weights, ids)
    tables = {way: gemmtune.load(path) for way, path in bundles.items()}
    ways = {"ours": tables.get("ours"), "torch_glue": tables.get("ours"), "torch": None}
    ways |= {way: tables[way] for way in FUSED if way in tables}
    if device.type == "cuda" and not captured(torch, device):
        del ways["torch"]
        if tables.get("ours") is None or len(tables["ours"].rows) < 2:
            raise GemmtuneError(
                "ours has no rows for both products, and torch's grouped product, which would compute the "
                "others, waits for the host on this device: no graph captures it"
            )
    timers: dict[str, Timer] = {}
    errors, hits = dict[str, float](), dict[str, int]()
    with torch.no_grad(), ExitStack() as held:
        for way, table in ways.items():
            calls = [_call(gemmtune.torch.moe, x, one, weights, ids) for one in made]
            with _glue(way == "torch_glue"), nullcontext() if table is None else _enabled(table, held):
                with gemmtune.torch.report() as count:
                    errors[way] = distance(calls[0](), expected)
                hits[way] = count.report().hits
                _refuse(way, errors[way], hits[way], None if table is None else len(table.rows))
                # What is captured must be compiled and loaded: the calls differ in addresses alone.
                timers[way] = graph_timer(torch, calls) if device.type == "cuda" else host_timer(calls)
        rounds = _ROUNDS if device.type == "cuda" else _CPU_ROUNDS
        for timer in timers.values():
            timer()
        times = interleaved(timers, rounds)
    return {"copies": len(made), "rounds": rounds, "hits": hits, "error": errors, **figures(times)}


def captured(torch: Any, device: Any) -> bool:
    """Whether a graph can capture torch._grouped_mm in bf16: elsewhere it copies the ends to the host."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] in (9, 10)


def _call(moe: Callable[..., Any], x: Any, one: tuple[Any, Any], weights: Any, ids: Any) -> Callable[[], Any]:
    return lambda: moe(x, *one, weights, ids)


def _enabled(table: Any, held: ExitStack) -> AbstractContextManager[Any]:
    """The table in use, its kernels loaded. `held` keeps the kernels that a graph has captured."""
    import gemmtune.torch  # noqa: PLC0415

    enabled = gemmtune.torch.enable(table)
    enabled.load()
    held.callback(lambda: enabled)
    return enabled


def _glue(by_torch: bool) -> AbstractContextManager[Any]:
    from gemmtune.torch.grouped import glue  # noqa: PLC0415

    return patch.object(glue, "TRITON", False) if by_torch else nullcontext()


def _refuse(way: str, error: float, hits: int, rows: int | None) -> None:
    if not error <= _ERROR:
        raise GemmtuneError(f"{way}: the layer is off by {error:.3g} of its values; {_ERROR} is allowed")
    if hits != (rows or 0):
        raise GemmtuneError(f"{way}: {hits} of the bundle's {rows} products ran by its rows")


def figures(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians, and each way's time over ours."""
    ours = times["ours"]
    over = {
        way: median(theirs / own for theirs, own in zip(taken, ours, strict=True))
        for way, taken in times.items()
        if way != "ours"
    }
    return {
        "us": {way: median(taken) for way, taken in times.items()}, "over": over,
        "over_fused_moe": min((over[way] for way in FUSED if way in over), default=None),
    }  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means of the ratios for each number of tokens."""
    out = []
    for tokens in sorted({one["tokens"] for one in rows}):
        mine = [one for one in rows if one["tokens"] == tokens and "error_type" not in one]
        if not mine:
            continue
        means: dict[str, Any] = {"tokens": tokens, "rows": len(mine)}
        for name, values in (
            ("over_fused_moe", [one["over_fused_moe"] for one in mine]),
            ("over_torch", [one["over"].get("torch") for one in mine]),
            ("over_torch_glue", [one["over"]["torch_glue"] for one in mine]),
        ):
            known = [value for value in values if value is not None]
            means[name] = geometric_mean(known) if known else None
            means[f"least_{name}"] = min(known, default=None)
        out.append(means)
    return out


# ---- the command ---------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> int:
    """Measures every case and writes the rows after each; the exit code."""
    import torch  # noqa: PLC0415

    started, cache = time.monotonic(), kernel_cache()
    found = machine(options.device, 1)[0]
    device = torch.device("cpu") if options.device == "cpu" else torch.device("cuda", found.index)
    wanted = list(cases(options.models, options.tokens, options.routings))
    rows: list[dict[str, Any]] = []
    for case in wanted:
        if options.minutes is not None and time.monotonic() - started > 60 * options.minutes:
            say(f"stopped after {options.minutes} minutes with {len(rows)} of {len(wanted)} cases")
            break
        one = case.words()
        with tempfile.TemporaryDirectory() as folder:
            try:
                bundles, told = write_bundles(found, case, options.seconds, Path(folder), cache)
                one |= {"products": told}
                one |= layer_row(torch, case, bundles, device)
            except DeviceError:
                raise
            except Exception as error:  # of one layer, also torch's or the client's: the others go on
                one |= {"message": str(error), "error_type": type(error).__name__}
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the next tuning's process needs the memory
        rows.append(one)
        say(_line(one))
        write(
            options.json.stem, found.environment,
            {"what": (__doc__ or "").split("\n\n")[-1].strip(), "seconds": options.seconds,
             "rows_wanted": len(wanted), "complete": len(rows) == len(wanted), "summary": summary(rows), "rows": rows},
            options.json.parent,
        )  # fmt: skip
    return 1 if any("error_type" in one for one in rows) else 0


def _line(one: Mapping[str, Any]) -> str:
    name = f"{one['model']} {one['tokens']} {one['routing']}"
    if "error_type" in one:
        return f"{name}: {one['error_type']}: {one['message']}"
    taken = ", ".join(f"{way} {us:.1f}" for way, us in one["us"].items())
    over = "".join(f", {value:.3f}x over {way}" for way, value in one["over"].items())
    return f"{name}: us {taken}{over}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.moe_layer", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", type=Path, required=True, metavar="OUT")
    parser.add_argument(
        "--quick", action="store_true", help="Qwen3-30B-A3B, 1, 8 and 64 tokens, uniform routing"
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(grouped.MODELS))
    parser.add_argument("--tokens", nargs="+", type=int, default=list(TOKENS))
    parser.add_argument("--routings", nargs="+", default=list(NAMED), choices=list(NAMED))
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring, for each product")
    parser.add_argument("--minutes", type=float, help="begin no further case after this time")
    parser.add_argument("--device", default="cuda", choices=("cuda", "hip", "cpu"))
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
