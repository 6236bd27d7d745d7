"""The pairs that run under compute-sanitizer: candidates of our own families on small problems of every kind,
compiled by one process and launched by another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from backends.cache import BinaryCache
from backends.cuda.driver import CudaDriver
from backends.cuda.telemetry import NvmlTelemetry
from backends.environment import Environment
from backends.errors import CompileError, IllegalSolution
from backends.gpu.device import GpuDevice
from backends.kernel_checks.candidates import GPU_FAMILIES, vendors
from backends.kernels.sampling import legal
from backends.kernels.triton.family import LIBRARY, TritonFamily, holds
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.protocol import Device, Family
from backends.registry import backend
from backends.solution import Solution
from backends.toolchains.nvrtc import Nvrtc
from backends.wire import problem_to_wire
from benchmarks.cuda_tuned import kernel_cache
from tuners.inputs import draw, fixed_operand
from tuners.packed import packing_operands, prepacked

FAMILIES = tuple(name for name, family in GPU_FAMILIES.items() if "cuda" in vendors(family))
#: Sizes of one, sizes that are no multiple of a tile, rows aligned to 16 bytes and not; every transpose,
#: type, epilogue and bias axis; k large enough that the pipeline stages wrap around, and for split-K.
PROBLEMS = (
    from_mm(1, 1, 1), from_mm(1, 6, 1, "bf16"), from_mm(6, 1, 6, "fp16"), from_mm(1, 1, 600, "tf32"),
    from_blas(37, 21, 45, lda=40, ldb=48, beta=1.0),
    from_blas(40, 35, 24, trans_b="T", alpha=2.0, beta=3.0, ldc=41, ldd=43),
    from_blas(133, 36, 300, trans_a="T", bias="fp32", activation="gelu"),
    from_blas(70, 19, 33, trans_a="T", trans_b="T", bias="fp32", bias_axis="n", activation="silu"),
    from_mm(130, 67, 1027), from_mm(144, 264, 520, trans_a="T", beta=1.0),
    from_linear(35, 40, 1160, "bf16", bias="bf16", activation="relu"),
    from_linear(21, 143, 523, "bf16", dtype_d="fp32", beta=1.0, ldb=525, alignment=2),
    from_mm(133, 75, 259, "bf16"), from_linear(300, 272, 1032, "bf16", beta=1.0, bias="fp32"),
    from_blas(136, 72, 640, "fp16", trans_a="T", trans_b="T", bias="fp16"),
    from_blas(48, 24, 1040, "fp16", trans_b="T", bias="fp32", bias_axis="n"),
    from_mm(257, 389, 131, "fp16", lda=133, alignment=2),
    from_bmm(3, 20, 37, 41, "fp16", stride_b=0, beta=1.0), from_bmm(5, 33, 24, 40),
    from_bmm(7, 16, 16, 64, "bf16", trans_b="T", activation="relu"), from_bmm(300, 24, 40, 33, trans_a="T"),
    from_mm(65, 70, 515, "tf32", trans_a="T", beta=1.0), from_linear(72, 136, 1032, "tf32"),
    from_linear(1, 75, 1160, "bf16", bias="bf16", activation="silu"),
    from_linear(1, 70, 523, "fp16", ldb=525, alignment=2, beta=1.0), from_mm(1, 133, 77, bias="fp32"),
    from_mm(1, 136, 77, "bf16"), from_blas(1, 66, 300, trans_a="T", beta=2.0, ldd=3),
    from_blas(40, 1, 66, "bf16", trans_a="T", trans_b="T", ldb=3), from_linear(2, 65, 648, "bf16", beta=1.0),
    from_mm(3, 136, 130, "fp16", bias="fp16", activation="gelu"), from_linear(5, 37, 267, "bf16", ldb=269),
    from_mm(9, 100, 50, beta=1.0), from_linear(16, 100, 320, "fp16", dtype_d="fp32", bias="fp16"),
    from_blas(11, 80, 96, "bf16", trans_a="T", beta=1.0, bias="bf16", bias_axis="n", ldd=13),
    from_linear(37, 45, 176, "int8"), from_mm(80, 48, 272, "int8", beta=1.0),
    from_linear(40, 48, 272, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="tensor"),
    *(from_linear(m, n, k, "fp8_e4m3", dtype_d=kind, scale_a="block_1x128", scale_b="block_128x128")
      for m, n, k, kind in ((1, 300, 1160, "bf16"), (133, 257, 515, "fp16"), (37, 136, 640, "fp32"))),
    from_mm(70, 136, 515, "bf16", trans_a="T", trans_b="T"), from_linear(133, 257, 640, "fp16"),
)  # fmt: skip
#: Quantised weights: every type, zero point and scale, few columns and many, rows aligned to 16 bytes.
QUANTISED = tuple(
    from_linear(
        m, 72 + 8 * place, k, dtype_a, dtype_b=kind, zero_b=zero, scale_b=scale,
        scale_dtype=dtype_a if kind != "fp4_e2m1" else None, **more,
    )
    for place, (kind, zero, scale) in enumerate((
        ("uint4", "none", "block_1x32"), ("uint4", "eight", "block_1x128"), ("uint4", "uint4", "block_1x64"),
        ("uint4", "float", "block_1x128"), ("uint4", "shift", "block_1x32"), ("int4", "none", "block_1x64"),
        ("int4", "none", "outer"), ("int8", "none", "outer"), ("int8", "none", "block_1x128"),
        ("fp4_e2m1", "none", "block_1x32"),
    ))
    for m, k, dtype_a, more in ((1, 384, "bf16", {}), (7, 1152, "fp16", {"bias": "fp16"}), (8, 256, "bf16", {"beta": 1.0}))
)  # fmt: skip
#: And rows of scales of MXFP4 that start anywhere, and end within a word.
QUANTISED += tuple(
    from_linear(m, n, k, dtype_a, dtype_b="fp4_e2m1", scale_b="block_1x32", **more)
    for m, n, k, dtype_a, more in (
        (1, 41, 32, "bf16", {}), (5, 133, 160, "fp16", {"bias": "fp16"}), (8, 37, 288, "bf16", {"beta": 1.0}),
        (3, 67, 2880, "bf16", {}), (33, 39, 1120, "bf16", {}), (100, 129, 96, "fp16", {}),
    )
)  # fmt: skip
#: And columns and rows enough for clusters, and for several rounds of a ring.
QUANTISED += tuple(
    from_linear(m, n, k, "bf16", dtype_b=kind, zero_b=zero, scale_b=scale, scale_dtype=of, **more)
    for m, n, k, kind, zero, scale, of, more in (
        (128, 520, 2048, "uint4", "eight", "block_1x128", "bf16", {}),
        (200, 264, 1280, "uint4", "uint4", "block_1x64", "bf16", {"bias": "bf16"}),
        (72, 328, 4096, "int4", "none", "block_1x32", "bf16", {"beta": 1.0}),
        (100, 136, 1040, "int8", "none", "outer", "bf16", {"ldd": 141}),
        (64, 392, 2080, "fp4_e2m1", "none", "block_1x32", None, {}),
        (300, 520, 1280, "uint4", "float", "block_1x128", "bf16", {}),
        (531, 264, 672, "fp4_e2m1", "none", "block_1x32", None, {"bias": "bf16"}),
    )
)  # fmt: skip
#: The first, packed beforehand: every type, zero point and scale.
PACKED = tuple(replace(one, prepacked=True) for one in QUANTISED[:30:2])
#: And one and two columns of it, with rows enough for several rounds of a ring.
PACKED += tuple(
    from_linear(
        m, n, k, dtype_a, dtype_b=kind, zero_b=zero, scale_b=scale, scale_dtype=dtype_a, prepacked=True, **more
    )
    for m, n, k, dtype_a, kind, zero, scale, more in (
        (1, 5000, 2048, "bf16", "uint4", "eight", "block_1x128", {}),
        (2, 4008, 1344, "fp16", "uint4", "uint4", "block_1x64", {"bias": "fp16"}),
        (2, 2600, 640, "bf16", "int4", "none", "outer", {"beta": 1.0}),
        (2, 1032, 3200, "bf16", "uint4", "shift", "block_1x128", {}),
        (1, 264, 896, "fp16", "int4", "none", "block_1x128", {"bias": "fp16"}),
        (2, 72, 4160, "bf16", "uint4", "float", "block_1x64", {"beta": 1.0}),
        (1, 33, 32, "bf16", "int4", "none", "tensor", {}),
        (1, 776, 1152, "bf16", "uint4", "uint4", "block_1x128", {"ldd": 781}),
    )
)  # fmt: skip
#: And 8-bit floats: rows that end within a block of scales, and blocks of it.
QUANTISED += tuple(
    from_linear(m, n, k, dtype_a, dtype_b="fp8_e4m3", scale_b=scale, scale_dtype=of, **more)
    for m, n, k, dtype_a, scale, of, more in (
        (1, 300, 1152, "bf16", "block_128x128", "fp32", {}), (5, 72, 272, "fp16", "outer", "fp32", {"bias": "fp16"}),
        (8, 264, 1024, "bf16", "block_128x128", "bf16", {"beta": 1.0}), (33, 136, 1040, "bf16", "tensor", "bf16", {}),
        (100, 296, 2048, "fp16", "block_128x128", "fp16", {}), (200, 264, 1040, "bf16", "outer", "bf16", {"ldd": 269}),
    )
)  # fmt: skip
#: 8-bit operands with scales: few columns and many, k of no whole chunk, every kind of scale.
BYTES = tuple(
    from_linear(m, n, k, kind, dtype_d=out, scale_a=of_a, scale_b=of_b, **more)
    for kind, of_a, of_b in (
        ("int8", "outer", "outer"), ("int8", "tensor", "outer"), ("fp8_e4m3", "outer", "outer"),
        ("fp8_e4m3", "tensor", "tensor"), ("fp8_e4m3", "block_1x128", "block_128x128"),
    )
    for m, n, k, out, more in (
        (1, 72, 272, "bf16", {}), (7, 200, 1152, "bf16", {"bias": "bf16"}), (33, 136, 2064, "fp16", {}),
        (133, 257, 656, "fp16", {"beta": 1.0}),
    )
)  # fmt: skip
#: Both operands of MXFP4: few columns and many, lines of scales that are whole words and that start anywhere.
MX_PRODUCTS = tuple(
    from_linear(m, n, k, "fp4_e2m1", scale_a="block_1x32", scale_b="block_1x32", **more)
    for m, n, k in ((1, 72, 32), (7, 41, 160), (33, 136, 1152), (133, 257, 288), (100, 129, 2880))
    for more in ({}, {"dtype_d": "fp16", "bias": "fp16"}, {"dtype_d": "fp32", "beta": 1.0, "lda": k + 32, "ldb": k + 64})
)  # fmt: skip
#: Grouped products: groups without rows, rows of one group alone, sizes that are no multiple of a tile.
GROUPED = tuple(
    from_linear(m, n, k, dtype, groups=groups, routing=routing, **more)
    for dtype, more in (("bf16", {}), ("fp16", {"dtype_d": "fp32"}), ("bf16", {"ldd": 217}))
    for m, n, k, groups, routing in (
        (1, 72, 264, 8, "uniform"), (83, 200, 136, 6, [0, 70, 0, 1, 12, 0]), (33, 96, 1032, 1, "uniform"),
        (300, 133, 520, 40, "skewed"), (257, 130, 72, 4, [0, 0, 0, 257]), (64, 136, 2056, 3, "uniform"),
    )
) + tuple(
    from_linear(m, n, k, dtype, groups=groups, routing=routing, activation="swiglu", **more)
    for dtype, more in (("bf16", {}), ("fp16", {"dtype_d": "fp32", "ldd": 117}))
    for m, n, k, groups, routing in (
        (1, 74, 264, 8, "uniform"), (83, 200, 136, 6, [0, 70, 0, 1, 12, 0]), (300, 134, 520, 40, "skewed"),
    )
)  # fmt: skip
#: The same of 8-bit floats, with scales of blocks and of rows.
GROUPED_BYTES = tuple(
    from_linear(m, n, k, "fp8_e4m3", groups=groups, routing=routing, scale_a=of_x, scale_b=of_w, **more)
    for of_x, of_w, more in (
        ("block_1x128", "block_128x128", {}), ("block_1x128", "block_128x128", {"ldd": 317, "dtype_d": "fp32"}),
        ("outer", "outer", {"dtype_d": "fp16"}),
    )
    for m, n, k, groups, routing in (
        (1, 300, 272, 8, "uniform"), (83, 200, 144, 6, [0, 70, 0, 1, 12, 0]), (33, 96, 1040, 1, "uniform"),
        (300, 133, 528, 40, "skewed"), (257, 130, 80, 4, [0, 0, 0, 257]), (64, 136, 2064, 3, "uniform"),
    )
)  # fmt: skip
#: The same of 4-bit weights: every zero point, rows of scales of MXFP4 that start anywhere.
GROUPED_WEIGHTS = tuple(
    from_linear(
        m, n, k, dtype_a, dtype_b=kind, zero_b=zero, scale_b=scale, groups=groups, routing=routing,
        scale_dtype=dtype_a if kind != "fp4_e2m1" else None, **more,
    )
    for kind, zero, scale, dtype_a, more in (
        ("fp4_e2m1", "none", "block_1x32", "bf16", {}), ("fp4_e2m1", "none", "block_1x32", "fp16", {"dtype_d": "fp32"}),
        ("uint4", "uint4", "block_1x128", "bf16", {}), ("uint4", "float", "block_1x64", "fp16", {}),
        ("uint4", "shift", "block_1x128", "bf16", {"ldd": 217}), ("int4", "none", "block_1x32", "bf16", {}),
    )
    for m, n, k, groups, routing in (
        (1, 72, 256, 8, "uniform"), (83, 200, 512, 6, [0, 70, 0, 1, 12, 0]), (33, 96, 1024, 1, "uniform"),
        (300, 136, 768, 40, "skewed"), (257, 136, 256, 4, [0, 0, 0, 257]),
        *(((64, 132, 2080, 3, "uniform"),) if kind == "fp4_e2m1" else ()),
    )
)  # fmt: skip
#: For families with candidates only for more than one wave of tiles, or for a short k with many rows and
#: columns.
LARGE = (
    from_mm(1409, 1561, 519, "bf16"), from_linear(1409, 1561, 1031, "bf16", beta=1.0), from_linear(133, 517, 129, "bf16"),
    from_linear(133, 517, 31, "bf16", alignment=2, beta=1.0), from_linear(132, 520, 48, "fp16", bias="fp16", activation="gelu"),
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A candidate and its problem, with its compiled file, or why it was not compiled."""

    problem: GemmProblem
    solution: Solution
    binary: Path | None = None
    error: str = ""

    def told(self) -> dict[str, Any]:
        """The pair as results list it."""
        return {
            "problem": problem_to_wire(self.problem), "slug": self.problem.slug, "solution": self.solution.id,
            "parameters": dict(self.solution.parameters), **({"error": self.error} if self.error else {}),
        }  # fmt: skip


