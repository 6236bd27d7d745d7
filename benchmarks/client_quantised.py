"""One decode step of a Llama with 4-bit weights: torch in bf16, torch's own int4 call, and the rows of a bundle.

    python -m benchmarks.client_quantised tune OUT.gtb [--batch 1 8] [--seconds 3] [--minutes M] [--config FILE]
    python -m benchmarks.client_quantised run BUNDLE --json OUT [--batch 1 8] [--layers N] [--quick]
    python -m benchmarks.client_quantised run BUNDLE --prepacked [--seconds 3]   # tunes too, where there is no BUNDLE

`tune` tunes the model's linear layers (w4a16, groups of 128 with scales of bf16, z = 8) at each batch on this GPU and
writes the winners into a bundle; no service is needed. With `--prepacked` the problems are those that
record(prepacked=True) sees in a decode step of one layer, and each is tuned for weights as they are stored, too. `run` needs the client, torch and transformers alone.

`run` builds the model with random weights, captures one decode step in a CUDA graph and times its replays. Ways, one
after another: bf16 (nn.Linear); gemmtune (QuantizedLinear under apply()); gemmtune_fused (under apply(fuse=True)); dequantised
(the same modules without a table: what runs where M has no row); int4pack (torch._weight_int4pack_mm of the same weights). The output layer stays
bf16 in all. Logits are compared with those of the dequantised weights. What packing takes is told apart: gemmtune reads
the stored form, so that it packs nothing. `run --prepacked` adds prepacked and prepacked_fused, the same two with packed
copies by prepack_model(): of the same model, after those without copies. `packing` has the seconds of packing the whole
model (kernels loaded before) and the bytes of the copies. `--quick`: 2 layers, batch 1. On a CPU steps are called without a graph, and
int4pack is left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from backends.errors import DeviceError, GemmtuneError
from backends.packages.bundle import BundleBuilder, Measured, describe_row
from backends.problem import GemmProblem, from_linear
from benchmarks.cuda_tuned import Tuned, kernel_cache, machine, say, tune
from benchmarks.report import RESULTS, write
from tuners.decide import Judgement
from tuners.device_client import DeviceClient
from tuners.policy import MeasurementPolicy

CONFIG = Path(__file__).parents[1] / "tests" / "data" / "models" / "llama-3-8b.json"
GROUP = 128
_TARGET = "bundle"
_QUICK_LAYERS = 2
#: What a configuration has that says how its file was made.
_NOT_ARGUMENTS = ("architectures", "model_type", "torch_dtype")


# ---- tune ----------------------------------------------------------------------------------------


def layers(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(n, k) of the linear layers that a Llama has, each once: q and o, k and v, gate and up, down, and q, k and v,
    gate and up as one product each, which apply(fuse=True) makes of them."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    depth = config.get("head_dim") or hidden // heads
    queries, keys = heads * depth, config.get("num_key_value_heads", heads) * depth
    alone = ((queries, hidden), (hidden, queries), (keys, hidden), (inner, hidden), (hidden, inner))
    fused = ((queries + 2 * keys, hidden), (2 * inner, hidden))
    return list(dict.fromkeys((*alone, *fused)))


def problems(config: Mapping[str, Any], batches: Sequence[int]) -> list[GemmProblem]:
    """The products of a decode step at each batch."""
    how = {"dtype_b": "uint4", "scale_b": f"block_1x{GROUP}", "scale_dtype": "bf16", "zero_b": "eight"}
    return [from_linear(m, n, k, "bf16", **how) for n, k in layers(config) for m in batches]


def measured(tuned: Tuned) -> Measured | None:
    """The tuning's best kernel of our own as a bundle's row; None if it is no proven WIN."""
    verdict, session = tuned.verdict, tuned.session
    ours = verdict.targets.get(_TARGET)
    if ours is None or ours.judgement is not Judgement.WIN or not ours.proven:
        return None
    known = {one.solution.id: one.solution for _, one in tuned.screened}
    known |= {name: one.solution for name, one in tuned.finals.items()}
    said = {
        "judgement": ours.judgement.value, "seconds": ours.seconds, "baseline_seconds": ours.baseline_seconds,
        "baseline": verdict.baseline_name, "baseline_family": known[verdict.baseline].family,
        "speedup": list(ours.speedup.to_dict().values()), "rounds": ours.rounds, "session": None, "decided_at": None,
    }  # fmt: skip
    return Measured(session.problem, known[ours.solution], session.runner.environment, said)


def write_tuned(options: argparse.Namespace) -> None:
    """Tunes every product and writes the bundle. Raises SystemExit where nothing won."""
    config = json.loads(options.config.read_text())
    wanted, rows = problems(config, options.batch), 0
    if options.prepacked:
        from benchmarks.packed_models import recorded  # noqa: PLC0415

        device = _torch_device(options.device)
        wanted = recorded(build(config, 1, device), options.batch, device, GROUP)
        _free()
    found, started = machine(options.device, 1)[0], time.monotonic()
    policy, cache = MeasurementPolicy.of(found.environment.vendor), kernel_cache()
    device = found.environment.device_class
    with (
        DeviceClient(found, cache) as runner,
        BundleBuilder(device, policy.id, policy.to_dict()) as builder,
    ):
        for number, problem in enumerate(wanted):
            if options.minutes is not None and time.monotonic() - started > 60 * options.minutes:
                say(f"stopped after {options.minutes} minutes, {len(wanted) - number} products left")
                break
            try:
                tuned = tune(runner, problem, options.seconds)
                one = measured(tuned)
                say(_line(problem, tuned, one))
                if one is not None:
                    builder.add(describe_row(one, device.arch, cache))
                    rows += 1
            except DeviceError:
                raise
            except GemmtuneError as error:  # of one product: the others go on
                say(f"{problem.id}: no row; {type(error).__name__}: {error}")
        if not rows:
            raise SystemExit("no kernel of our own won: there is nothing to write")
        digest = builder.write(options.bundle)
    say(f"{options.bundle}: {rows} of {len(wanted)} products, digest {digest}")


def _line(problem: GemmProblem, tuned: Tuned, one: Measured | None) -> str:
    if one is None:
        verdict = tuned.verdict
        return f"{problem.id}: no row; {verdict.winner} is a {verdict.judgement.value} ({verdict.reason})"
    low, mid, high = one.verdict["speedup"]
    ends = f"{_number(low)} to {_number(high)}"
    return f"{problem.id}: {one.verdict['seconds'] * 1e6:.2f} us, {mid:.3f}x ({ends}) of {one.verdict['baseline']}"


def _number(value: float | None) -> str:
    return "open" if value is None else f"{value:.3f}"


# ---- run -----------------------------------------------------------------------------------------


def _torch_device(vendor: str) -> Any:
    import torch  # noqa: PLC0415

    return torch.device("cpu") if vendor == "cpu" else torch.device("cuda", 0)


def _free() -> None:
    """Gives what a model had back to the device."""
    import torch  # noqa: PLC0415

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def build(config: Mapping[str, Any], count: int | None, device: Any) -> Any:
    """A Llama of a configuration with random weights in bf16."""
    import torch  # noqa: PLC0415  (tune needs none)

    from benchmarks.client_torch_model import library  # noqa: PLC0415

    transformers = library()
    given = {name: value for name, value in config.items() if name not in _NOT_ARGUMENTS}
    if count is not None:
        given["num_hidden_layers"] = count
    given.setdefault("max_position_embeddings", 4096)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**given))
    finally:
        torch.set_default_dtype(before)
    return model.to(torch.bfloat16).eval().requires_grad_(False)


def int4pack_modules(model: Any) -> None:
    """Replaces QuantizedLinear modules by torch's own int4 call on the same weights."""
    import torch  # noqa: PLC0415
    from gemmtune.torch import QuantizedLinear  # noqa: PLC0415
    from gemmtune.torch.quantised.products import int4pack  # noqa: PLC0415

    class Int4Linear(torch.nn.Module):  # type: ignore[misc]
        """torch._weight_int4pack_mm with weights that were packed at the start."""

        def __init__(self, module: Any) -> None:
            super().__init__()
            form = module.quantized_weight.form
            self.group, self.out_features = form.group, form.n
            packed, pairs = int4pack(form, module.weight, module.scales, module.zeros)
            self.register_buffer("packed", packed)
            self.register_buffer("pairs", pairs)

        def forward(self, given: Any) -> Any:
            """[..., k] to [..., n]."""
            rows = given.reshape(-1, given.shape[-1])
            out = torch._weight_int4pack_mm(rows, self.packed, self.group, self.pairs)
            return out.view(*given.shape[:-1], self.out_features)

    for name, module in list(model.named_modules()):
        if isinstance(module, QuantizedLinear):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, Int4Linear(module))


