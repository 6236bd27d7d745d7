"""Bundles of kernels in C that read quantised weights as stored, or a packed copy of them, on the host.

Two layouts of a copy exist: ROWS, the numbers fp32 [n, k], and COLUMNS, fp32 [k, n]. The functions take the
argument of kernels for a GPU, and refuse one with an address that they have no business with.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.cpu.native import compile_runtime
from backends.kernels.family import KernelConfig
from backends.kernels.launch import KernelLaunch
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.prepacked import PACK, PACKED_ALIGNMENT, REPLACED, Prepacked
from backends.kernels.weights import PackedWeightArgs, WeightConfig
from backends.operands import Operands, layouts
from backends.packages.launches import kernel_argument, packing_launch
from backends.packages.package import operands_of
from backends.problem import GemmProblem
from backends.quantisation import groups_of
from tests.client import bundles

ROWS, COLUMNS = "test-rows", "test-columns"


@dataclass(frozen=True)
class PackedConfig(WeightConfig):
    """The configuration of a kernel that reads a packed copy in `layout`; None: weights as stored."""

    layout: str | None = ROWS

    @property
    def argument_bytes(self) -> int:
        """Bytes of PackedWeightArgs."""
        return ctypes.sizeof(PackedWeightArgs)

    def arguments(self, operands: Operands, workspace: int) -> PackedWeightArgs:
        """The argument with the copy's address."""
        found = super().arguments(operands, workspace)
        made = PackedWeightArgs()
        ctypes.memmove(ctypes.addressof(made), ctypes.addressof(found), ctypes.sizeof(found))
        made.packed = operands.packed
        return made

    @property
    def prepacked(self) -> Prepacked | None:
        """The copy: 4 bytes a weight."""
        if self.layout is None:
            return None
        size = 4 * self.product.problem.m * self.product.problem.k
        return Prepacked(self.layout, size, KernelLaunch(PACK, (7, 1, 1), (64, 1, 1)), "gemmtune::Packing")


def config(problem: GemmProblem, layout: str | None) -> PackedConfig:
    """A configuration for a problem."""
    return PackedConfig(OrientedGemm(problem), "none.h", "None", 128, 0, 3, layout=layout)


def write(
    path: Path,
    rows: Iterable[tuple[GemmProblem, str | None]],
    cache: BinaryCache,
    *,
    torch_build: str | None = None,
) -> Path:
    """A bundle with a row for each problem, which reads a copy in this layout. `torch_build`: the torch with
    which the rows say that they were measured."""
    environment = CpuBackend().probe().devices[0]
    runtime = compile_runtime(environment.partition, cache).read_bytes()
    chosen = [config(problem, layout) for problem, layout in rows]
    binary = _compiled(path, chosen).read_bytes()
    made = [_row(number, one, binary, runtime) for number, one in enumerate(chosen)]
    binaries = {binary: ".so", runtime: ".so"}
    document = bundles.manifest(str(environment.device_class), made, binaries)
    libraries = {} if torch_build is None else {"torch": torch_build}
    document["environments"] = {"here": {"runtime": None, "driver": None, "libraries": libraries}}
    return bundles.write(path, document, binaries)


def _row(number: int, one: PackedConfig, binary: bytes, runtime: bytes) -> bundles.Document:
    problem = one.product.problem

    def launch(entry: str, argument: Any) -> bundles.Document:
        return {
            "entry": f"{entry}_{number}", "binary": bundles.digest(binary),
            "runtime": bundles.digest(runtime), "arguments": [{**argument.to_dict(), "name": "args"}],
        }  # fmt: skip

    made = bundles.row(problem, "cpu", [launch("gemm", kernel_argument(one))])
    made["verdict"] |= {"baseline": "torch-weights", "baseline_family": "torch-weights"}
    return made | operands_and_packing(one, lambda argument: launch("pack", argument))


