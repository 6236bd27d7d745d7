"""NVIDIA's nvMatmulHeuristics, if it is installed, as a model of which configurations are likely.

It is given the GPU's name and runs in a separate process that sees no GPU. Where it finds the driver it
creates a context on the first GPU even so, which neither a process that compiles nor one that measures may
have; large sizes take it minutes; and destroying a handle that has been queried crashes. Its answer depends
only on the problem and the GPU's name, so candidates keep their order.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from itertools import chain, zip_longest
from typing import Any

from backends.environment import Environment
from backends.kernels.triton.nvidia_process import HEURISTICS
from backends.kernels.triton.oriented_gemm import TritonOrientedGemm
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The module, its distribution, and the line of versions whose interface and precisions this module knows.
MODULE, DISTRIBUTION, LINE = "nvMatmulHeuristics", "nvidia-matmul-heuristics", "0.1."
#: The driver's name of a GPU -> the library's (NvMatmulHeuristicsNvidiaGpu). Whole GPUs only: an instance of
#: a partitioned GPU has another name.
_GPUS: Mapping[str, str] = {
    "NVIDIA A100-SXM4-80GB": "A100_SXM_80GB", "NVIDIA A100 80GB PCIe": "A100_PCIE_80GB",
    "NVIDIA A30": "A30_PCIE", "NVIDIA A10": "A10_PCIE", "NVIDIA A40": "A40_PCIE",
    "NVIDIA GeForce RTX 3090": "RTX_3090", "NVIDIA RTX A6000": "RTX_A6000",
    "NVIDIA L20": "L20", "NVIDIA L40": "L40", "NVIDIA L40S": "L40S", "NVIDIA L4": "L4",
    "NVIDIA GeForce RTX 4090": "RTX_4090", "NVIDIA RTX 6000 Ada Generation": "RTX_6000_ADA",
    "NVIDIA H100 80GB HBM3": "H100_SXM", "NVIDIA H100 PCIe": "H100_PCIE", "NVIDIA H100 NVL": "H100_NVL",
    "NVIDIA H200": "H200_SXM", "NVIDIA H20": "H20_SXM",
    "NVIDIA B200": "B200", "NVIDIA GB200": "GB200_NVL", "NVIDIA GB300": "GB300_NVL",
    "NVIDIA GeForce RTX 5080": "RTX_5080", "NVIDIA GeForce RTX 5090": "RTX_5090",
}  # fmt: skip
_LETTERS: Mapping[str, str] = {
    "fp16": "H", "bf16": "T", "fp32": "S", "tf32": "F", "int8": "B", "int32": "I", "fp8_e4m3": "Q",
    "fp8_e5m2": "R",
}  # fmt: skip
#: The precisions that the library's header lists: A and B, compute type, C and D; or A, B, C, compute type,
#: D. It also answers to any other text, but that answer is for no type.
_PRECISIONS = frozenset({
    "HSH", "HSS", "TST", "TSS", "SFS", "BII", "QQTST", "QQTSQ", "QQHSH", "QQHSQ", "QQSSS",
    "QRTST", "QRTSQ", "QRTSR", "QRHSH", "QRHSQ", "QRHSR", "QRSSS",
    "RQTST", "RQTSQ", "RQTSR", "RQHSH", "RQHSQ", "RQHSR", "RQSSS",
})  # fmt: skip
#: The library's time grows with the sides of the problem: up to this one it is about 40 ms at most.
_MOST_SIZE = 2**18
#: More configurations than it has returned for any problem.
_MOST = 32
_TIMEOUT_SECONDS = 30.0
#: The most rows of tiles in a band of the tile order.
_MOST_ROWS = 32


@dataclass(frozen=True)
class Proposals:
    """Configurations, likeliest first: the parameters of a tile, and `split_k`. They are not checked against
    the kernels' rules; `dropped` counts those that the kernels' parameters cannot express. `note` tells the
    user which model orders the candidates, or why the library does not; "" if it is not installed."""

    values: tuple[Mapping[str, Parameter], ...] = ()
    dropped: int = 0
    note: str = ""


@dataclass(frozen=True)
class Question:
    """A GEMM in the library's terms: D of m x n."""

    m: int
    n: int
    k: int
    batch: int
    layout: str
    precision: str


@lru_cache(maxsize=1)
def build() -> str | None:
    """The library's version, or None if it is not installed. Does not import it."""
    try:
        return metadata.version(DISTRIBUTION) if importlib.util.find_spec(MODULE) is not None else None
    except (ImportError, ValueError, metadata.PackageNotFoundError):
        return None


