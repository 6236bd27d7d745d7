"""The devices and problems for which the genuine libraries are queried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backends.problem import GemmProblem, from_blas


@dataclass(frozen=True)
class Device:
    """The fake runtime's device: gcnArchName and multiProcessorCount."""

    gcn_arch: str
    cu_count: int

    @property
    def arch(self) -> str:
        """gcnArchName without its features."""
        return self.gcn_arch.partition(":")[0]


#: MI210, RX 7900 XTX, RX 9070 XT, MI300X, MI355X. On RDNA the genuine runtime reports WGPs, half of these
#: counts; the lists are the same. Debian's hipBLASLt has tables for the first three, its rocBLAS for the
#: first two.
DEVICES = (
    Device("gfx90a:sramecc+:xnack-", 104),
    Device("gfx1100", 96),
    Device("gfx1201", 64),
    Device("gfx942:sramecc+:xnack-", 304),
    Device("gfx950:sramecc+:xnack-", 256),
)
PROBLEMS: Mapping[str, GemmProblem] = {
    "bf16 TN": from_blas(4096, 512, 4096, "bf16", trans_a="T"),
    "fp16 NN": from_blas(1024, 1024, 1024, "fp16"),
    "fp32 NT": from_blas(1024, 512, 768, "fp32", trans_b="T"),
    "tf32 NT": from_blas(1024, 512, 768, "tf32", trans_b="T"),
    "int8 TN": from_blas(1024, 512, 1024, "int8", trans_a="T"),
    "bf16 TN, bias and gelu": from_blas(4096, 512, 4096, "bf16", trans_a="T", bias="bf16", activation="gelu"),
    "bf16 TN, padded, beta, batch of 3": from_blas(
        512, 256, 520, "bf16", trans_a="T", lda=528, beta=1.0, batch=3
    ),
    "bf16 TN, odd sizes": from_blas(1001, 77, 333, "bf16", trans_a="T"),
    "fp8 TN, scaled": from_blas(
        1024, 512, 1024, "fp8_e4m3", trans_a="T", dtype_d="bf16", scale_a="tensor", scale_b="tensor"
    ),
    "fp8 TN, scaled by row": from_blas(
        1024, 512, 1024, "fp8_e4m3", trans_a="T", dtype_d="bf16", scale_a="outer", scale_b="outer"
    ),
    "fp64 NN": from_blas(512, 512, 512, "fp64"),
}