def operands_and_packing(one: KernelConfig, launch: Callable[[Any], bundles.Document]) -> bundles.Document:
    """What a row says of its operands and of its packed copy; `launch` describes the packing from its
    argument."""
    problem, packed = one.product.problem, one.prepacked
    operands = operands_of(problem, packed)
    if packed is None:
        return {"operands": operands}
    stored = {name: of for name, of in operands_of(problem).items() if name in REPLACED}
    (argument,) = packing_launch(one, packed, "kernel.so", {}, GPU_ARCHS["sm_90"]).arguments
    packing = {
        "layout": packed.layout, "bytes": packed.bytes, "alignment": PACKED_ALIGNMENT,
        "operands": {**stored, "packed": operands["packed"]}, "launch": launch(argument),
    }  # fmt: skip
    return {"operands": operands, "packing": packing}


def _compiled(path: Path, chosen: Iterable[PackedConfig]) -> Path:
    source = path.with_suffix(".c")
    source.write_text("\n".join([_HEAD, *(_functions(number, one) for number, one in enumerate(chosen))]))
    library = path.with_suffix(".so")
    subprocess.run(
        ["cc", "-O1", "-Wall", "-Werror", "-Wno-unused-function", "-fPIC", "-shared", "-o", library, source],
        check=True,
    )
    return library


def _functions(number: int, one: PackedConfig) -> str:
    """A row's product and, if it reads a copy, its packing."""
    p = one.product.problem
    groups = groups_of(p) if p.scale_a != "tensor" else 1
    zero = {"none": 0, "eight": 8}[p.zero_a]
    bits = 8 if p.dtype_a == "int8" else 4
    assert p.scale_dtype == p.dtype_b == "bf16"
    place = "(j) * N + (i)" if one.layout == COLUMNS else "(i) * K + (j)"
    if one.layout is None:
        weight, absent, taken = f"number(args, i, j, K, {groups}, {bits}, {zero})", "PACKED", "A"
    else:
        weight, absent, taken = f"((const float*)PACKED)[{place}]", "A || SCALES", "PACKED"
    product = f"""
int gemm_{number}(const void* args) {{
  const long M = {p.n}, N = {p.m}, K = {p.k};
  if ({absent} || !{taken} || !B || !D) return 2;
  for (long m = 0; m < M; ++m)
    for (long i = 0; i < N; ++i) {{
      float sum = 0;
      for (long j = 0; j < K; ++j) sum += {weight} * wide(((const uint16_t*)B)[m * K + j]);
      if ({int(p.bias is not None)}) sum += wide(((const uint16_t*)BIAS)[i]);
      ((uint16_t*)D)[m * N + i] = narrow(sum);
    }}
  return 0;
}}"""
    if one.layout is None:
        return product
    return f"""{product}
int pack_{number}(const void* args) {{
  const long N = {p.m}, K = {p.k};
  if (B || D || BIAS || !A || !SCALES || !PACKED) return 2;
  for (long i = 0; i < N; ++i)
    for (long j = 0; j < K; ++j)
      ((float*)PACKED)[{place}] = number(args, i, j, K, {groups}, {bits}, {zero});
  return 0;
}}"""


def _offset(name: str) -> str:
    field = getattr(PackedWeightArgs, name)
    return f"#define {name.upper()} (*(void**)((char*)args + {field.offset}))"


_HEAD = "\n".join(
    [
        "#include <stdint.h>\n#include <string.h>",
        *(_offset(name) for name in ("a", "b", "d", "bias", "scales", "packed")),
        """
int gemmtune_abi(void) { return 1; }
static float wide(uint16_t bits) {
  uint32_t word = (uint32_t)bits << 16;
  float found;
  memcpy(&found, &word, 4);
  return found;
}
static uint16_t narrow(float value) {
  uint32_t word;
  memcpy(&word, &value, 4);
  return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
static float number(const void* args, long i, long j, long k, long groups, int bits, int zero) {
  const uint8_t* bytes = A;
  float scale = wide(((const uint16_t*)SCALES)[i * groups + j / (k / groups)]);
  if (bits == 8) return ((const int8_t*)A)[i * k + j] * scale;
  return ((bytes[(i * k + j) / 2] >> (j % 2 * 4) & 15) - zero) * scale;
}""",
    ]
)


def bytes_of(problem: GemmProblem) -> dict[str, int]:
    """Operand -> bytes as stored."""
    return {name: one.bytes for name, one in layouts(problem).items()}
