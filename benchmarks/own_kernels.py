"""Our own kernel families against torch and cuBLASLt, one family at a time, on the first GPU of this machine.

    python -m benchmarks.own_kernels decode   one to 17 rows in bf16: gemv, skinny, skinny-mma, skinny-ring,
                                              skinny-shifted
    python -m benchmarks.own_kernels ladder   fp32 squares: every step of the ladder
    python -m benchmarks.own_kernels squares  large bf16 squares: tile-wgmma, tile-mma, stream-k, Triton's
    python -m benchmarks.own_kernels batched  batches of small GEMMs: small-batch
    python -m benchmarks.own_kernels all      all four, one document

Each family is tuned by itself (its likeliest candidates first, verified, cold operands, graphs) against the
baselines, which are timed interleaved with it. `cublaslt` is one of the families, and so is `cublas`
(cublasGemmStridedBatchedEx) for batches. `ratio` is torch's time over the family's best. --only MxNxK ... (of
F.linear; MxNxKxBATCH of a batch) and --families a,b narrow the run down; --dtype takes another type.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backends.environment import Environment
from backends.errors import DeviceError, GemmtuneError
from backends.gpu.padded import misaligned
from backends.kernels.families import FAMILIES
from backends.kernels.family import KernelFamily
from backends.kernels.triton.families import FAMILIES as TRITON
from backends.kernels.triton.family import TritonFamily
from backends.outcome import Outcome
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from benchmarks.cuda_tuned import (
    TIMED,
    Tuned,
    against,
    ceilings_of,
    ends,
    kernel_cache,
    machine,
    say,
    screening_figures,
)
from benchmarks.report import RESULTS, write
from tuners.budget import Budget, Search
from tuners.ceilings import Ceilings
from tuners.device_client import DeviceClient
from tuners.policy import MeasurementPolicy
from tuners.roofline import bound
from tuners.runner import Runner
from tuners.session import Session
from tuners.tuning_settings import TuningSettings

DECODE = (
    (1, 4096, 4096), (1, 14336, 4096), (1, 4096, 14336), (1, 1280, 8192), (1, 7168, 2048), (4, 4096, 4096),
    (8, 4096, 4096), (16, 4096, 4096), (16, 1280, 8192), (16, 4096, 14336), (17, 4097, 4095),
)  # fmt: skip
LADDER = ((2048, 2048, 2048), (4096, 4096, 4096))
SQUARES = ((4096, 4096, 4096), (8192, 8192, 8192))
#: m, n, k, batch -> the type of the inputs.
BATCHED: Mapping[tuple[int, ...], str] = {
    (32, 32, 32, 12960): "fp32", (16, 16, 16, 50000): "fp32", (24, 40, 33, 10000): "fp32", (64, 64, 64, 4096): "bf16",
}  # fmt: skip


def problems(which: str, only: Sequence[tuple[int, ...]], dtype: str | None) -> list[GemmProblem]:
    """The problems of a command: F.linear for decode and squares, plain GEMMs for the ladder, strided batches
    of them for batched."""

    def shapes(default: Iterable[tuple[int, ...]], numbers: int) -> list[tuple[int, ...]]:
        return [shape for shape in only or default if len(shape) == numbers]

    found = []
    if which in ("decode", "all"):
        found += [from_linear(m, n, k, dtype or "bf16") for m, n, k in shapes(DECODE, 3)]
    if which in ("squares", "all"):
        found += [from_linear(m, n, k, dtype or "bf16") for m, n, k in shapes(SQUARES, 3)]
    if which in ("ladder", "all"):
        found += [from_mm(m, n, k, dtype or "fp32") for m, n, k in shapes(LADDER, 3)]
    if which in ("batched", "all"):
        for shape in shapes(BATCHED, 4):
            m, n, k, batch = shape
            found.append(from_bmm(batch, m, n, k, dtype or BATCHED.get(shape, "fp32")))
    return found


def asked(problem: GemmProblem, environment: Environment, wanted: Sequence[str]) -> list[str]:
    """The families to tune, libraries first: those with a candidate for the problem, of `wanted` if given."""
    listed: Mapping[str, KernelFamily | TritonFamily] = {**FAMILIES, **TRITON}
    own = [
        name for name, family in listed.items() if any(True for _ in family.solutions(problem, environment))
    ]
    libraries = ["cublaslt"] if problem.batch == 1 else ["cublas", "cublaslt"]
    if misaligned(problem):
        libraries += ["cublaslt-padded", "tile-wgmma-padded"]
    return [name for name in [*libraries, *own] if not wanted or name in wanted]


def measured(runner: Runner, problem: GemmProblem, family: str, seconds: float, seed: int) -> Tuned:
    """Tunes one family by itself, interleaved with the baselines. Raises GemmtuneError."""
    policy = MeasurementPolicy.of(runner.environment.vendor)
    search = Search(seed=seed, families=(family,))
    session = Session(runner, problem, TuningSettings(policy, Budget(seconds), search))
    tuned = Tuned(session)
    for outcome in session.run():
        tuned.take(outcome, 0.0)
    return tuned


def fastest(tuned: Tuned, family: str) -> Outcome | None:
    """The family's fastest finalist; if none reached the final, its fastest screened candidate."""
    finals = [o for o in tuned.finals.values() if o.solution.family == family]
    seen = finals or [o for _, o in tuned.screened if o.solution.family == family and o.status in TIMED]
    return min(seen, key=lambda o: o.seconds or 0.0, default=None)


