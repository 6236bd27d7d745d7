"""Grouped products of mixtures of experts: our kernels, torch's own calls, and the reading bound.

    python -m benchmarks.grouped --json OUT [--quick] [--seconds S] [--minutes M] [--device cuda]
        [--kinds bf16 bf16_swiglu fp8_blocks fp8_rows w4a16 mxfp4]

Tunes both grouped products of a layer of Qwen3-30B-A3B, DeepSeek-V3, Mixtral and gpt-oss-20b on one device, all experts on it
(tensor and expert parallelism 1): gate and up together, [2 * intermediate, hidden] of every expert, and down,
[hidden, intermediate]. A token is a row of each of its top experts. Routings are those of backends/grouping.py, and times
means over a routing's draws. Rows are written as they are measured, few tokens first; `--minutes` begins no further row after that time. `--quick`:
Qwen3-30B-A3B alone. Kinds (default: bf16): bf16; fp8 (e4m3) with scales of 128 x 128 weights and of 128 elements of a
row, or of the weights' rows and the rows, to bf16; w4a16 (uint4 in groups of 128, of 32 where 128 does not divide k, with
4-bit zero points and scales of bf16) and mxfp4, beside rows of bf16; bf16_swiglu is gate and up together with
silu(gate) * up behind it, and no down. `over_bf16` of a row of another kind is `best_us` of
the same product of bf16 in this run over its own.

`best_us` is the verified tuning's winner in its final, `family` its family; `default_us` torch's call as the tuning
times it, whose result is copied to D; `defaults` has all of torch's calls in the final, which interleaves them with
our best and so has the device in one state: `over_defaults` is the fastest of them over `best_us`. `grouped_mm_us` is
torch._grouped_mm timed by itself in a CUDA graph, without that copy, and `loop_us` a loop of torch.mm over the experts
that have rows, whose counts the host must know. Of fp8 they are `scaled_grouped_mm_us` (scales of rows alone; with the
copy) and `scaled_loop_us`, a loop of torch._scaled_mm. Of 4-bit weights they are `dequantise_grouped_mm_us` (the weights of
all experts dequantised before torch._grouped_mm; with the copy) and `dequantise_loop_us` (of the experts that have rows).
Of bf16_swiglu `grouped_mm_us` and `loop_us` have the activation behind the product, by two operations of torch;
`grouped_mm_compiled_us` and `loop_compiled_us` by one kernel, as torch.compile makes it of these.
`torch_us` is the best of them. Weights are cold everywhere. `bound_us` is the time to read the weights of the
experts that have rows, and the rows, and to write the result, at the measured bandwidth, or to multiply at the
measured rate; None if it could not be measured. `share_of_reading` is that of reading and writing alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from backends.cache import default_cache_dir
from backends.errors import DeviceError, GemmtuneError
from backends.grouping import NAMED, active_groups, counts_of, draws_of
from backends.problem import GemmProblem, from_linear
from backends.registry import FoundDevice
from benchmarks.cuda_tuned import Tuned, ceilings_of, kernel_cache, machine, row, say, tune
from benchmarks.grouped_calls import torch_times
from benchmarks.lowbit import screened
from benchmarks.precompiled import precompiled
from benchmarks.report import geometric_mean, write
from tuners.ceilings import Ceilings
from tuners.device_client import DeviceClient
from tuners.policy import MeasurementPolicy
from tuners.roofline import bound

#: Model -> experts, experts of a token, hidden size, intermediate size of an expert.
MODELS: dict[str, tuple[int, int, int, int]] = {
    "qwen3-30b-a3b": (128, 8, 2048, 768), "mixtral-8x7b": (8, 2, 4096, 14336), "deepseek-v3": (256, 8, 7168, 2048),
    "gpt-oss-20b": (32, 4, 2880, 2880), "gpt-oss-120b": (128, 4, 2880, 2880),
}  # fmt: skip
LAYERS = ("gate_up", "down")
TOKENS = (1, 8, 64, 512, 4096)
#: Kind -> the operands' type, and their scales.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16": ("bf16", {}),
    "bf16_swiglu": ("bf16", {"activation": "swiglu"}),
    "fp8_blocks": ("fp8_e4m3", {"scale_a": "block_1x128", "scale_b": "block_128x128"}),
    "fp8_rows": ("fp8_e4m3", {"scale_a": "outer", "scale_b": "outer"}),
    "w4a16": (
        "bf16",
        {"dtype_b": "uint4", "scale_b": "block_1x128", "scale_dtype": "bf16", "zero_b": "uint4"},
    ),
    "mxfp4": ("bf16", {"dtype_b": "fp4_e2m1", "scale_b": "block_1x32", "scale_dtype": "fp8_e8m0"}),
}
#: The share of the device's memory that weights may take: all of DeepSeek-V3's, three times.
_MEMORY = 0.9


@dataclass(frozen=True)
class Case:
    """One product of the list."""

    model: str
    layer: str
    tokens: int
    routing: str
    kind: str = "bf16"

    @property
    def problem(self) -> GemmProblem:
        """Rows by every expert's weights, to bf16."""
        experts, top, hidden, inter = MODELS[self.model]
        n, k = (2 * inter, hidden) if self.layer == "gate_up" else (hidden, inter)
        dtype, scales = KINDS[self.kind]
        if self.kind == "w4a16" and k % 128:
            scales = {**scales, "scale_b": "block_1x32"}
        routed: dict[str, Any] = {"groups": experts, "routing": self.routing}
        return from_linear(self.tokens * top, n, k, dtype, dtype_d="bf16", **routed, **scales)

    def words(self) -> dict[str, Any]:
        """The case as a row has it."""
        p = self.problem
        most = max(int(counts_of(p, draw).max()) for draw in range(draws_of(p)))
        return {
            **vars(self), "m": p.n, "n": p.m, "k": p.k, "groups": p.groups, "active": active_groups(p),
            "most_rows": most, "problem": p.id,
        }  # fmt: skip