def sampled(
    name: str, environment: Environment, sample: int, seed: int
) -> list[tuple[GemmProblem, Solution]]:
    """The family's likeliest candidate for each problem (of LARGE if it has none for PROBLEMS), then `sample`
    more from its legal space (fewer if not that many are found); the same for the same seed. Triton's candidates
    are limited to those that may fit in shared memory."""
    family = GPU_FAMILIES[name]
    every = (*PROBLEMS, *QUANTISED, *PACKED, *BYTES, *MX_PRODUCTS, *GROUPED, *GROUPED_BYTES, *GROUPED_WEIGHTS)
    mine = [problem for problem in every if family.supports(problem)]

    def first(problems: Sequence[GemmProblem]) -> list[tuple[GemmProblem, Solution]]:
        return [(each, one) for each in problems for one in islice(family.solutions(each, environment), 1)]

    likeliest = first(mine) or first(LARGE)
    found = dict.fromkeys(likeliest)
    triton = family if isinstance(family, TritonFamily) else None
    build = None if triton is None else environment.libraries.get(LIBRARY)
    for problem, solution in legal(family, mine, environment, Random(f"{seed} {name}"), build):
        if len(found) >= len(likeliest) + sample:
            break
        if triton is None or holds(triton.config(problem, solution.parameters), environment):
            found[problem, solution] = None
    return list(found)