def figures(tuned: Tuned, family: str, ceilings: Ceilings | None) -> dict[str, Any]:
    """A family's row: its best against the verdict's baseline, interleaved where both were in the final."""
    problem, verdict = tuned.session.problem, tuned.verdict
    base, best = tuned.finals[verdict.baseline], fastest(tuned, family)
    values: dict[str, Any] = {
        "problem": problem.slug, "m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch, "family": family,
        "baseline": verdict.baseline_name, "baseline_us": (base.seconds or 0.0) * 1e6, **screening_figures(tuned),
    }  # fmt: skip
    if best is None or best.seconds is None:
        return {**values, "best_us": None, "ratio": None}
    confidence = tuned.session.settings.rule.shared(len(tuned.finals) - 1)
    raced = best.solution.id in tuned.finals
    interval = against(base, best, confidence) if raced else None
    values |= {
        "best_us": best.seconds * 1e6, "solution": best.solution.id, "parameters": dict(best.solution.parameters),
        "ratio": interval.mid if interval else (base.seconds or 0.0) / best.seconds,
        "interval": ends(interval) if interval else None, "raced": raced,
        "gflops": problem.flops / best.seconds * 1e-9,
        "gbytes": (problem.bytes_read + problem.bytes_written) / best.seconds * 1e-9,
        "proven": verdict.winner == best.solution.id,
    }  # fmt: skip
    if ceilings is not None:
        limit = bound(problem, ceilings)
        values |= {"bound_us": limit.seconds * 1e6, "share": limit.share(best.seconds), "binds": limit.binds}
    return values


def in_words(values: dict[str, Any]) -> str:
    """A row as a line of progress."""
    if "error" in values:
        return f"{values['problem']:24} {values['family']:16} {values['error']}"
    if values["best_us"] is None:
        return f"{values['problem']:24} {values['family']:16} nothing ran: {values['by_status']}"
    share = f" {values['share']:5.0%} of the {values['binds']} bound" if "share" in values else ""
    return (
        f"{values['problem']:24} {values['family']:16} {values['best_us']:9.2f} us  {values['ratio']:6.3f}x of "
        f"{values['baseline']} {values['baseline_us']:.2f} us {share}, {values['gflops']:.0f} GFLOP/s, "
        f"{values['gbytes']:.0f} GB/s, {values['configurations']} timed {values['by_status']} "
        f"{values['parameters']}"
    )


def rows(runner: DeviceClient, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per problem and family."""
    found = []
    for problem in problems(options.which, options.only or (), options.dtype):
        ceilings = ceilings_of(runner, [problem.multiplied_as])
        for family in asked(problem, runner.environment, options.families):
            try:
                values = figures(
                    measured(runner, problem, family, options.seconds, options.seed), family, ceilings
                )
            except DeviceError:
                raise
            except GemmtuneError as error:
                values = {
                    "problem": problem.slug,
                    "family": family,
                    "error": f"{type(error).__name__}: {error}",
                }
            say(in_words(values))
            found.append(values)
    return found


def _shape(text: str) -> tuple[int, ...]:
    found = tuple(int(part) for part in text.split("x"))
    if len(found) not in (3, 4):
        raise ValueError(f"{text} is neither MxNxK nor MxNxKxBATCH")
    return found


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("which", choices=("decode", "squares", "ladder", "batched", "all"))
    made.add_argument("--seconds", type=float, default=2.0, help="of measuring, a family and problem (2)")
    made.add_argument("--only", type=_shape, nargs="+", metavar="MxNxK", help="these (MxNxKxBATCH: batches)")
    made.add_argument(
        "--families", type=lambda text: text.split(","), default=[], help="these, comma-separated"
    )
    made.add_argument("--dtype", help="of the inputs (bf16 for decode and squares, else fp32 or a row's own)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument(
        "--output", type=Path, default=RESULTS, help="folder of the result (benchmarks/results)"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one benchmark."""
    options = parser().parse_args(arguments)
    device = machine("cuda", 1)[0]
    with DeviceClient(device, kernel_cache()) as runner:
        ceilings = ceilings_of(runner, ["bf16", "fp32"])
        found = rows(runner, options)
    write(
        f"cuda-own-{options.which}", device.environment,
        {"what": "each family's best over a sample, verified, against torch's own call (ratio: torch's time over "
         "it) and the measured bound; cold operands", "seconds": options.seconds,
         "ceilings": None if ceilings is None else asdict(ceilings), "rows": found},
        options.output,
    )  # fmt: skip


if __name__ == "__main__":
    main()