def cases(
    models: Sequence[str], tokens: Sequence[int], routings: Sequence[str], kinds: Sequence[str] = ("bf16",)
) -> Iterator[Case]:
    """Every product, few tokens first; its kinds follow one another. Only the first one of a layer has an
    activation."""
    for count, model, layer, routing, kind in product(tokens, models, LAYERS, routings, kinds):
        if layer == LAYERS[0] or "activation" not in KINDS[kind][1]:
            yield Case(model, layer, count, routing, kind)


# ---- ours ----------------------------------------------------------------------------------------


def tuned_row(runner: DeviceClient, case: Case, seconds: float, ceilings: Ceilings | None) -> dict[str, Any]:
    """A tuning's figures. Without a verdict, which a default that fails prevents, `best_us` is that of the
    fastest verified candidate of the screening, and `error` says why."""
    seen: list[Tuned] = []

    def never(tuned: Tuned, _: float) -> bool:
        seen[:] = [tuned]
        return False

    policy = replace(MeasurementPolicy.of(runner.environment.vendor), memory_share=_MEMORY)
    try:
        tuned = tune(runner, case.problem, seconds, stop=never, policy=policy)
        found = row(tuned, ceilings)
        found |= {"default_us": found["baseline_us"], "screening": screened(tuned)}
        found["defaults"] = {
            one.name: one.seconds * 1e6
            for one in tuned.verdict.baselines
            if one.seconds is not None and one.name.startswith("torch ")  # not vLLM's defaults
        }
    except DeviceError:
        raise
    except GemmtuneError as error:
        found = {"error": str(error), "error_type": type(error).__name__}
        if seen and (best := screened(seen[-1])):
            found |= {"best_us": best[0]["us"], "family": best[0]["family"], "screening": best}
    if seen:
        found["fastest_by_family"] = _by_family(seen[-1])
    if ceilings is not None:
        limit = bound(case.problem, ceilings)
        found |= {"bound_us": limit.seconds * 1e6, "reading_us": limit.memory_seconds * 1e6}
    return found


def _by_family(tuned: Tuned) -> dict[str, float]:
    """Microseconds of the fastest verified candidate of each family in the screening."""
    found: dict[str, float] = {}
    for one in tuned.timed():
        us = median(one.samples) * 1e6
        found[one.solution.family] = min(us, found.get(one.solution.family, us))
    return found


#: Figures of torch's calls by themselves.
ALONE = (
    "grouped_mm_us", "loop_us", "grouped_mm_compiled_us", "loop_compiled_us", "scaled_grouped_mm_us", "scaled_loop_us", "dequantise_grouped_mm_us",
    "dequantise_loop_us",
)  # fmt: skip


def over_bf16(found: dict[str, Any], rows: Sequence[dict[str, Any]]) -> float | None:
    """Our best time of the same product of bf16, of an earlier row, over a row's; None of bf16 itself."""
    same = ("model", "layer", "tokens", "routing")
    for one in rows:
        if one["kind"] == "bf16" and all(one[name] == found[name] for name in same):
            best = one.get("best_us"), found.get("best_us")
            return best[0] / best[1] if found["kind"] != "bf16" and best[0] and best[1] else None
    return None