def proposals(problem: GemmProblem, environment: Environment) -> Proposals:
    """What the library proposes for a problem that the kernels support; nothing for other vendors' GPUs."""
    version = build()
    if version is None or environment.vendor != "cuda":
        return Proposals()
    name = f"nvMatmulHeuristics {version}"
    ours = "our own model orders Triton's candidates"
    readings = [TritonOrientedGemm(problem, swapped) for swapped in (False, True)]
    why = _unknown(version, readings, environment)
    if why is not None:
        return Proposals(note=f"{name} {why}: {ours}")
    answers = _answers(_GPUS[environment.product], tuple(question(one) for one in readings))
    if isinstance(answers, str):
        return Proposals(note=f"{name} failed ({answers}): {ours}")
    # The library does not rank the two orientations of the problem against each other: they alternate.
    turns = chain.from_iterable(zip_longest(*answers))
    found = [(number % 2 == 1, one) for number, one in enumerate(turns) if one is not None]
    if not found:
        return Proposals(note=f"{name} proposes nothing: {ours}")
    values = [_values(swap, one, environment) for swap, one in found]
    kept = tuple(one for one in values if one is not None)
    return Proposals(
        kept, len(values) - len(kept), f"{name} and our own model propose Triton's candidates in turn"
    )


def _unknown(version: str, readings: Iterable[TritonOrientedGemm], environment: Environment) -> str | None:
    """Why the library is not asked, or None."""
    if not version.startswith(LINE):
        return f"is not of the line {LINE}x that is known here"
    if environment.product not in _GPUS:
        return f"describes no {environment.product}"
    for one in readings:
        if precision(one) is None:
            p = one.problem
            return f"knows no {p.dtype_a} x {p.dtype_b} in {p.compute} to {p.dtype_d}"
        if max(one.m, one.n, one.k, one.batch) > _MOST_SIZE:
            return f"takes long for sizes over {_MOST_SIZE}"
    return None


def precision(one: TritonOrientedGemm) -> str | None:
    """A GEMM's types in the library's letters, or None if the library does not list that precision."""
    p = one.problem
    types = {"a": p.dtype_a, "b": p.dtype_b}
    a, b = (_LETTERS.get(types[one.own(name)], "?") for name in ("a", "b"))
    compute, d = _LETTERS.get(p.compute, "?"), _LETTERS.get(p.dtype_d, "?")
    c = _LETTERS.get(p.dtype_c, "?")
    if a in "QR":
        # C is not read if beta is zero, and the library lists no 8-bit C.
        text = a + b + ("T" if p.beta == "zero" and d in "QR" else c) + compute + d
    else:
        text = a + compute + d if a == b and c == d else "?"
    return text if text in _PRECISIONS else None


def question(one: TritonOrientedGemm) -> Question:
    """One orientation of a problem as a question. The swapped one is the problem as BLAS has it,
    column-major; the other is the same memory, row-major, where A and B change places and keep their
    transposes."""
    p = one.problem
    a, b = ("N" if trans == "N" else "T" for trans in (p.trans_a, p.trans_b))
    layout = f"{a}{b}_COL_MAJOR" if one.swapped else f"{b}{a}_ROW_MAJOR"
    return Question(one.m, one.n, one.k, one.batch, layout, precision(one) or "")


@lru_cache(maxsize=1024)
def _answers(gpu: str, questions: tuple[Question, ...]) -> tuple[list[dict[str, Any]], ...] | str:
    """The configurations of each question, or an error message. Errors are cached too, so that a library that
    fails is waited for once for each problem."""
    request = {"gpu": gpu, "questions": [asdict(one) for one in questions], "most": _MOST}
    found = HEURISTICS.ask(request, _TIMEOUT_SECONDS)
    return found if isinstance(found, str) else tuple(found)


def _values(swap: bool, found: Mapping[str, Any], environment: Environment) -> dict[str, Parameter] | None:
    """A configuration in the kernels' parameters. None if warps share k or do not cover the tile, which
    Triton does not let us choose, or if blocks form clusters, which the kernels do not have."""
    (bm, bn, bk), (wm, wn, wk) = found["block"], found["warp"]
    if wk != bk or found["cluster"] != [1, 1] or not wm or not wn or bm % wm or bn % wn:
        return None
    return {
        "block_m": bm, "block_n": bn, "block_k": bk, "group_m": _group(found, environment),
        "num_warps": bm // wm * (bn // wn), "num_stages": found["stages"], "swap": swap,
        "split_k": found["split_k"],
    }  # fmt: skip


def _group(found: Mapping[str, Any], environment: Environment) -> int:
    """Rows of tiles in a band of the tile order. If the library's bands are of columns: as many rows as run
    on the device at once with that many columns, so that the same tiles share L2."""
    swizzle = int(found["swizzle"])
    if found["order"] == 0:
        return swizzle
    rows = min(_MOST_ROWS, max(1, environment.units // max(1, swizzle)))
    return 1 << (rows.bit_length() - 1)
