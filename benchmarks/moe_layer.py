"""Whole layers of mixtures of experts: moe() by tuned rows, by vLLM's untuned configurations, and by torch's products.

    python -m benchmarks.moe_layer --json OUT [--quick] [--kinds bf16 w4a16 mxfp4] [--models qwen3-30b-a3b mixtral-8x7b]
        [--tokens 1 2 4 8 64 512 4096] [--routings uniform skewed] [--seconds S] [--minutes M] [--device cuda|hip|cpu]

First both products of every layer are tuned with uniform routing, few tokens first, on one device that has all experts;
`--minutes` begins no further product after 60% of that time, and no further layer after all of it. `--quick`: the first model of each kind
(of bf16 Qwen3-30B-A3B) at 1, 2, 4, 8, 64 and 512 tokens, uniform, one second of measuring for each product. Kinds of weights (default: bf16) are
those of benchmarks.grouped, w4a16 of Qwen3-30B-A3B and mxfp4 of gpt-oss-20b, whose layer has biases and an activation of its own. On a CPU nothing is tuned, since no family of CPUs
multiplies groups, and a small layer is called without a graph: that shows that the command works.

A row is a layer with its tokens and routing: routing and gathering rows, gate and up together, silu(gate) * up, down,
and the weighted sum, in a CUDA graph, all in one process, with cold weights. Ways are the same function, gemmtune.torch.moe,
and so have the same kernels between the products. `ours`: moe() as it decides: of few tokens by two launches without tuned
kernels, else both products by the fastest kernels of the tuning that programs can launch, won or not; of bf16 the first
one with its activation. `unfused`: the same without kernels that have the activation, which is a step of its own then. `products`: both products by these
kernels where moe() takes two launches; `launches`: two launches where it takes the products, up to 64 tokens times experts of a
token. `vllm` and `vllm_newer`: both by the family triton-fused-moe in the configuration that vLLM runs
without a file for the device, in earlier and in newer releases, with rows gathered before the first product, where vLLM
gathers in it and sorts by two launches and sums by one. `torch`: both by torch._grouped_mm. `torch_steps`: the same with torch's operations
between them. Rows that were tuned with uniform routing serve both routings. Each result is checked against float64 before it is timed;
`errors` are shares of the reference's norm, and a way that is wrong, or whose rows did not run, is in `wrong` with the reason and has no
time. `over_vllm` is the faster of the two vLLM's times over ours. Of 4-bit weights `ours` is moe() of
them, whose products of bf16 are tuned, too: `ours_bf16` is moe() of the same weights dequantised to bf16 beforehand, by the fastest kernels of
bf16, `torch` and `torch_steps` are of these as well, and there are no vLLM's. `over_bf16` is `ours_bf16` over `ours`, `over_products` and `over_launches` likewise. `steps_us` has the steps between the products alone, in cache.
`reading_us` is the time to read the weights of the experts that have rows, and what else the two products read and write, at the measured bandwidth.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from backends.environment import Environment
from backends.errors import DeviceError, GemmtuneError
from backends.grouping import NAMED
from backends.kernels.triton.families import FAMILIES
from backends.kernels.triton.fused_moe import TritonFusedMoe
from backends.packages.bundle import BundleBuilder, Measured, describe_row
from backends.problem import GemmProblem, from_linear
from backends.registry import FoundDevice
from backends.solution import Solution
from benchmarks import grouped
from benchmarks.cuda_tuned import Tuned, ceilings_of, kernel_cache, machine, say, tune
from benchmarks.moe_calls import OF_STORED, VLLM, steps_us, takes_two_launches, times, ways_of
from benchmarks.moe_operands import Layer, Size, dequantised, made
from benchmarks.report import geometric_mean, write
from tuners.ceilings import Ceilings
from tuners.device_client import DeviceClient
from tuners.policy import MeasurementPolicy
from tuners.roofline import bound

#: Small enough for a CPU.
SMALL, SMALL_OSS = "small", "small-gpt-oss"
MODELS: dict[str, Size] = {
    "qwen3-30b-a3b": Size(*grouped.MODELS["qwen3-30b-a3b"]), "mixtral-8x7b": Size(*grouped.MODELS["mixtral-8x7b"]),
    "gpt-oss-20b": Size(*grouped.MODELS["gpt-oss-20b"], gpt_oss=True),
    SMALL: Size(8, 2, 256, 128), SMALL_OSS: Size(8, 2, 256, 128, gpt_oss=True),
}  # fmt: skip
#: Kind of the weights -> models that have such, and the one for a CPU.
KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    "bf16": (("qwen3-30b-a3b", "mixtral-8x7b"), SMALL), "w4a16": (("qwen3-30b-a3b",), SMALL),
    "mxfp4": (("gpt-oss-20b",), SMALL_OSS),
}  # fmt: skip
TOKENS = (1, 2, 4, 8, 64, 512, 4096)
QUICK_TOKENS = TOKENS[:-1]
#: What is tried: kernels that a program can launch from a bundle.
TRIED = ("grouped-ring", "grouped-wgmma", "grouped-dequant-wgmma", "grouped-tile", TritonFusedMoe.name)
#: The name of the first product with its activation.
GATED = "gate_up_swiglu"
#: The share of the minutes after which nothing more is tuned.
_TUNING_SHARE = 0.6


@dataclass(frozen=True)
class Case:
    """A row of the result."""

    model: str
    tokens: int
    routing: str
    kind: str = "bf16"


def problems(
    model: str, tokens: int, routing: str = "uniform", kind: str = "bf16"
) -> tuple[GemmProblem, GemmProblem]:
    """Gate and up together, and down."""
    size = MODELS[model]
    dtype, scales = grouped.KINDS[kind]

    def made_of(n: int, k: int) -> GemmProblem:
        own: dict[str, Any] = {"groups": size.experts, "routing": routing, "dtype_d": "bf16", **scales}
        if kind == "w4a16":
            own["scale_b"] = f"block_1x{group_of(k)}"
        return from_linear(tokens * size.top, n, k, dtype, **own)

    return made_of(2 * size.inter, size.hidden), made_of(size.hidden, size.inter)


def tuned_problems(model: str, tokens: int, kind: str) -> dict[str, GemmProblem]:
    """What is tuned of a layer: both products, and the first one with its activation where moe() takes such a row."""
    first, second = problems(model, tokens, kind=kind)
    found = dict(zip(grouped.LAYERS, (first, second), strict=True))
    if kind == "bf16" and not MODELS[model].gpt_oss:
        half = first.m // 2
        found[GATED] = replace(first, activation="swiglu", ldc=half, ldd=half)
    return found


def group_of(k: int) -> int:
    """Elements of k that share a scale of w4a16."""
    return 32 if k % 128 else 128


# ---- rows of the ways ----------------------------------------------------------------------------


def fastest(tuned: Tuned) -> tuple[Solution, float] | None:
    """The fastest kernel of a tuning that a program can launch from a bundle, and its seconds: the verdict's of that
    target whatever it is, and without a verdict the screening's. None if none was verified."""
    known = {one.solution.id: one.solution for _, one in tuned.screened}
    known |= {name: one.solution for name, one in tuned.finals.items()}
    verdict = tuned.session.verdict
    target = None if verdict is None else verdict.targets.get("bundle")
    if target is not None:
        return known[target.solution], target.seconds
    seen = [one for one in tuned.timed() if one.solution.family in TRIED]
    if not seen:
        return None
    best = min(seen, key=lambda one: median(one.samples))
    return best.solution, median(best.samples)


