"""NVIDIA's nvMatmulHeuristics, where it is installed, as what says which configurations are likely.

It is asked about a GPU that it is told of, in a process of its own that sees none. Where it finds the driver
it makes a context on the first GPU even so, which neither a process that compiles nor one that measures may
have; large sizes take it minutes; and destroying a handle that was asked crashes. Its answer depends on the
problem and the GPU's name alone: candidates keep their order.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from backends.environment import Environment
from backends.kernels.triton.oriented_gemm import TritonOrientedGemm
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The module and its distribution, and the line of versions whose interface and precisions are known here.
MODULE, DISTRIBUTION, LINE = "nvMatmulHeuristics", "nvidia-matmul-heuristics", "0.1."
#: A GPU as its driver calls it -> as the library does (NvMatmulHeuristicsNvidiaGpu). Whole ones: an instance
#: of a partitioned GPU has another name.
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
#: Precisions that the library's header lists: A and B, compute type, C and D; or A, B, C, compute type, D. It
#: answers to any other text, too, and what it says then is of no type.
_PRECISIONS = frozenset({
    "HSH", "HSS", "TST", "TSS", "SFS", "BII", "QQTST", "QQTSQ", "QQHSH", "QQHSQ", "QQSSS",
    "QRTST", "QRTSQ", "QRTSR", "QRHSH", "QRHSQ", "QRHSR", "QRSSS",
    "RQTST", "RQTSQ", "RQTSR", "RQHSH", "RQHSQ", "RQHSR", "RQSSS",
})  # fmt: skip
#: The time it takes grows with the product's sides: up to this one it is some 40 ms at most.
_MOST_SIZE = 2**18
#: More than it has given of any product.
_MOST = 32
_TIMEOUT_SECONDS = 30.0
#: Rows of tiles that are walked together at most.
_MOST_ROWS = 32
_PROGRAM = Path(__file__).with_name("nvidia_worker.py")


@dataclass(frozen=True)
class Proposals:
    """Configurations, the likeliest first: the parameters of a tile, and `split_k`. Nothing of them is
    checked against the kernels' rules; `dropped` of them are in no terms of theirs. `note` says to people who
    orders candidates, or why the library does not; "" where it is not installed."""

    values: tuple[Mapping[str, Parameter], ...] = ()
    dropped: int = 0
    note: str = ""


@dataclass(frozen=True)
class Question:
    """A product in the library's terms: D of m x n."""

    m: int
    n: int
    k: int
    batch: int
    layout: str
    precision: str


@lru_cache(maxsize=1)
def build() -> str | None:
    """The library's version, None where it is not installed. Does not import it."""
    try:
        return metadata.version(DISTRIBUTION) if importlib.util.find_spec(MODULE) is not None else None
    except (ImportError, ValueError, metadata.PackageNotFoundError):
        return None


def proposals(problem: GemmProblem, environment: Environment) -> Proposals:
    """What the library proposes for a problem that the kernels support."""
    version = build()
    if version is None:
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
    # Neither reading of the product is the library's first: they take turns.
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
    """A product's types in the library's letters, None where it lists no such precision."""
    p = one.problem
    types = {"a": p.dtype_a, "b": p.dtype_b}
    a, b = (_LETTERS.get(types[one.own(name)], "?") for name in ("a", "b"))
    compute, d = _LETTERS.get(p.compute, "?"), _LETTERS.get(p.dtype_d, "?")
    c = _LETTERS.get(p.dtype_c, "?")
    if a in "QR":
        # C is not read where beta is zero; and the library lists none of 8 bits.
        text = a + b + ("T" if p.beta == "zero" and d in "QR" else c) + compute + d
    else:
        text = a + compute + d if a == b and c == d else "?"
    return text if text in _PRECISIONS else None


def question(one: TritonOrientedGemm) -> Question:
    """A reading of a product. The swapped one is the problem as BLAS has it, column-major; the other is of
    the same memory, row-major, where A and B change places and keep their transposes."""
    p = one.problem
    a, b = ("N" if trans == "N" else "T" for trans in (p.trans_a, p.trans_b))
    layout = f"{a}{b}_COL_MAJOR" if one.swapped else f"{b}{a}_ROW_MAJOR"
    return Question(one.m, one.n, one.k, one.batch, layout, precision(one) or "")


@lru_cache(maxsize=1024)
def _answers(gpu: str, questions: tuple[Question, ...]) -> tuple[list[dict[str, Any]], ...] | str:
    """The configurations of each question, or what went wrong: that is kept too, so that a library that fails
    is waited for once a problem."""
    request = {"gpu": gpu, "questions": [asdict(one) for one in questions], "most": _MOST}
    path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_PROGRAM)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_TIMEOUT_SECONDS:.0f} s"
    except OSError as error:
        return str(error)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"status {done.returncode}"
    try:
        return tuple(json.loads(done.stdout))
    except ValueError as error:
        return f"its answer cannot be read: {error}"


def _values(swap: bool, found: Mapping[str, Any], environment: Environment) -> dict[str, Parameter] | None:
    """A configuration in the kernels' terms; None where warps share k or do not make up the tile, which is
    not Triton's to choose, and where blocks form clusters, which the kernels have not."""
    (bm, bn, bk), (wm, wn, wk) = found["block"], found["warp"]
    if wk != bk or found["cluster"] != [1, 1] or not wm or not wn or bm % wm or bn % wn:
        return None
    return {
        "block_m": bm, "block_n": bn, "block_k": bk, "group_m": _group(found, environment),
        "num_warps": bm // wm * (bn // wn), "num_stages": found["stages"], "swap": swap,
        "split_k": found["split_k"],
    }  # fmt: skip


def _group(found: Mapping[str, Any], environment: Environment) -> int:
    """Rows of tiles that are walked together. Where the library walks columns together, as many rows as are
    on the device at once of so many columns: the same tiles share L2."""
    swizzle = int(found["swizzle"])
    if found["order"] == 0:
        return swizzle
    rows = min(_MOST_ROWS, max(1, environment.units // max(1, swizzle)))
    return 1 << (rows.bit_length() - 1)
