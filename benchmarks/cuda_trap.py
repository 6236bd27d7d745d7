"""cuBLASLt's algorithm 66 with split-K on compute capability 9.0: which splits give wrong results, and
whether the rule in backends/cuda/cublaslt_algorithms.py predicts each.

Every configuration is verified in this process on the exact problem, even if the family's rules exclude it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from backends.cuda.cublaslt import algo_config
from backends.cuda.cublaslt_algorithms import MatmulAlgoConfig, drops_remainder
from backends.errors import IllegalSolution
from backends.problem import GemmProblem, from_linear
from backends.protocol import Device, DeviceListedFamily
from backends.registry import FoundDevice, backend
from backends.solution import Solution
from benchmarks.cuda_tuned import kernel_cache, say
from tuners.inputs import Case
from tuners.verify_device import make_verifier

#: m, n of F.linear; k at and around multiples of 64, odd values, and the sizes of models.
SIZES = (48, 256)
DEPTHS = (256, 257, 258, 259, 260, 272, 320, 392, 520, 1000, 1024, 1032, 2048, 2056, 4088, 4095, 4096, 4097,
          4100, 4104, 7168, 8192, 8200, 14336)  # fmt: skip
#: Types of inputs and output: an fp32 output has no rounding that could hide a few missing elements of k.
TYPES = (("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"))
SPLITS = range(1, 33)
#: cublasLtReductionScheme_t: in place, in the compute type, in the output type.
SCHEMES = (1, 2, 4)
#: (tile, cluster) pairs tried per problem.
BASES = 3


def problems() -> Iterator[GemmProblem]:
    """Leading dimensions are multiples of 16 bytes, so that k may be odd."""
    for dtype, out in TYPES:
        for k in DEPTHS:
            ld = -(-k // 8) * 8
            yield from_linear(*SIZES, k, dtype, dtype_d=out, lda=ld, ldb=ld)


def variations(base: MatmulAlgoConfig) -> Iterator[MatmulAlgoConfig]:
    """The configuration with every split-K factor and reduction scheme."""
    for split in SPLITS:
        for scheme in SCHEMES if split > 1 else (0,):
            yield base._replace(splitk_num=split, reduction_scheme=scheme)


def trap(found: FoundDevice, algorithm: int, seconds: float) -> dict[str, Any]:
    """Tries every split on every problem, each within its share of `seconds`."""
    device = backend(found.backend).open(found.index, kernel_cache())
    family = backend(found.backend).families()["cublaslt"]
    if not isinstance(family, DeviceListedFamily):
        raise SystemExit("the family cublaslt lists nothing")
    rows: list[dict[str, Any]] = []
    every = list(problems())
    begin = time.monotonic()
    for number, problem in enumerate(every):
        until = begin + seconds * (number + 1) / len(every)
        listed = [
            s for s in family.enumerate_on(problem, device, None) if s.parameters["algo_id"] == algorithm
        ]
        step = max(1, len(listed) // BASES)
        rows.append(_one(problem, device, [algo_config(s) for s in listed[::step][:BASES]], until, found))
        say(f"{problem.slug}: {rows[-1]['tried']} tried, splits {rows[-1]['wrong_splits']} wrong")
    names = ("tried", "wrong", "unforetold", "undetected")
    tried, wrong, unforetold, undetected = (sum(row[name] for row in rows) for name in names)
    return {
        "what": f"cuBLASLt's algorithm {algorithm} with split k that the library's check passes: each verified",
        "algorithm": algorithm, "seconds": seconds, "took_seconds": time.monotonic() - begin,
        "tried": tried, "wrong": wrong, "unforetold": unforetold, "undetected": undetected, "rows": rows,
    }  # fmt: skip


def _one(
    problem: GemmProblem, device: Device, bases: list[MatmulAlgoConfig], until: float, found: FoundDevice
) -> dict[str, Any]:
    verifier, case = make_verifier(device), Case(problem, 0, "normal", "exact")
    tried, wrong, unforetold, undetected, first = 0, [], 0, 0, ""
    build = found.environment.libraries.get("cublaslt")
    for one in (variation for base in bases for variation in variations(base)):
        if time.monotonic() > until:
            break
        try:
            kernel = device.load(problem, Solution("cublaslt", 1, one._asdict(), build), None)
        except IllegalSolution:
            continue
        finding = verifier.check(kernel, case)
        tried += 1
        foretold = drops_remainder(one, problem.k)
        unforetold += bool(finding.wrong) and not foretold
        undetected += foretold and not finding.wrong
        if finding.wrong:
            wrong.append(one)
            first = first or finding.wrong
    verifier.forget()
    return {
        "problem": f"{problem.slug} -> {problem.dtype_d}", "k": problem.k, "tried": tried, "wrong": len(wrong),
        "wrong_splits": sorted({one.splitk_num for one in wrong}),
        "unforetold": unforetold, "undetected": undetected,
        "first_wrong": first,
    }  # fmt: skip