def untuned(p: GemmProblem, tokens: int, environment: Environment) -> tuple[Solution, ...]:
    """What vLLM runs for a product of a layer without a file, in earlier and in newer releases."""
    family = FAMILIES[TritonFusedMoe.name]
    assert isinstance(family, TritonFusedMoe)
    return family.untuned(tokens, p.groups, environment)


def as_row(p: GemmProblem, solution: Solution, seconds: float, environment: Environment) -> Measured:
    """A row that the client serves. Bundles have rows that won alone; those of this benchmark are read by it alone."""
    said = {
        "judgement": "WIN", "seconds": seconds, "baseline_seconds": seconds, "baseline": "torch",
        "baseline_family": "torch-grouped", "speedup": [1.0, 1.0, 1.0], "rounds": 1, "session": None,
        "decided_at": None,
    }  # fmt: skip
    return Measured(p, solution, environment, said)


def tables(folder: Path, environment: Environment, rows: Mapping[str, Sequence[Measured]]) -> dict[str, Any]:
    """The ways' tables, of rows compiled for the device; a way without rows has none."""
    import gemmtune  # noqa: PLC0415

    policy, device, out = MeasurementPolicy.of(environment.vendor), environment.device_class, {}
    for name, of_way in rows.items():
        with BundleBuilder(device, policy.id, policy.to_dict()) as builder:
            for one in of_way:
                try:
                    builder.add(describe_row(one, device.arch, kernel_cache()))
                except GemmtuneError as error:  # of one row: its layer says that no row ran
                    say(f"{name} {one.problem.slug}: no row; {type(error).__name__}: {error}")
            if len(builder):
                builder.write(folder / f"{name}.gtb")
                out[name] = gemmtune.load(folder / f"{name}.gtb")
    return out