def compiled(
    wanted: Sequence[tuple[GemmProblem, Solution]],
    family: Family,
    environment: Environment,
    cache: BinaryCache,
) -> Iterator[Pair]:
    """Every pair in order, compiled by one thread per processor of this process. Raises StorageError."""

    def one(pair: tuple[GemmProblem, Solution]) -> Pair:
        try:
            found = family.compile(*pair, environment, cache)
        except CompileError as error:
            return Pair(*pair, error=str(error))
        return Pair(*pair, None if found is None else found.resolve())

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield from pool.map(one, wanted)


def launch(pairs: Sequence[Pair], device: Device) -> None:
    """Launches each pair twice, waits for each launch, and prints a line before and after. A pair that is
    illegal on the device (too much shared memory) is reported and skipped. Raises GemmtuneError for a launch
    that fails."""
    for pair in pairs:
        print(f"pair {pair.problem.slug} {pair.solution.id}", flush=True)
        try:
            _run(pair, device)
        except IllegalSolution as error:
            print(f"refused {pair.solution.id}: {error}", flush=True)
        else:
            print(f"launched {pair.problem.slug} {pair.solution.id}", flush=True)


def _run(pair: Pair, device: Device) -> None:
    """Launches on separately allocated operands; an alignment below 16 bytes is met exactly, not exceeded."""
    problem, rng = pair.problem, np.random.default_rng(0)
    kernel = device.load(problem, pair.solution, pair.binary)
    with ExitStack() as held:
        address = {}
        for name, layout in layouts(problem).items():
            askew = max(problem.alignment, layout.dtype.bytes) if problem.alignment < 16 else 0
            buffer = device.allocate(askew + layout.bytes)
            held.callback(buffer.free)
            kind = "scale" if name.startswith("scale_") else "normal"
            fixed = fixed_operand(name, problem)
            values = draw(rng, layout.elements, layout.dtype, kind) if fixed is None else fixed
            buffer.upload(values.view(np.uint8), askew)
            address[name] = buffer.address + askew
        workspace = 0
        if kernel.workspace_bytes:
            buffer = device.allocate(kernel.workspace_bytes)
            held.callback(buffer.free)
            workspace = buffer.address
        operands, packing = Operands.at(address, problem.scalars), prepacked(kernel)
        kernel.prepare()
        if packing is not None:  # of the very size, so that memcheck sees what reads or writes beyond it
            buffer = device.allocate(packing.packed_bytes)
            held.callback(buffer.free)
            packing.pack(packing_operands(operands, buffer.address))()
            device.synchronize()
            operands = replace(operands, packed=buffer.address)
        start = kernel.bind(operands, workspace)
        for _ in range(2):
            start()
            device.synchronize()


def to_json(pairs: Sequence[Pair], environment: Environment) -> str:
    """The text that launch_file() reads."""
    rows = [
        {
            "problem": one.problem.to_dict(),
            "solution": one.solution.to_dict(),
            "binary": None if one.binary is None else str(one.binary),
        }
        for one in pairs
    ]
    return json.dumps({"environment": environment.to_dict(), "pairs": rows})


def launch_file(path: Path) -> None:
    """Launches the file's pairs on device 0. The device is not probed again, so that no library is loaded
    here. Raises GemmtuneError."""
    found = json.loads(path.read_text())
    pairs = [
        Pair(
            GemmProblem.from_dict(row["problem"]),
            Solution.from_dict(row["solution"]),
            None if row["binary"] is None else Path(row["binary"]),
        )
        for row in found["pairs"]
    ]
    environment = Environment.from_dict(found["environment"])
    telemetry, families = NvmlTelemetry(environment.uuid), backend("cuda").families()
    launch(pairs, GpuDevice(CudaDriver(0), environment, telemetry, Nvrtc(), kernel_cache(), families))
