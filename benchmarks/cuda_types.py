"""A mid-size problem of every combination of types, epilogues and layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.registry import FoundDevice
from benchmarks.cuda_jobs import Jobs, spread
from benchmarks.cuda_tuned import in_words, row, say, tune
from tuners.device_client import DeviceClient

_SCALED = {"scale_a": "tensor", "scale_b": "tensor"}
_OUTER = {"scale_a": "outer", "scale_b": "outer"}


def combinations() -> dict[str, Callable[[], GemmProblem]]:
    """Name -> a mid-size F.linear (or batched) problem with a combination of types, epilogue or layout."""

    def linear(dtype: str, **more: Any) -> Callable[[], GemmProblem]:
        return lambda: from_linear(512, 2048, 2048, dtype, **more)

    plain = {
        "fp64": linear("fp64"), "fp32": linear("fp32"), "tf32": linear("tf32"), "fp16": linear("fp16"),
        "fp16, fp16 accumulation": linear("fp16", compute="fp16"), "bf16": linear("bf16"),
        "bf16 -> fp32": linear("bf16", dtype_d="fp32"), "fp16 -> fp32": linear("fp16", dtype_d="fp32"),
        "int8 -> int32": linear("int8", dtype_d="int32"), "int8 -> int8": linear("int8", dtype_d="int8"),
    }  # fmt: skip
    fp8 = {
        "fp8 e4m3 -> bf16, tensor scales": linear("fp8_e4m3", dtype_d="bf16", **_SCALED),
        "fp8 e4m3 -> bf16, outer scales": linear("fp8_e4m3", dtype_d="bf16", **_OUTER),
        "fp8 e4m3 -> bf16, fast accumulation": linear(
            "fp8_e4m3", dtype_d="bf16", **_SCALED, fast_accumulation=True
        ),
        "fp8 e4m3 x e5m2 -> bf16, tensor scales": linear(
            "fp8_e4m3", dtype_b="fp8_e5m2", dtype_d="bf16", **_SCALED
        ),
        "fp8 e4m3 -> fp8 e4m3, scaled D": linear(
            "fp8_e4m3", dtype_c="bf16", dtype_d="fp8_e4m3", **_SCALED, scale_d="tensor"
        ),
    }
    after = {
        "bf16, bias": linear("bf16", bias="bf16"),
        "bf16, relu": linear("bf16", activation="relu"),
        "bf16, gelu": linear("bf16", activation="gelu"),
        "bf16, bias + gelu": linear("bf16", bias="bf16", activation="gelu"),
        "bf16, beta 1": linear("bf16", beta=1.0),
        "bf16, any alpha and beta": linear("bf16", alpha=0.5, beta=0.5),
    }
    laid_out = {
        "bf16, strided batch": lambda: from_bmm(16, 256, 512, 512, "bf16"),
        "bf16, batch with one B": lambda: from_bmm(16, 256, 512, 512, "bf16", stride_b=0),
        "bf16, addresses aligned to 2 bytes": linear("bf16", alignment=2),
        "bf16, odd leading dimensions": lambda: from_mm(
            512, 2048, 2048, "bf16", trans_b="T", lda=2049, ldb=2049
        ),
    }
    return {**plain, **fp8, **after, **laid_out}


def tuned_types(
    found: Sequence[FoundDevice], wanted: dict[str, Callable[[], GemmProblem]], seconds: float
) -> list[dict[str, Any]]:
    """One row per combination, in the given order."""
    rows: dict[str, dict[str, Any]] = {}

    def one(runner: DeviceClient, name: str) -> None:
        problem = wanted[name]()
        rows[name] = {"name": name, "problem": problem.slug, **row(tune(runner, problem, seconds))}
        say(f"{name}: {in_words(rows[name])}")

    def failed(device: FoundDevice, name: str, error: Exception) -> None:
        rows[name] = {"name": name, "error": str(error), "error_type": type(error).__name__}
        say(f"{name}: {rows[name]['error']}")

    spread(found, Jobs(list(wanted)), one, failed)
    return [rows[name] for name in wanted if name in rows]