def tune_all(
    found: FoundDevice, wanted: Sequence[Case], seconds: float, until: Callable[[float], bool]
) -> tuple[list[dict[str, Any]], dict[str, list[Measured]], Ceilings | None]:
    """Tunes both products of the cases' layers. What was found, for the document; the rows of the ways; and the ceilings."""
    said: list[dict[str, Any]] = []
    rows: dict[str, list[Measured]] = {name: [] for name in ("ours", "unfused", *VLLM)}
    beside_vllm = {(one.model, one.tokens) for one in wanted if one.kind == "bf16"}
    with DeviceClient(found, kernel_cache()) as runner:
        environment, ceilings = runner.environment, ceilings_of(runner, ["bf16"])
        for model, tokens, kind in tuned_layers(wanted):
            for name, p in tuned_problems(model, tokens, kind).items():
                if until(_TUNING_SHARE):
                    say(f"no time to tune {model} {name} of {kind} at {tokens} tokens")
                    continue
                one = {"model": model, "layer": name, "tokens": tokens, "kind": kind, "problem": p.id}
                try:
                    best, judgement = _tuned(runner, p, seconds)
                except DeviceError:
                    raise
                except GemmtuneError as error:  # of one product: the others go on
                    said.append({**one, "error": f"{type(error).__name__}: {error}"})
                    say(f"{one}: {said[-1]['error']}")
                    continue
                if kind == "bf16" and (model, tokens) in beside_vllm and name != GATED:
                    for way, solution in zip(VLLM, untuned(p, tokens, environment), strict=True):
                        rows[way].append(as_row(p, solution, 1.0, environment))
                if best is not None:
                    solution, took = best
                    for way in ("ours",) if name == GATED else ("ours", "unfused"):
                        rows[way].append(as_row(p, solution, took, environment))
                    one |= {"family": solution.family, "parameters": dict(solution.parameters),
                            "build": solution.build, "us": took * 1e6, "judgement": judgement}  # fmt: skip
                said.append(one)
                say(f"{one}")
    return said, rows, ceilings


def tuned_layers(wanted: Sequence[Case]) -> list[tuple[str, int, str]]:
    """Model, tokens and kind of what is tuned: of 4-bit weights the products of bf16, too."""
    return list(dict.fromkeys((one.model, one.tokens, kind) for one in wanted for kind in (one.kind, "bf16")))


def _tuned(runner: DeviceClient, p: GemmProblem, seconds: float) -> tuple[tuple[Solution, float] | None, str]:
    """The fastest kernel, and the verdict's word, or why there is none."""
    seen: list[Tuned] = []

    def never(tuned: Tuned, _: float) -> bool:
        seen[:] = [tuned]
        return False

    try:
        tuned = tune(runner, p, seconds, stop=never, families=TRIED)
    except DeviceError:
        raise
    except GemmtuneError as error:
        if not seen:
            raise
        return fastest(seen[0]), f"none: {error}"
    verdict = tuned.session.verdict
    return fastest(tuned), "none" if verdict is None else verdict.judgement.value


# ---- layers --------------------------------------------------------------------------------------


def ratios(us: Mapping[str, float]) -> dict[str, float | None]:
    """Times over ours; of vLLM's two the faster."""
    ours, vllm = us.get("ours"), [us[name] for name in VLLM if name in us]
    others = {"vllm": min(vllm, default=None), "torch": us.get("torch"), "torch_steps": us.get("torch_steps"),
              "bf16": us.get("ours_bf16"), "products": us.get("products"),
              "launches": us.get("launches"), "unfused": us.get("unfused")}  # fmt: skip
    return {f"over_{name}": one / ours if ours and one else None for name, one in others.items()}


def reading_us(case: Case, counts: Sequence[int], ceilings: Ceilings | None) -> float | None:
    """Microseconds to read and write what both products do, of the experts' `counts` of rows."""
    if ceilings is None:
        return None
    every = problems(case.model, case.tokens, ",".join(map(str, counts)), case.kind)
    return sum(bound(p, ceilings).memory_seconds for p in every) * 1e6


