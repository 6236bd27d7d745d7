"""Matrix-core families on the emulator: environments, problems, findings, mistakes planted in the headers."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends import resources
from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.dtypes import DTYPES, to_host
from backends.environment import Environment
from backends.errors import LaunchError
from backends.kernels.family import KernelConfig, KernelFamily
from backends.kernels.headers import ROOT as HEADERS
from backends.kernels.oriented_gemm import OrientedGemm
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.solution import Parameter, Solution
from backends.toolchains.clang import STRICT, Clang
from backends.toolchains.clang_compilers import compiler_for
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.emulator.host import Built, HostDevice, HostKernel, build, built, compiled, source
from tests.backends.kernels.emulator.memory import HostBuffer
from tests.backends.kernels.samples import legal_values
from tuners.inputs import Case
from tuners.verify import Verifier

Values = Mapping[str, Parameter]
Found = Sequence[tuple[GemmProblem, Values]]
#: Compute units of an MI250X die, MI300X and MI355X; WGPs of an RX 7900 XTX and RX 9070 XT.
UNITS = {"gfx90a": 104, "gfx942": 304, "gfx950": 256, "gfx1100": 48, "gfx1201": 32}
#: Input types of each architecture's instructions.
TYPES = {
    "gfx90a": ("fp16", "bf16", "int8"),
    "gfx942": ("fp16", "bf16", "int8", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz"),
    "gfx950": ("fp16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2"),
    "gfx1100": ("fp16", "bf16", "int8"),
    "gfx1201": ("fp16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2"),
}
EPILOGUE = "device/matrix_epilogue.h"
#: The headers that belong to these families alone, in the order of their includes. (small_types.h specialises
#: functions of types.h, so it cannot be copied.)
OWN = (
    "device/matrix_core.h", "device/mfma.h", "device/wmma.h", "device/staged_operand.h",
    "device/staged_pipeline.h", "device/sum_patch.h", EPILOGUE, "device/register_staged_tile.h",
    "families/tile_mfma.h", "families/tile_wmma.h",
)  # fmt: skip
#: Those of the families for groups, without the epilogue, whose types a unit names as well.
GROUPED = (
    *(name for name in OWN[:-2] if name != EPILOGUE), "device/grouped.h", "device/grouped_tile.h",
    "device/grouped_staged_tile.h", "families/grouped_mfma.h",
)  # fmt: skip
#: And of those for 4-bit weights.
GROUPED_WEIGHTS = (
    *OWN[:6], "device/grouped.h", "device/grouped_tile.h", "device/paired_weights.h",
    "device/staged_weights.h", "device/weight_tile.h", "device/grouped_weight_tile.h",
    "families/grouped_dequant_mfma.h",
)  # fmt: skip
#: The same of one product's.
PLAIN_WEIGHTS = (
    *OWN[:6], "device/paired_weights.h", "device/staged_weights.h", "device/weight_tile.h",
    "device/dequant_matrix_tile.h", "families/dequant_mfma.h",
)  # fmt: skip


def environment(arch: str) -> Environment:
    return Environment("hip", arch, arch, UNITS[arch], 0, "none")


def refusal(family: KernelFamily, problem: GemmProblem, values: Values, arch: str) -> str | None:
    return family.illegal(problem, Solution(family.name, family.version, dict(values)), environment(arch))


def wrong_of(one: Built, problem: GemmProblem) -> str:
    """What the verifier says of a kernel with its warps in order and in reverse, or the launch itself."""
    verifier, case = Verifier(HostDevice()), Case(problem, 3, "normal", "exact")  # type: ignore[arg-type]
    said = []
    for other_way in (False, True):
        try:
            said.append(verifier.check(HostKernel(one, other_way), case, runs=1).wrong)
        except LaunchError as error:
            said.append(str(error))
    return "; ".join(filter(None, said))


def findings(family: KernelFamily, arch: str, found: Found, folder: Path) -> list[str]:
    """What is wrong with legal configurations; that reads of shared memory have no bank conflicts is asserted
    too."""
    for problem, values in found:
        assert refusal(family, problem, values, arch) is None, (problem.slug, values)
    row = GPU_ARCHS[arch]
    configurations = [family.config(*one, row) for one in found]
    text = source(configurations) + WAYS
    library = compiled(text, folder / "kernels.so", row.warp)
    library.ways()
    said = []
    for (problem, values), one in zip(found, built(library, configurations), strict=True):
        wrong = wrong_of(one, problem)
        if wrong:
            said.append(f"{problem.slug} by {dict(values)}: {wrong}")
        assert library.ways() <= 1, (problem.slug, values)
    return said


#: How many lanes that read at once have asked one bank for different words since this was last asked.
WAYS = """
extern "C" int ways() {
    const int found = gemmtune::host::machine.ways;
    gemmtune::host::machine.ways = 0;
    return found;
}
"""


@dataclass(frozen=True)
class Mistake:
    """A text that one of the headers has once, what stands there instead, and the case that shows it."""

    text: str
    wrong: str
    case: str


def copied(text: str, wrong: str, name: str, headers: Sequence[str] = OWN) -> str:
    """These headers with a mistake, in a namespace of their own."""
    texts = [(HEADERS / header).read_text() for header in headers]
    assert sum(one.count(text) for one in texts) == 1, text
    lines = [
        '#include "device/small_types.h"',
        '#include "device/epilogue.h"',
        '#include "device/global_memory.h"',
        '#include "device/tile_order.h"',
        '#include "device/dequantise.h"',
    ]
    if EPILOGUE not in headers:
        lines.append(f'#include "{EPILOGUE}"')
    for one in texts:
        inside = one.replace(text, wrong).replace("#pragma once", "")
        inside = "\n".join(line for line in inside.splitlines() if not line.startswith('#include "'))
        inside = inside.replace("namespace gemmtune {", f"namespace gemmtune {{\nnamespace {name} {{")
        lines.append(inside.replace("}  // namespace gemmtune", "}\n}"))
    unused = ("variable", "parameter", "but-set-variable")
    allowed = [f'#pragma GCC diagnostic ignored "-Wunused-{what}"' for what in unused]
    return "\n".join([*allowed, *lines])


def mistaken(
    family: KernelFamily,
    arch: str,
    mistakes: Sequence[Mistake],
    cases: Mapping[str, tuple[GemmProblem, Values]],
    folder: Path,
    headers: Sequence[str] = OWN,
) -> list[Built]:
    """A kernel for each mistake, all of one library: compiling them together takes a fraction of the time."""
    configurations = []
    for index, mistake in enumerate(mistakes):
        name = f"mistaken{index}"
        (folder / f"{name}.h").write_text(copied(mistake.text, mistake.wrong, name, headers))
        one = family.config(*cases[mistake.case], GPU_ARCHS[arch])
        own = "MatrixTypes" if EPILOGUE in headers else r"k\w+Scale\w*|kUnscaled"
        made = re.sub(rf"gemmtune::({own})", rf"gemmtune::{name}::\1", one.instantiation)
        configurations.append(replace(one, header=f"{name}.h", instantiation=f"{name}::{made}"))
    for part in ("device", "emulator"):
        (folder / part).symlink_to(HEADERS / part)
    return build(configurations, folder, GPU_ARCHS[arch].warp, folder)


def in_any_layout(
    family: KernelFamily, arch: str, kinds: Sequence[str], seed: int = 0
) -> list[tuple[GemmProblem, Values]]:
    """Every type and transpose, with lines aligned to 16 bytes and with unaligned ones; C, bias and
    activations with some; parameters drawn from the whole legal space."""
    found: list[tuple[GemmProblem, Values]] = []
    for number, (kind, a, b, whole) in enumerate(product(kinds, "NT", "NT", (True, False))):
        m, n, k = (80, 96, 144) if whole else (71, 85, 133)
        more: dict[str, Any] = {"beta": 1.0} if number % 3 == 0 else {}
        if kind == "int8":
            more["dtype_d"] = ("int8", "int32", "fp16")[number % 3]
        if number % 4 == 1:
            more |= {"bias": "int32" if kind == "int8" else "fp32", "activation": "relu"}
        elif number % 4 == 3:
            more |= {"bias": "bf16", "bias_axis": "n", "activation": "gelu" if kind != "int8" else "none"}
        lda, ldb = (m if a == "N" else k), (k if b == "N" else n)
        lda, ldb = (ld + -ld % 16 + (0 if whole else extra) for ld, extra in ((lda, 1), (ldb, 2)))
        problem = from_blas(m, n, k, kind, trans_a=a, trans_b=b, lda=lda, ldb=ldb, **more)
        assert OrientedGemm(problem).whole("a") == OrientedGemm(problem).whole("b") == whole
        values = legal_values(family, problem, environment(arch), 1, seed=seed + number)[0]
        found.append((problem, values))
    return found


#: Sizes of one, runs shorter than a load, addresses that are aligned to an element alone, batches, scalars,
#: single lines, D and C with lines of their own.
EDGES = (
    *(from_blas(*sizes, kind, trans_a=a, trans_b=b)
      for sizes, (a, b), kind in (
          ((1, 1, 1), "NN", "bf16"), ((6, 1, 1), "TT", "int8"), ((1, 6, 6), "NT", "bf16"),
          ((6, 6, 1), "TN", "fp16"), ((1, 1, 6), "NN", "int8"), ((6, 6, 6), "TT", "fp16"),
      )),
    from_linear(70, 90, 200, "bf16", alignment=2, bias="bf16", activation="gelu"),
    from_bmm(3, 66, 35, 71, "bf16", stride_b=0, stride_a=66 * 71 + 3, dtype_d="fp32", beta=1.0),
    from_blas(33, 1, 40, "fp16", trans_a="T", trans_b="T", ldb=3),
    from_linear(40, 70, 301, "int8", dtype_d="int8", bias="int32", activation="relu", alignment=1),
    from_linear(40, 70, 301, "int8", dtype_d="bf16", bias="fp32", activation="silu", alignment=1),
    from_linear(40, 70, 301, "int8", dtype_d="int8", dtype_c="int32", beta=2.0, alpha=3.0),
    from_blas(67, 33, 50, "fp16", beta=2.0, alpha=3.0, ldc=69, ldd=71, bias="fp16", bias_axis="n"),
    from_bmm(5, 8, 16, 40, "bf16", trans_b="T"),
    from_blas(65, 70, 9, "int8", lda=65, ldb=9, alignment=1),
    from_blas(5, 70, 100, "int8", trans_b="T", lda=5, ldb=70, alignment=1, dtype_d="fp32"),
)  # fmt: skip


def scaled(e4m3: str, e5m2: str) -> list[GemmProblem]:
    """8-bit floats, also mixed, with scales of tensors, rows and columns; 8-bit outputs with their own."""
    return [
        from_linear(70, 90, 208, e4m3, dtype_b=e5m2, scale_a="outer", scale_b="outer", bias="bf16"),
        from_linear(70, 91, 209, e5m2, dtype_b=e4m3, scale_a="tensor", scale_b="outer", dtype_d=e4m3,
                    scale_d="tensor"),
        from_mm(70, 91, 209, e4m3, scale_a="tensor", scale_b="tensor", dtype_d=e5m2, scale_d="tensor",
                beta=1.0, dtype_c="bf16", activation="silu"),
        from_bmm(2, 33, 40, 64, e4m3, trans_b="T", scale_a="outer", dtype_d="fp32"),
    ]  # fmt: skip


def product_of(
    one: Built, problem: GemmProblem, scalars: tuple[float, float], inputs: Mapping[str, npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """D [n, m] of a kernel for operands given as [columns, rows]."""
    buffers = {name: HostBuffer(layout.bytes) for name, layout in layouts(problem).items()}
    for name, array in inputs.items():
        layout = layouts(problem)[name]
        layout.view(buffers[name].bytes.view(layout.dtype.storage))[0] = array
    kernel = HostKernel(one, other_way=False)
    workspace = HostBuffer(kernel.workspace_bytes)
    operands = Operands.at({name: buffer.address for name, buffer in buffers.items()}, scalars)
    if kernel.packed_bytes:
        packed = HostBuffer(kernel.packed_bytes)
        operands = replace(operands, packed=packed.address)
        kernel.pack(operands)()
    kernel.bind(operands, workspace.address)()
    layout = layouts(problem)["d"]
    found: npt.NDArray[Any] = layout.view(buffers["d"].bytes.view(layout.dtype.storage))[0].copy()
    return found


def check_int8_scalars(family: KernelFamily, arch: str, values: Values, folder: Path) -> None:
    """E = activation(alpha A B + beta C) of int8 with fp32 scalars: int32 sums, fp32 arithmetic, one rounding
    to nearest even, saturation. With whole scalars it is exact beyond the 24 bits of a float."""

    def configured(k: int, kind: str, splits: int, **more: Any) -> tuple[GemmProblem, KernelConfig]:
        problem = from_blas(50, 37, k, "int8", trans_a="T", dtype_d=kind, alpha=0.5, beta=0.5, **more)
        return problem, family.config(problem, {**values, "splits": splits}, GPU_ARCHS[arch])

    kinds = ("int8", "int32")
    built_for = dict(
        zip(kinds, build([configured(256, kind, 1)[1] for kind in kinds], folder, GPU_ARCHS[arch].warp),
            strict=True)
    )  # fmt: skip
    rng = np.random.default_rng(5)
    alpha, beta = np.float32(0.00173), np.float32(0.37)
    for kind, (activation, splits) in product(kinds, (("none", 1), ("relu", 3))):
        problem, config = configured(304, kind, splits, activation=activation)
        assert config.unit == built_for[kind].found.unit
        a, b = (rng.integers(-128, 128, shape, np.int8) for shape in ((50, 304), (37, 304)))
        most = min(10_000, np.iinfo(DTYPES[kind].storage).max)
        c = rng.integers(-most, most, (37, 50), DTYPES[kind].storage)
        one = replace(built_for[kind], found=config)
        d = product_of(one, problem, (float(alpha), float(beta)), {"a": a, "b": b, "c": c})
        sums = b.astype(np.int64) @ a.astype(np.int64).T
        value = alpha * sums.astype(np.float32) + beta * c.astype(np.float32)
        value = np.maximum(value, 0) if activation == "relu" else value
        np.testing.assert_array_equal(d, to_host(value, DTYPES[kind]))
    problem, config = configured(2112, "int32", 3)
    a, b = np.full((50, 2112), 127, np.int8), np.full((37, 2112), 127, np.int8)
    a[5, 7], b[3, 9] = 126, 125
    c = rng.integers(-(2**30), 2**30, (37, 50), np.int32)
    one = replace(built_for["int32"], found=config)
    d = product_of(one, problem, (2.0, -1.0), {"a": a, "b": b, "c": c})
    assert d.max() > 2**24
    np.testing.assert_array_equal(d, 2 * (b.astype(np.int64) @ a.astype(np.int64).T) - c)


def counted(library: ctypes.CDLL, name: str, count: int) -> list[int]:
    """The first numbers that a function of a library writes."""
    out = (ctypes.c_int * count)()
    getattr(library, name)(out)
    return list(out)


# ---- code -----------------------------------------------------------------------------------------


#: What makes clang print a unit's assembly.
ASSEMBLY = (
    "-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-O2", "-std=c++17", f"-I{HEADERS}", "-S",
    "-o", "-",
)  # fmt: skip


def check_code(
    family: KernelFamily,
    arch: str,
    problem: GemmProblem,
    values: Values,
    instruction: str,
    cache: BinaryCache,
) -> None:
    """The likeliest candidate with these values has no matrix instruction but that one, no access to memory
    whose kind is unknown to the compiler, and spills nothing."""
    listed = family.solutions(problem, environment(arch))
    chosen = next(
        one for one in listed if all(one.parameters[name] == value for name, value in values.items())
    )
    unit = family.config(problem, chosen.parameters, GPU_ARCHS[arch]).unit
    target = (f"--offload-arch={arch}", f"-DGEMMTUNE_WARP={GPU_ARCHS[arch].warp}", "-")
    command = [*compiler_for(arch).clang, *ASSEMBLY, *target]
    code = subprocess.run(command, input=unit, text=True, capture_output=True, check=True).stdout
    assert set(re.findall(r"\bv_s?w?mm?f?ma\w*", code)) == {instruction}
    assert not re.search(r"\b(flat|scratch|buffer)_(load|store)_", code)
    taken = resources.read(Clang(STRICT).compile(CompileUnit(unit, arch), cache))["gemm"]
    assert taken.spill_bytes == 0
    assert 32 < (taken.registers or 0) <= GPU_ARCHS[arch].thread_registers


def check_spills(family: KernelFamily, arch: str, cache: BinaryCache) -> None:
    """Every fourth candidate of some products of every type: that none spills."""
    for kind in TYPES[arch]:
        for problem in (from_linear(4096, 4096, 4096, kind), from_mm(1111, 1235, 1001, kind)):
            for one in list(family.solutions(problem, environment(arch)))[::4]:
                unit = family.config(problem, one.parameters, GPU_ARCHS[arch]).unit
                path = Clang().compile(CompileUnit(unit, arch), cache)
                assert resources.read(path)["gemm"].spill_bytes == 0, (problem.slug, one.slug)