def ratios(found: dict[str, Any]) -> dict[str, Any]:
    """What the row's times are over our best."""
    best = found.get("best_us")
    alone = [found[name] for name in ALONE if found.get(name)]
    torch_us = min(alone) if alone else None
    out: dict[str, Any] = {"torch_us": torch_us}
    own = min(found.get("defaults", {}).values(), default=None)
    for name, other in (("torch", torch_us), ("default", found.get("default_us")), ("defaults", own)):
        out[f"over_{name}"] = other / best if best and other else None
    for name, limit in (("share_of_bound", "bound_us"), ("share_of_reading", "reading_us")):
        out[name] = found[limit] / best if best and found.get(limit) else None
    return out


_MEANS = ("over_torch", "over_default", "over_defaults", "over_bf16", "share_of_bound", "share_of_reading")


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means for each model and kind, over all and for each number of tokens; the least ratio of
    each."""
    out = []
    for model, kind, tokens in product(MODELS, KINDS, (None, *TOKENS)):
        mine = [
            one for one in rows
            if (one["model"], one["kind"]) == (model, kind) and tokens in (None, one["tokens"]) and one.get("best_us")
        ]  # fmt: skip
        if not mine:
            continue
        means: dict[str, Any] = {"model": model, "kind": kind, "tokens": tokens, "rows": len(mine)}
        for name in _MEANS:
            values = [one[name] for one in mine if one.get(name)]
            means[name] = geometric_mean(values) if values else None
            means[f"least_{name}"] = min(values) if values else None
        out.append(means)
    return out


def measure(options: argparse.Namespace) -> None:
    """Measures every case, and writes the rows after each."""
    started = time.monotonic()
    found = machine(options.device, 1)[0]
    models = MODELS if options.models is None else options.models
    chosen = ("qwen3-30b-a3b",) if options.quick else tuple(models)
    kinds = [kind for kind in KINDS if kind in options.kinds]  # bf16 first, for over_bf16()
    wanted = list(cases(chosen, options.tokens, options.routings, kinds))
    with_torch = options.device == "cuda" and "torch" in found.environment.libraries
    alone: dict[Case, dict[str, Any]] = {}
    if with_torch:  # before the device process takes its memory
        for case in wanted:
            alone[case] = torch_times(found, case.problem)
            say(f"torch {case}: {alone[case]}")
    rows: list[dict[str, Any]] = []
    warm = {"precompile": precompiled(found.environment, default_cache_dir())} if options.precompile else {}
    with DeviceClient(found, kernel_cache()) as runner:
        types = dict.fromkeys(case.problem.input_type for case in wanted)
        ceilings = {dtype: ceilings_of(runner, [dtype]) for dtype in types}
        for case in wanted:
            if options.minutes is not None and time.monotonic() - started > 60 * options.minutes:
                say(f"stopped after {options.minutes} minutes with {len(rows)} of {len(wanted)} rows")
                break
            one = {
                **case.words(),
                **tuned_row(runner, case, options.seconds, ceilings[case.problem.input_type]),
                **alone.get(case, {}),
            }
            rows.append({**one, **ratios(one), "over_bf16": over_bf16(one, rows)})
            say(_line(rows[-1]))
            _write(options, found, rows, len(wanted), warm)


def _line(one: dict[str, Any]) -> str:
    names = (
        "best_us",
        "default_us",
        *ALONE,
        "reading_us",
        "over_torch",
        "over_bf16",
        "share_of_reading",
    )
    figures = ", ".join(f"{name} {one[name]:.3g}" for name in names if one.get(name))
    who = f"{one.get('family')} {one.get('parameters')}" if "error" not in one else one["error"]
    return f"{one['model']} {one['layer']} {one['tokens']} {one['routing']} {one['kind']}: {figures}; {who}"


def _write(
    options: argparse.Namespace,
    found: FoundDevice,
    rows: list[dict[str, Any]],
    wanted: int,
    warm: dict[str, Any],
) -> None:
    write(
        options.json.stem, found.environment,
        {"what": (__doc__ or "").split("\n\n")[-1].strip(), **warm, "seconds": options.seconds, "rows_wanted": wanted,
         "complete": len(rows) == wanted, "summary": summary(rows), "rows": rows},
        options.json.parent,
    )  # fmt: skip


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grouped", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="OUT")
    parser.add_argument("--quick", action="store_true", help="Qwen3-30B-A3B alone")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring, for each product")
    parser.add_argument("--minutes", type=float, help="begin no further row after this time")
    parser.add_argument(
        "--precompile", action="store_true", help="compile the portfolio first, as an idle worker does"
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "hip", "cpu"))
    parser.add_argument("--models", nargs="+", choices=list(MODELS))
    parser.add_argument("--tokens", nargs="+", type=int, default=list(TOKENS))
    parser.add_argument("--routings", nargs="+", default=list(NAMED), choices=list(NAMED))
    parser.add_argument("--kinds", nargs="+", default=["bf16"], choices=list(KINDS))
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