def measured(
    torch: Any, device: Any, case: Case, loaded: Mapping[str, Any], ceilings: Ceilings | None
) -> dict[str, Any]:
    """A row."""
    size = MODELS[case.model]
    groups = group_of(size.hidden), group_of(size.inter)
    layer = made(torch, size, case.tokens, case.routing, device, case.kind, groups)
    others: dict[str, Layer] = {}
    few = takes_two_launches(layer)
    ways = ways_of(case.kind, loaded, layer.ids.numel(), few, device.type == "cuda")
    if case.kind != "bf16":
        others = dict.fromkeys(ways.keys() - OF_STORED, dequantised(torch, layer))
    us, errors, wrong = times(torch, device, layer, ways, others)
    counts = torch.bincount(layer.ids.reshape(-1), minlength=size.experts).tolist()
    active = sum(count > 0 for count in counts)
    return {
        **asdict(case), "active": active, "us": us, **ratios(us), "errors": errors, "wrong": wrong,
        "steps_us": steps_us(torch, device, layer), "reading_us": reading_us(case, counts, ceilings),
    }  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means and the least of each ratio, for each kind and model, over all tokens and for each number."""
    out = []
    for kind, model, tokens in product(KINDS, MODELS, (None, *TOKENS)):
        mine = [
            one for one in rows
            if (one["model"], one["kind"]) == (model, kind) and tokens in (None, one["tokens"])
        ]  # fmt: skip
        if not mine:
            continue
        means: dict[str, Any] = {"model": model, "kind": kind, "tokens": tokens, "rows": len(mine)}
        for name in ratios({}):
            values = [one[name] for one in mine if one.get(name)]
            means[name] = geometric_mean(values) if values else None
            means[f"least_{name}"] = min(values) if values else None
        out.append(means)
    return out


def cases(
    layers: Sequence[tuple[str, str]], tokens: Sequence[int], routings: Sequence[str]
) -> Iterator[Case]:
    """Every layer (kind, model), few tokens first."""
    for count, (kind, model), routing in product(tokens, layers, routings):
        yield Case(model, count, routing, kind)


def measure(options: argparse.Namespace) -> None:
    """Measures every case, and writes the rows after each."""
    import torch  # noqa: PLC0415  (optional)

    started = time.monotonic()

    def until(share: float) -> bool:
        return options.minutes is not None and time.monotonic() - started > 60 * options.minutes * share

    found = machine(options.device, 1)[0]
    wanted = list(cases(options.layers, options.tokens, options.routings))
    device = torch.device("cpu") if options.device == "cpu" else torch.device("cuda", found.index)
    said: list[dict[str, Any]] = []
    of_ways: dict[str, list[Measured]] = {}
    ceilings = None
    if options.device != "cpu":
        said, of_ways, ceilings = tune_all(found, wanted, options.seconds, until)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gemmtune-moe-") as folder, torch.no_grad():
        loaded = tables(Path(folder), found.environment, of_ways)
        for case in wanted:
            if until(1.0):
                say(f"stopped after {options.minutes} minutes with {len(rows)} of {len(wanted)} rows")
                break
            rows.append(measured(torch, device, case, loaded, ceilings))
            say(_line(rows[-1]))
            _write(options, found, rows, said, len(wanted))
            if device.type == "cuda":
                torch.cuda.empty_cache()


def _line(one: Mapping[str, Any]) -> str:
    figures = ", ".join(f"{name} {value:.1f} us" for name, value in one["us"].items())
    over = ", ".join(f"{name} {one[name]:.3f}x" for name in ratios({}) if one[name])
    wrong = "".join(f"; {name}: {why}" for name, why in one["wrong"].items())
    return f"{one['model']} {one['kind']} {one['tokens']} {one['routing']}: {figures}; {over}{wrong}"


def _write(
    options: argparse.Namespace, found: FoundDevice, rows: Sequence[Any], said: Sequence[Any], wanted: int
) -> None:
    what = "\n\n".join((__doc__ or "").split("\n\n")[2:]).strip()
    figures = {"what": what, "seconds": options.seconds, "rows_wanted": wanted, "complete": len(rows) == wanted,
               "summary": summary(rows), "tuned": said, "rows": rows}  # fmt: skip
    write(options.json.stem, found.environment, figures, options.json.parent)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command's options, with what --quick and a CPU stand for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.moe_layer", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", type=Path, required=True, metavar="OUT")
    parser.add_argument("--quick", action="store_true", help="a model of each kind at few tokens, uniform")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["bf16"], help="of the weights")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), help="of every kind (default: its own)")
    parser.add_argument("--tokens", nargs="+", type=int)
    parser.add_argument("--routings", nargs="+", choices=list(NAMED))
    parser.add_argument(
        "--seconds", type=float, help="of measuring, for each product (default: 3, --quick: 1)"
    )
    parser.add_argument("--minutes", type=float, help="begin no further layer after this time")
    parser.add_argument("--device", default="cuda", choices=("cuda", "hip", "cpu"))
    found = parser.parse_args(arguments)
    quick = found.quick
    found.layers = []
    for kind in found.kinds:
        models, small = KINDS[kind]
        own = (small,) if found.device == "cpu" else models[:1] if quick else models
        found.layers += [(kind, model) for model in found.models or own]
    found.tokens = found.tokens or list(QUICK_TOKENS if quick else TOKENS)
    found.routings = found.routings or list(NAMED[:1] if quick else NAMED)
    found.seconds = found.seconds or (1.0 if quick else 3.0)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    measure(parsed(arguments))


if __name__ == "__main__":
    main()
