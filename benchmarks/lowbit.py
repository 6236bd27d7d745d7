"""Low-bit products: our kernels, torch's own calls, the bf16 product, and the reading bound.

    python -m benchmarks.lowbit --json OUT [--quick] [--seconds S] [--minutes M] [--device cuda]
        [--models llama-3-8b qwen3-8b ...] [--tp 1 8]

Tunes y = x W^T of the linear layers of Llama-3 8B and 70B, of the dense Qwen3 8B, 14B and 32B, and of DeepSeek-V3's dense
layers: a device's share of them with tensor parallelism of 1 and of 8. A product that several models have is tuned once.
Kinds: weights of 4 bits in groups of 128 (w4a16), of MXFP4 (w4a16_mxfp4), of 8 bits with a scale a row (w8a16), of
fp8 with a scale a row (w8a16_fp8) or with those of blocks of 128 x 128 (w8a16_fp8_blocks) times bf16, 1, 8 and 32 rows; int8 by int8 and fp8 by fp8 with scales of rows and columns, fp8 with a scale a tensor
and with scales of blocks of 128, 1 to 4096 rows. MXFP4 has gpt-oss-20b's layers, too: those of one expert. Rows are
written as they are measured; `--minutes` begins no further row after that time; `--precompile` compiles the portfolio
first, as an idle worker does. `--quick`: Llama-3-8B on one device
alone. `by_model` has the geometric means of a model's layers for each tensor parallelism, `summary` those of all products.

`best_us` is the verified tuning's winner in its final, `family` its family; `default_us` the call that a torch user
runs, as the tuning times it (its weights packed beforehand; its result copied to D). `torch_us` is the same call timed
by itself in a CUDA graph, without that copy, and `bf16_us` is torch.mm of bf16 weights, timed alike; of fp8
`torch_fast_us` is the call with use_fast_accum. torch has no call for MXFP4 and for fp8 beside bf16: they are dequantised to bf16 before torch.mm.
For int8, torch_us is _int_mm without scaling its sums. Weights are cold everywhere. `bound_us` is the time to read
weights, scales and activations and to write the result at the measured bandwidth; None if it could not be measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from backends.cache import default_cache_dir
from backends.errors import DeviceError, GemmtuneError
from backends.problem import GemmProblem, from_linear
from backends.registry import FoundDevice
from benchmarks.bounds import gain_at_bound
from benchmarks.cuda_tuned import Tuned, ceilings_of, kernel_cache, machine, row, say, tune
from benchmarks.lowbit_calls import torch_times
from benchmarks.lowbit_layers import DEVICES, MODELS, MX_MODELS, PREPACKED
from benchmarks.precompiled import precompiled
from benchmarks.report import geometric_mean, write
from tuners.ceilings import Ceilings
from tuners.device_client import DeviceClient
from tuners.roofline import bound

MX_KIND = "w4a16_mxfp4"
TOKENS = (1, 8, 32)
#: Rows where activations have 8 bits, too.
BYTE_TOKENS = (1, 8, 32, 64, 128, 4096)
_ROWS = {"dtype_d": "bf16", "scale_a": "outer", "scale_b": "outer"}
#: Kind -> arguments of its problem.
KINDS: dict[str, dict[str, Any]] = {
    "w4a16": {
        "dtype_a": "bf16", "dtype_b": "uint4", "scale_b": "block_1x128", "scale_dtype": "bf16", "zero_b": "eight",
    },
    MX_KIND: {"dtype_a": "bf16", "dtype_b": "fp4_e2m1", "scale_b": "block_1x32", "scale_dtype": "fp8_e8m0"},
    "w8a16": {"dtype_a": "bf16", "dtype_b": "int8", "scale_b": "outer", "scale_dtype": "bf16"},
    "w8a16_fp8": {"dtype_a": "bf16", "dtype_b": "fp8_e4m3", "scale_b": "outer", "scale_dtype": "bf16"},
    "w8a16_fp8_blocks": {
        "dtype_a": "bf16", "dtype_b": "fp8_e4m3", "scale_b": "block_128x128", "scale_dtype": "fp32",
    },
    "w8a8_int8_rows": {"dtype_a": "int8", **_ROWS},
    "w8a8_fp8_rows": {"dtype_a": "fp8_e4m3", **_ROWS},
    "w8a8_fp8_tensor": {"dtype_a": "fp8_e4m3", "dtype_d": "bf16", "scale_a": "tensor", "scale_b": "tensor"},
    "w8a8_fp8_blocks": {
        "dtype_a": "fp8_e4m3", "dtype_d": "bf16", "scale_a": "block_1x128", "scale_b": "block_128x128",
    },
}  # fmt: skip


#: The same weights, packed beforehand into a layout of the solution's own.
KINDS |= {f"{kind}{PREPACKED}": {**KINDS[kind], "prepacked": True} for kind in KINDS if "a16" in kind}


@dataclass(frozen=True)
class Case:
    """One product of the list."""

    kind: str
    model: str
    layer: str
    m: int
    n: int
    k: int
    tp: int = 1

    @property
    def problem(self) -> GemmProblem:
        """x[m,k] by quantised w[n,k]."""
        return from_linear(self.m, self.n, self.k, **KINDS[self.kind])

    def words(self) -> dict[str, Any]:
        """The case as a row has it."""
        names = {"kind": self.kind, "model": self.model, "tp": self.tp, "layer": self.layer}
        return {**names, "m": self.m, "n": self.n, "k": self.k, "problem": self.problem.id}


def tokens_of(kind: str) -> tuple[int, ...]:
    """The numbers of rows that a kind is measured at."""
    return BYTE_TOKENS if kind.startswith("w8a8") else TOKENS


def cases(
    kinds: Sequence[str], models: Sequence[str], chosen: Sequence[int] | None, devices: Sequence[int] = (1,)
) -> Iterator[Case]:
    """Every product, the kinds one after the other; `chosen`: numbers of rows other than a kind's own."""
    for kind in kinds:
        tokens = chosen or tokens_of(kind)
        known = MODELS | MX_MODELS if kind.startswith(MX_KIND) else MODELS
        for model, tp in product((name for name in models if name in known), devices):
            for layer, n, k in known[model].layers(tp):
                for m in tokens:
                    yield Case(kind, model, layer, m, n, k, tp)


