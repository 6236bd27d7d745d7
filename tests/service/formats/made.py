"""Problems, environments and rows that the formats' suites are fed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from backends.dtypes import COMPUTE_FOR, FP4, OUTPUTS_FOR
from backends.environment import Environment
from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_blas, from_linear
from backends.solution import Solution
from service.formats import (
    WRITERS,
    Entry,
    ExportOptions,
    ExportReport,
    ExportRow,
    Format,
    Found,
    Header,
    ImportedSession,
    Rejected,
)
from tuners.policy import MeasurementPolicy

H200 = Environment(
    "cuda", "sm_90", "NVIDIA H200", 132, 150754820096, "GPU-1", driver="580.82", runtime="13.2",
    libraries={"cublaslt": "13.2.0", "torch": "2.15.0+cu132"},
)  # fmt: skip
MI300X = Environment(
    "hip", "gfx942", "AMD Instinct MI300X", 304, 206141652992, "GPU-2", runtime="7.2.53211",
    libraries={
        "rocblas": "5.2.0.dabb6df2b9", "hipblaslt": "100202-dabb6df2b9", "rocm": "7.2.0-43",
        "gcn_arch": "gfx942:sramecc+:xnack-", "torch": "2.10.0+rocm7.2",
    },
)  # fmt: skip
CPU = Environment("cpu", "x86_64", "AMD EPYC", 2, 2**34, "CPU-1", libraries={"blas": "openblas 0.3.31"})
POLICY = MeasurementPolicy()

ROCBLAS = Solution("rocblas", 1, {"solution_index": -621294427}, "5.2.0.dabb6df2b9")
HIPBLASLT = Solution("hipblaslt", 1, {"solution_index": 477479}, "100202-dabb6df2b9")
ATTRIBUTES = {
    "algo_id": 66, "tile_id": 20, "stages_id": 35, "splitk_num": 1, "reduction_scheme": 0,
    "cta_swizzling": 0, "custom_option": 0, "inner_shape_id": 0, "cluster_shape_id": 2,
}  # fmt: skip
CUBLASLT = Solution("cublaslt", 1, ATTRIBUTES, "130200", workspace_bytes=2**20, deterministic=True)
CUBLASLT_NAME = "Gemm_Cublaslt_id_66_tile_20_stages_35_splitk_1_red_0_swizzle_0_custom_0_inner_0_cluster_2"
PACKED = Solution("packed", 1, {"mr": 6, "threads": 2, "dot": "fma", "fast": True, "nothing": None})
BASELINE = Solution("torch", 1, {"call": "linear"}, "2.15.0", workspace_bytes=4)
LINEAR = from_linear(16, 14336, 4096, "bf16")


def row(problem: GemmProblem = LINEAR, **changed: Any) -> ExportRow:
    """A WIN of a cuBLASLt algorithm on an H200, unless told."""
    made = ExportRow(
        problem=problem, keys=(), count=3, environment=H200, policy=POLICY, solution=CUBLASLT,
        baseline=BASELINE, baseline_name="torch", judgement="WIN", seconds=1.25e-05,
        baseline_seconds=2.5e-05, speedup=(1.9, 2.0, None), rounds=12, session="0123456789abcdef",
        decided_at="2026-10-04T12:00:00Z",
    )  # fmt: skip
    return replace(made, **changed)


def on_mi300x(problem: GemmProblem = LINEAR, solution: Solution = HIPBLASLT, **changed: Any) -> ExportRow:
    """A WIN on an MI300X."""
    return row(problem, **{"environment": MI300X, "solution": solution, **changed})


def written(
    name: str, rows: Sequence[ExportRow], target: str | None = None, **options: Any
) -> tuple[str, ExportReport]:
    """The text and the report."""
    report = ExportReport()
    device = options.pop("device", rows[0].environment.device_class if rows else H200.device_class)
    asked = ExportOptions(device, target, **options)
    return "".join(WRITERS[name].write(rows, asked, report)), report


def outcomes(fmt: Format, text: str | bytes) -> list[Found]:
    """What a format finds in a text."""
    raw = text.encode() if isinstance(text, str) else text
    lines = raw.split(b"\n")
    return list(fmt.read(lines if lines[-1] else lines[:-1]))


def sorted_out(found: Sequence[Found]) -> tuple[list[Entry], list[Rejected], dict[str, str]]:
    """Entries, rejected lines and the header."""
    header: dict[str, str] = {}
    for part in found:
        header |= part.values if isinstance(part, Header) else {}
    assert not any(isinstance(part, ImportedSession) for part in found)
    return (
        [part for part in found if isinstance(part, Entry)],
        [part for part in found if isinstance(part, Rejected)],
        header,
    )


# ---- any problem ---------------------------------------------------------------------------------

_SIZES = st.sampled_from([1, 2, 3, 5, 16, 64, 4096])
_FP8 = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz")
_MODES = ("none", "tensor", "outer", "block_32")


def _mostly(draw: st.DrawFn, usual: Any, *others: Any) -> Any:
    return usual if draw(st.integers(0, 5)) else draw(st.sampled_from(others))


@st.composite
def problems(draw: st.DrawFn) -> GemmProblem:
    """Every kind of problem, the plain ones more often."""
    m, n, k = draw(_SIZES), draw(_SIZES), draw(_SIZES)
    a = draw(st.sampled_from(list(COMPUTE_FOR)))
    ta, tb = draw(st.sampled_from("NTC")), draw(st.sampled_from("NTC"))
    batch = _mostly(draw, 1, 2, 7)
    rows_a, cols_a = (m, k) if ta == "N" else (k, m)
    rows_b, cols_b = (k, n) if tb == "N" else (n, k)
    lda, ldb = rows_a + _mostly(draw, 0, 1, 8), rows_b + _mostly(draw, 0, 1, 8)
    ldd = m + _mostly(draw, 0, 1, 8)
    call: dict[str, Any] = {
        "trans_a": ta, "trans_b": tb, "batch": batch, "lda": lda, "ldb": ldb, "ldd": ldd,
        "ldc": ldd + _mostly(draw, 0, 3),
        "stride_a": lda * cols_a + _mostly(draw, 0, 1), "stride_b": _mostly(draw, ldb * cols_b, 0),
        "stride_d": ldd * n + _mostly(draw, 0, 5), "stride_c": ldd * n + _mostly(draw, 0, 5),
        "dtype_b": draw(st.sampled_from(_FP8)) if a in _FP8 else a,
        "dtype_d": _mostly(draw, OUTPUTS_FOR[a][0], *OUTPUTS_FOR[a]),
        "compute": draw(st.sampled_from(COMPUTE_FOR[a])),
        "alpha": _mostly(draw, 1.0, 1.5), "beta": _mostly(draw, 0.0, 1.0, -0.5),
        "activation": _mostly(draw, "none", "relu", "gelu"),
        "bias": draw(st.sampled_from([None, None, a, "fp32", "fp16", "bf16"])),
        "bias_axis": _mostly(draw, "m", "n"),
        "alignment": _mostly(draw, 16, 8, 1),
        "fast_accumulation": a in _FP8 and draw(st.booleans()),
    }  # fmt: skip
    call["dtype_c"] = _mostly(draw, call["dtype_d"], *OUTPUTS_FOR[a])
    if a in _FP8 or not draw(st.integers(0, 9)):
        mode = draw(st.sampled_from(_MODES))
        call |= {"scale_a": mode, "scale_b": _mostly(draw, mode, *_MODES)}
        call |= {"scale_d": _mostly(draw, "none", "tensor")}
        call |= {"scale_dtype": _mostly(draw, "fp32", "fp8_e8m0", "fp8_e4m3")}
    if a == FP4:  # both sides, as they must be
        k = -(-k // 32) * 32
        call |= {
            "trans_a": "T",
            "trans_b": "N",
            "batch": 1,
            "lda": k + 2 * (lda % 2),
            "ldb": k,
            "scale_d": "none",
        }
        call |= {"scale_a": "block_1x32", "scale_b": "block_1x32", "scale_dtype": "fp8_e8m0"}
    for _ in range(4):  # leave out what makes it no problem
        try:
            return from_blas(m, n, k, a, **call)
        except InvalidProblem as error:
            part = error.field or ""
            call.pop({"epilogue": "activation", "scaling": "scale_a"}.get(part, part), None)
            if part in ("scaling", "epilogue", "bias"):
                assert a != FP4
                call = {key: v for key, v in call.items() if not key.startswith(("scale", "bias", "act"))}
    return from_blas(m, n, k, a)


_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), max_size=20)


@st.composite
def rows(draw: st.DrawFn) -> ExportRow:
    """Rows with every figure that a database may hold."""
    seconds = st.floats(1e-9, 1e3)
    speedup = draw(
        st.one_of(
            st.none(),
            st.tuples(st.none() | st.floats(0, 1e6), st.floats(1e-6, 1e6), st.none() | st.floats(1e-6, 1e6)),
        )
    )
    return row(
        draw(problems()),
        keys=tuple(draw(st.lists(_NAMES, max_size=2))),
        count=draw(st.integers(0, 2**63 - 1)),
        environment=draw(st.sampled_from([H200, MI300X, CPU])),
        policy=draw(st.sampled_from([POLICY, MeasurementPolicy("graph", "warm", max_workspace_bytes=5)])),
        solution=draw(st.sampled_from([CUBLASLT, HIPBLASLT, ROCBLAS, PACKED])),
        baseline_name=draw(_NAMES),
        judgement=draw(st.sampled_from(["WIN", "TIE", "LOSS", ""])),
        seconds=draw(st.none() | seconds),
        baseline_seconds=draw(st.none() | seconds),
        speedup=speedup,
        rounds=draw(st.integers(0, 60)),
        session=draw(st.none() | st.just("abc")),
        decided_at=draw(st.none() | st.just("2026-10-04T12:00:00Z")),
        provenance=draw(st.sampled_from(["measured", "imported"])),
        source=draw(_NAMES),
    )