def steps(
    model: Any, way: str, options: argparse.Namespace, device: Any,
    used: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> dict[int, dict[str, Any]]:  # fmt: skip
    """Batch -> the time of a step, its logits, and what a report counted of a step."""
    import gemmtune.torch  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from benchmarks.client_torch_model import Step, milliseconds  # noqa: PLC0415

    found: dict[int, dict[str, Any]] = {}
    with torch.no_grad(), used() as handle:
        for batch in options.batch:
            taken = milliseconds(Step(model, batch, device), device)
            step = Step(model, batch, device)
            with gemmtune.torch.report() as count:
                logits = step().float()
            lines = count.report().lines
            found[batch] = {
                "milliseconds": taken, "tokens_per_second": batch / taken * 1e3, "logits": logits,
                "rows": [[one.m, one.n, one.k, one.calls, one.speedup] for one in lines if one.hit],
                "missed": [[one.m, one.n, one.k, one.calls] for one in lines if not one.hit],
                "modules": getattr(handle, "quantized", None), "fused": getattr(handle, "fused", None),
            }  # fmt: skip
            say(f"{way:12} batch {batch:3} {taken:9.3f} ms {batch / taken * 1e3:9.1f} tokens/s")
            gc.collect()
    return found


def distance(found: Any, exact: Any) -> float:
    """The root mean square of a difference over that of the values."""
    return float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def decode(options: argparse.Namespace) -> None:
    """Measures every way and writes the figures."""
    import gemmtune.torch  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from benchmarks.client_torch_model import library  # noqa: PLC0415
    from benchmarks.packed_models import packed, seconds_of  # noqa: PLC0415

    if options.quick:
        options.layers, options.batch = options.layers or _QUICK_LAYERS, [1]
    if options.prepacked and not options.bundle.exists():
        write_tuned(options)
    config = json.loads(options.config.read_text())
    table = gemmtune.load(options.bundle)
    vendor = table.device.vendor
    device = _torch_device(vendor)
    model = build(config, options.layers, device)
    ways = {"bf16": steps(model, "bf16", options, device)}
    packing: dict[str, Any] = {}
    packing["quantize_seconds"], names = seconds_of(
        device, lambda: gemmtune.torch.quantize_model(model, group_size=GROUP)
    )
    gc.collect()
    packing["gemmtune_seconds"] = 0.0  # the stored form is what the kernels read
    for way, fuse in (("gemmtune", False), ("gemmtune_fused", True)):
        used = partial(gemmtune.torch.apply, model, table, fuse=fuse, race=not options.no_race)
        ways[way] = steps(model, way, options, device, used)
    ours = ["gemmtune", "gemmtune_fused"]
    if options.prepacked:
        for way, fuse in (("prepacked", False), ("prepacked_fused", True)):
            applied = partial(gemmtune.torch.apply, model, table, fuse=fuse, race=not options.no_race)
            said = packing.setdefault(way, {})
            ways[way] = steps(model, way, options, device, partial(packed, model, applied, device, said))
            ours.append(way)
    ways["dequantised"] = steps(model, "dequantised", options, device)
    if vendor == "cuda":
        packing["int4pack_seconds"], _ = seconds_of(device, lambda: int4pack_modules(model))
        ways["int4pack"] = steps(model, "int4pack", options, device)
    rows = []
    for batch in options.batch:
        exact = ways["dequantised"][batch].pop("logits")
        values: dict[str, Any] = {"batch": batch}
        for way, by_batch in ways.items():
            one = by_batch[batch]
            # Of other weights, bf16 logits compare with nothing.
            logits = one.pop("logits", None)
            one["to_dequantised"] = None if logits is None or way == "bf16" else distance(logits, exact)
            values[way] = one
        values["speedup"] = {
            one: {
                way: values[way]["milliseconds"] / values[one]["milliseconds"] for way in ways if way != one
            }
            for one in ours
        }
        rows.append(values)
    figures = {
        "what": (__doc__ or "").split("\n\n")[-1].strip(), "bundle": table.digest, "config": config,
        "layers": options.layers or config["num_hidden_layers"], "quantized_modules": len(names),
        "group": GROUP, "torch": str(torch.__version__), "transformers": library().__version__,
        "packing": packing, "rows": rows,
    }  # fmt: skip
    for row in rows:
        for one, over in row["speedup"].items():
            said_over = ", ".join(f"{way} {x:.3f}x" for way, x in over.items())
            say(f"batch {row['batch']}: {one} over {said_over}")
    out = options.json or RESULTS / f"client-quantised{'-prepacked' * options.prepacked}.json"
    write(out.stem, machine(vendor, 1)[0].environment, figures, out.parent)


def parser() -> argparse.ArgumentParser:
    """The commands' options."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.client_quantised", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = found.add_subparsers(required=True)
    tuning = commands.add_parser("tune", help="tune the model's layers and write a bundle")
    tuning.add_argument("bundle", type=Path)
    tuning.set_defaults(command=write_tuned)
    running = commands.add_parser("run", help="time a decode step")
    running.add_argument("bundle", type=Path)
    running.add_argument(
        "--json",
        type=Path,
        metavar="OUT",
        help="default: client-quantised.json, or client-quantised-prepacked.json",
    )
    running.add_argument("--layers", type=int, help="of the model, instead of its own number")
    running.add_argument("--quick", action="store_true", help=f"{_QUICK_LAYERS} layers, batch 1")
    running.add_argument(
        "--no-race", action="store_true", help="leave rows of other libraries off instead of racing them"
    )
    running.set_defaults(command=decode)
    for one in (tuning, running):
        one.add_argument(
            "--prepacked", action="store_true",
            help="also rows that read packed copies of the weights; run tunes them where there is no BUNDLE",
        )  # fmt: skip
        one.add_argument(
            "--seconds", type=float, default=3.0, help="of measuring, for each product that is tuned"
        )
        one.add_argument("--minutes", type=float, help="tune no further product after this time")
        one.add_argument("--device", default="cuda", choices=("cuda", "hip", "cpu"), help="that is tuned for")
        one.add_argument("--batch", nargs="+", type=int, default=[1, 8])
        one.add_argument("--config", type=Path, default=CONFIG, help="a Llama's config.json")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command."""
    options = parser().parse_args(arguments)
    options.command(options)


if __name__ == "__main__":
    main()