# ---- ours ----------------------------------------------------------------------------------------


def tuned_row(runner: DeviceClient, case: Case, seconds: float, ceilings: Ceilings | None) -> dict[str, Any]:
    """A tuning's figures. Without a verdict, which a default that fails prevents, `best_us` is that of the
    fastest verified candidate of the screening, and `error` says why."""
    seen: list[Tuned] = []

    def never(tuned: Tuned, _: float) -> bool:
        seen[:] = [tuned]
        return False

    try:
        tuned = tune(runner, case.problem, seconds, stop=never)
        found = row(tuned, ceilings)
        return {**found, "default_us": found["baseline_us"], "screening": screened(tuned)}
    except DeviceError:
        raise
    except GemmtuneError as error:
        failed: dict[str, Any] = {"error": str(error), "error_type": type(error).__name__}
    if seen and (best := screened(seen[-1])):
        failed |= {"best_us": best[0]["us"], "family": best[0]["family"], "screening": best}
        failed["bound_us"] = None if ceilings is None else bound(case.problem, ceilings).seconds * 1e6
    return failed


def screened(tuned: Tuned, most: int = 5) -> list[dict[str, Any]]:
    """The fastest verified candidates of the screening."""
    timed = sorted(tuned.timed(), key=lambda one: median(one.samples))
    return [
        {"us": median(one.samples) * 1e6, "family": one.solution.family, **dict(one.solution.parameters)}
        for one in timed[:most]
    ]


def ratios(found: dict[str, Any]) -> dict[str, Any]:
    """What the row's times are over our best."""
    best = found.get("best_us")
    out = {}
    for name in ("default", "torch", "torch_fast", "bf16"):
        other = found.get(f"{name}_us")
        out[f"over_{name}"] = other / best if best and other else None
    limit = found.get("bound_us")
    return {**out, "share_of_bound": limit / best if best and limit else None}


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means for each kind and number of rows, over the different products."""
    found = {(one["kind"], one["m"], one["n"], one["k"]): one for one in rows}
    return _means(list(found.values()), ("kind", "m"))


def by_model(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means over the layers of each model, for each kind, tensor parallelism and number of rows."""
    return _means([{"tp": 1, **one} for one in rows], ("kind", "model", "tp", "m"))


