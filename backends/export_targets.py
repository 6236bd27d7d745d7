"""Export targets: which solutions a program outside gemmtune can name.

A file format can name some families only, and a program has a limit for the workspace of a library's call.
The final of a tuning judges the best candidate of each target beside the winner (tuners/), and a writer takes
the best solution that its targets can name (service/formats/). Both read the sets here: a solution that a
format can name and no tuning has judged could not be exported, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backends.solution import Solution

#: Families that call a library of the machine, or a framework. Every other family is a kernel of our own.
LIBRARY_FAMILIES = frozenset(
    ("torch", "cublas", "cublaslt", "cublaslt-heuristic", "cublaslt-padded", "hipblaslt",
     "hipblaslt-heuristic", "rocblas", "rocblas-default", "openblas", "openblas_upcast",
     "torch-weights", "torch-int8", "dequantise", "torch-grouped", "numpy-grouped")
)  # fmt: skip


@dataclass(frozen=True)
class ExportTarget:
    """A set of solutions that one kind of program can name.

    `vendors`: the vendors of the devices that it runs on; empty for all. `families`: those that it can name;
    empty for every kernel of our own. `max_workspace_bytes`: the workspace that it gives a solution, None
    without a limit. `reader` says in plain words what takes the solutions. `defaults`: families of what its
    programs run without a file, the framework's call or the library's that it would make; empty for a target
    that is no framework's. A verdict against another baseline says nothing of such a program.
    """

    name: str
    reader: str
    vendors: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    max_workspace_bytes: int | None = None
    defaults: tuple[str, ...] = ()

    def replaces(self, baseline: str) -> bool:
        """Whether programs of the target run a baseline of this family where they are given no file."""
        return not self.defaults or baseline in self.defaults

    def names_family(self, family: str) -> bool:
        """Whether the target can name solutions of a family."""
        return family in self.families if self.families else family not in LIBRARY_FAMILIES

    def names_of(self, family: str, workspace_bytes: int) -> bool:
        """Whether the target can name a family's solutions and gives them so much workspace."""
        limit = self.max_workspace_bytes
        return self.names_family(family) and (limit is None or workspace_bytes <= limit)

    def names(self, solution: Solution) -> bool:
        """The same for a solution, whose workspace_bytes must be those of the problem at hand."""
        return self.names_of(solution.family, solution.workspace_bytes)


#: What torch runs where nothing is tuned: its own call, or the library's call that it makes.
_TORCH_CUDA = ("torch", "cublaslt-heuristic")
_TORCH_HIP = ("torch", "hipblaslt-heuristic", "rocblas-default")
#: Both, for exports and clients whose programs run torch on either vendor.
TORCH_DEFAULTS = tuple(dict.fromkeys((*_TORCH_CUDA, *_TORCH_HIP)))

_TARGETS = (
    ExportTarget(
        "cublaslt", "TunableOp rows of torch 2.14 for CUDA", ("cuda",), ("cublaslt",), defaults=_TORCH_CUDA
    ),
    # torch 2.15 gives cuBLASLt a workspace of its own, of 1 MiB unless its user raises it.
    ExportTarget(
        "cublaslt-1mib", "TunableOp rows of torch 2.15 for CUDA", ("cuda",), ("cublaslt",), 2**20, _TORCH_CUDA
    ),
    ExportTarget(
        "hipblaslt",
        "TunableOp rows for ROCm, hipBLASLt's override file, AITER",
        ("hip",),
        ("hipblaslt",),
        defaults=_TORCH_HIP,
    ),
    ExportTarget(
        "rocblas",
        "TunableOp rows for ROCm, rocBLAS's override file",
        ("hip",),
        ("rocblas",),
        defaults=_TORCH_HIP,
    ),
    ExportTarget(
        "inductor",
        "Inductor's lookup table",
        ("cuda", "hip"),
        ("triton-inductor-mm",),
        defaults=TORCH_DEFAULTS,
    ),
    # vLLM and SGLang run the same kernel with configurations of their own.
    ExportTarget(
        "block-fp8",
        "block-fp8 configurations of vLLM and SGLang",
        ("cuda", "hip"),
        ("triton-block-fp8",),
        defaults=(*TORCH_DEFAULTS, "triton-block-fp8"),
    ),
    ExportTarget(
        "fused-moe",
        "fused-MoE configurations of vLLM and SGLang",
        ("cuda", "hip"),
        ("triton-fused-moe",),
        defaults=(*TORCH_DEFAULTS, "torch-grouped", "triton-fused-moe"),
    ),
    ExportTarget("openblas", "programs that call OpenBLAS", ("cpu",), ("openblas", "openblas_upcast")),
    ExportTarget("bundle", "programs that launch packages of our own kernels"),
)

#: Every export target by name, in the order in which they are judged and shown.
EXPORT_TARGETS: Mapping[str, ExportTarget] = {target.name: target for target in _TARGETS}
#: The target of our own kernels.
BUNDLE = EXPORT_TARGETS["bundle"]


def targets_of(vendor: str) -> tuple[ExportTarget, ...]:
    """The targets whose programs run on a vendor's devices."""
    return tuple(one for one in _TARGETS if not one.vendors or vendor in one.vendors)