def _means(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Geometric means of the rows that agree in `names`, in the order of kinds, models and numbers."""
    order = {name: place for place, name in enumerate((*KINDS, *MODELS, *MX_MODELS))}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in rows:
        if one.get("best_us"):
            groups.setdefault(tuple(one[name] for name in names), []).append(one)
    out = []
    for values in sorted(groups, key=lambda of: [order.get(value, value) for value in of]):
        mine = groups[values]
        means: dict[str, Any] = {**dict(zip(names, values, strict=True)), "rows": len(mine)}
        for name, times in (("most_over_default", "default_us"), ("most_over_bf16", "bf16_us")):
            # What a launch at the bound would gain.
            known = [
                gain_at_bound(one[times], one["bound_us"])
                for one in mine
                if one.get(times) and one.get("bound_us")
            ]
            means[name] = geometric_mean(known) if known else None
        for name in ("over_default", "over_torch", "over_torch_fast", "over_bf16", "share_of_bound"):
            known = [one[name] for one in mine if one.get(name)]
            means[name] = geometric_mean(known) if known else None
        out.append(means)
    return out


def ceilings_by_type(
    wanted: Sequence[Case], measured: Callable[[str], Ceilings | None]
) -> dict[str, Ceilings | None]:
    """The ceilings for each input type of the cases; None for a type whose large product cannot be measured."""
    kinds = dict.fromkeys(case.problem.input_type for case in wanted)
    return {kind: measured(kind) for kind in kinds}


def measure(options: argparse.Namespace) -> None:
    """Measures every case, and writes the rows after each."""
    started = time.monotonic()
    found = machine(options.device, 1)[0]
    models, devices = (("llama-3-8b",), (1,)) if options.quick else (options.models, options.tp)
    wanted = list(cases(options.kinds, models, options.tokens, devices))
    if not wanted:
        sys.exit(
            f"nothing to measure: {', '.join(models)} have no layers of {', '.join(options.kinds)} there"
        )
    with_torch = options.device == "cuda" and "torch" in found.environment.libraries
    rows: list[dict[str, Any]] = []
    measured: dict[tuple[str, int, int, int], dict[str, Any]] = {}
    warm = {"precompile": precompiled(found.environment, default_cache_dir())} if options.precompile else {}
    with DeviceClient(found, kernel_cache()) as runner:
        ceilings = ceilings_by_type(wanted, lambda kind: ceilings_of(runner, [kind]))
        for case in wanted:
            if options.minutes is not None and time.monotonic() - started > 60 * options.minutes:
                say(f"stopped after {options.minutes} minutes with {len(rows)} of {len(wanted)} rows")
                break
            size = (case.kind, case.m, case.n, case.k)
            if size not in measured:
                times = torch_times(found.index, [case])[size] if with_torch else {}
                tuned = tuned_row(runner, case, options.seconds, ceilings[case.problem.input_type])
                measured[size] = {**tuned, **times, **ratios({**tuned, **times})}
            rows.append({**case.words(), **measured[size]})
            say(_line(rows[-1]))
            _write(options, found, rows, len(wanted), warm)


def _line(one: dict[str, Any]) -> str:
    names = ("best_us", "default_us", "torch_us", "bf16_us", "bound_us", "over_bf16", "share_of_bound")
    figures = ", ".join(f"{name} {one[name]:.3g}" for name in names if one.get(name))
    who = f"{one.get('family')} {one.get('parameters')}" if "error" not in one else one["error"]
    return f"{one['kind']} {one['m']}x{one['n']}x{one['k']}: {figures}; {who}"


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
         "complete": len(rows) == wanted, "summary": summary(rows), "by_model": by_model(rows), "rows": rows},
        options.json.parent,
    )  # fmt: skip


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lowbit", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="OUT")
    parser.add_argument("--quick", action="store_true", help="Llama-3-8B's layers on one device alone")
    known = [*MODELS, *MX_MODELS]
    parser.add_argument("--models", nargs="+", default=known, choices=known, help="default: all")
    parser.add_argument(
        "--tp", nargs="+", type=int, default=list(DEVICES), choices=DEVICES,
        help="by how many devices tensor parallelism shares a layer; default: each",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring, for each product")
    parser.add_argument("--minutes", type=float, help="begin no further row after this time")
    parser.add_argument(
        "--precompile", action="store_true", help="compile the portfolio first, as an idle worker does"
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "hip", "cpu"))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--tokens", nargs="+", type=int, help="numbers of rows, instead of each kind's own")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
