"""A candidate's parameters for one GEMM, with what is derived from them: requests to the compiler, grids, and
the arguments of a launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

from backends.archs import GpuArch
from backends.kernels.launch import KernelLaunch
from backends.kernels.triton.description import Constant, Description, Request
from backends.kernels.triton.oriented_gemm import POINTERS, WIDEST, TritonOrientedGemm
from backends.problem import GemmProblem
from backends.solution import Parameter

#: Bytes of a tensor map (CUtensorMap).
DESCRIPTOR_BYTES = 128
#: The parameter for the matrix instruction's sides, and the compiler's option.
INSTRUCTION = "matrix_instr_nonkdim"
#: The entries of a candidate's file.
MAIN, REDUCE = "gemm", "reduce"
#: The second launch: elements of D and rows per program, and its warps.
_REDUCE_ELEMENTS, _REDUCE_ROWS, _REDUCE_WARPS = 512, 4, 4
#: The length along k that Hopper may accumulate in its narrow accumulator for 8-bit floats if the problem
#: does not allow it throughout: DeepGEMM and cuBLAS promote to single precision every 128 of k.
_PROMOTED_EVERY = 128
#: Registers for addresses, counters and constants of a kernel on an AMD GPU.
_FIXED_REGISTERS = 48
#: Scratch starts at multiples of this many bytes: of tensor maps, the compiler wants 128.
_SCRATCH = 256

Pointer = TypeVar("Pointer")


@dataclass(frozen=True)
class Step:
    """One launch: its entry and description, its grid, the offset of its scratch in the workspace, and
    whether the kernel waits for the previous launch itself (kernels.py: DEPENDENT)."""

    entry: str
    description: Description
    grid: tuple[int, int, int]
    scratch: int
    waits: bool = True

    @property
    def launch(self) -> KernelLaunch:
        """The launch for the device layer."""
        one = self.description
        return KernelLaunch(one.entry, self.grid, (one.threads, 1, 1), one.shared_bytes, waits=self.waits)


@dataclass(frozen=True)
class TritonConfig:
    """Tile of D and step along k in elements, rows of tiles walked together, warps and pipeline stages;
    slices of k; for a persistent kernel its programs a multiprocessor, whether its loops are flattened, and
    whether the tensor memory accelerator loads its operands; on AMD's GPUs the rows and columns of a matrix
    instruction, None where Triton chooses."""

    product: TritonOrientedGemm
    block_m: int
    block_n: int
    block_k: int
    group_m: int
    warps: int
    stages: int
    slices: int = 1
    programs_per_unit: int | None = None
    flatten: bool = False
    tma: bool = False
    instruction: int | None = None
    #: Whether its kernels wait for the previous launch themselves.
    waits: ClassVar[bool] = True
    #: How the kernel sees a problem.
    oriented: ClassVar[type[TritonOrientedGemm]] = TritonOrientedGemm

    @classmethod
    def of(cls, problem: GemmProblem, values: Mapping[str, Parameter]) -> Self:
        """The configuration of well-formed parameters of any of the families."""

        def number(name: str) -> int:
            return int(values[name] or 0)

        return cls(
            cls.oriented(problem, bool(values["swap"])),
            number("block_m"), number("block_n"), number("block_k"), number("group_m"),
            number("num_warps"), number("num_stages"),
            slices=number("split_k") if "split_k" in values else 1,
            programs_per_unit=number("programs_per_unit") if "programs_per_unit" in values else None,
            flatten=bool(values.get("flatten")),
            tma=values.get("loads") == "tma",
            instruction=number(INSTRUCTION) if INSTRUCTION in values else None,
        )  # fmt: skip

    # ---- derived ---------------------------------------------------------------------------------

    @property
    def tiles(self) -> int:
        """Tiles of the whole batch."""
        p = self.product
        return -(-p.m // self.block_m) * -(-p.n // self.block_n) * p.batch

    @property
    def steps(self) -> int:
        """Steps along the whole of k."""
        return -(-self.product.k // self.block_k)

    @property
    def slice_steps(self) -> int:
        """Steps along a slice; the last may have fewer, or none."""
        return -(-self.steps // self.slices)

    @property
    def stage_bytes(self) -> int:
        """Bytes of shared memory of one pipeline stage: a block of A and one of B."""
        return (self.block_m + self.block_n) * self.block_k * self.product.element_bytes

    def shared_bytes(self, arch: GpuArch) -> int:
        """Shared memory that every stage of the pipeline takes. AMD's compiler holds the stage that is on its
        way in registers."""
        return self.stage_bytes * (self.stages if arch.vendor == "cuda" else max(1, self.stages - 1))

    def miscompiled(self, arch: GpuArch) -> str | None:
        """Why the compiler's code for an architecture is known to be wrong, or None."""
        return None

    def registers(self, arch: GpuArch) -> int:
        """Estimates a thread's registers on an AMD GPU: sums, and the larger of matrix operands and loads in
        flight (twice, and for loads of less than eight bytes also their addresses and masks). Fitted to 850
        kernels for gfx942, gfx1100 and gfx1201: of those that fit by this estimate one in thirty spills, up
        to 150 registers."""
        threads, size = arch.warp * self.warps, self.product.element_bytes
        # RDNA 3's instructions want an operand in both halves of a wavefront.
        copies = 2 if arch.name.startswith("gfx11") else 1
        loads = operands = 0
        for name, side, warps in zip("ab", (self.block_m, self.block_n), self._warps_along, strict=True):
            unit = self.product.load_bytes(name)
            count = max(1, side * self.block_k * size // (threads * unit))
            loads += 2 * max(count, side * self.block_k * size // (4 * threads)) + (
                6 * count if unit <= 4 else 0
            )
            # Elements across k are read one at a time, and have a register each until they are packed.
            packed = size if self.product.along_k(name) else 4
            operands += max(16, side // warps) * self.block_k * copies * packed // (4 * arch.warp)
        sums = self.block_m * self.block_n // threads
        found = _FIXED_REGISTERS + 5 * sums // 4 + max(loads, operands // 2)
        if self.product.wide:  # offsets of 64 bits to where the sums are stored
            found += 2 * sums
        # The next tile's loads start while this one's epilogue runs.
        return found if self.programs_per_unit is None else 7 * found // 5

    @property
    def _warps_along(self) -> tuple[int, int]:
        """How many warps share the rows and the columns of a tile: each is halved where it is longer."""
        rows = columns = 1
        while rows * columns < self.warps:
            if self.block_m // rows >= self.block_n // columns:
                rows *= 2
            else:
                columns *= 2
        return rows, columns

    @property
    def partial_bytes(self) -> int:
        """Bytes of the slices' partial sums."""
        return self.product.partial_bytes(self.slices)

    def scratch_bytes(self, units: int) -> int:
        """Bytes of scratch that the compiled kernel will need: the descriptors of A and B for every
        program."""
        return 2 * DESCRIPTOR_BYTES * self.grid(units)[0] if self.tma else 0

    def grid(self, units: int) -> tuple[int, int, int]:
        """Programs of the first launch on a device of `units` multiprocessors."""
        if self.programs_per_unit is not None:
            return min(self.tiles, units * self.programs_per_unit), 1, 1
        return self.tiles, self.slices, 1

    @property
    def reduce_block(self) -> tuple[int, int]:
        """The tile of the second launch: long along D's contiguous dimension."""
        p = self.product
        across = p.n if p.swapped else p.m
        rows = min(_REDUCE_ROWS, 1 << (across - 1).bit_length())
        wide = _REDUCE_ELEMENTS // rows
        return (wide, rows) if p.swapped else (rows, wide)

    @property
    def reduce_grid(self) -> tuple[int, int, int]:
        """Programs of the second launch."""
        p, (rows, columns) = self.product, self.reduce_block
        return -(-p.m // rows) * -(-p.n // columns) * p.batch, 1, 1

    # ---- compiling -------------------------------------------------------------------------------

    @property
    def main_kernel(self) -> str:
        """The function of the first launch."""
        if self.programs_per_unit is None:
            return "gemm"
        return "descriptor" if self.tma else "persistent"

    def constants_for(self, arch: GpuArch) -> dict[str, Constant]:
        """Values of the compile-time constants; a kernel has some of them."""
        p = self.product
        return {
            "A_ALONG_K": p.a_along_k,
            "B_ALONG_K": p.b_along_k,
            "D_ALONG_N": not p.swapped,
            "EVEN_M": p.m % self.block_m == 0,
            "EVEN_N": p.n % self.block_n == 0,
            "EVEN_K": p.k % self.block_k == 0,
            "WIDE": p.wide,
            "INTEGER": p.integer,
            "PRECISION": self._precision(arch),
            "IMPRECISE": self._imprecise(arch),
            **p.epilogue,
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "GROUP_M": self.group_m,
            "SPLIT": self.slices > 1,
            "DEPENDENT": arch.dependent_launches,
            "FLATTEN": self.flatten,
        }

    def requests(self, arch: GpuArch) -> dict[str, Request]:
        """The compiler requests for an architecture, by entry."""
        p, constants = self.product, self.constants_for(arch)
        options = {"num_warps": self.warps, "num_stages": self.stages}
        if self.instruction is not None:
            options[INSTRUCTION] = self.instruction
        found = {MAIN: request(p, self.main_kernel, constants, options, arch)}
        if self.slices > 1:
            rows, columns = self.reduce_block
            constants |= {
                "EVEN_M": p.m % rows == 0, "EVEN_N": p.n % columns == 0, "BLOCK_M": rows, "BLOCK_N": columns,
            }  # fmt: skip
            options = {"num_warps": _REDUCE_WARPS, "num_stages": 2}
            found[REDUCE] = request(p, "reduce", constants, options, arch)
        return found

    @property
    def promoted(self) -> bool:
        """Whether sums of 8-bit floats are promoted from the tensor cores' narrow accumulator at
        intervals."""
        p = self.product.problem
        return p.dtype_a.startswith("fp8") and not p.fast_accumulation

    def _imprecise(self, arch: GpuArch) -> int | None:
        """AMD's matrix cores add 8-bit floats up in single precision."""
        return min(_PROMOTED_EVERY, self.block_k) if self.promoted and arch.vendor == "cuda" else None

    def _precision(self, arch: GpuArch) -> str:
        """How single-precision inputs are multiplied; without effect on other types. AMD's GPUs multiply them
        in full, and gfx942 also with TF32's precision (xf32) where the problem allows it."""
        return "tf32" if arch.vendor == "cuda" or self.product.problem.compute == "tf32" else "ieee"

    # ---- launching -------------------------------------------------------------------------------

    @property
    def entries(self) -> tuple[str, ...]:
        """The kernels in the order of their launches."""
        return (MAIN, REDUCE) if self.slices > 1 else (MAIN,)

    def launches(self, kernels: Mapping[str, Description], units: int) -> tuple[list[Step], int]:
        """The launches on a device of `units` multiprocessors, and their bytes of workspace: the slices'
        sums, then each launch's scratch."""
        found, at = [], _up(self.partial_bytes)
        for entry in self.entries:
            grid = self.grid(units) if entry == MAIN else self.reduce_grid
            found.append(Step(entry, kernels[entry], grid, at, self.waits))
            at += _up(grid[0] * grid[1] * kernels[entry].scratch_bytes)
        return found, at

    def arguments(
        self, entry: str, pointers: Mapping[str, Pointer], partial: Pointer, scalars: tuple[float, float]
    ) -> list[Pointer | int | float]:
        """Values of an entry's parameters in order, scratch left out. `pointers` are the problem's operands;
        `partial` is the workspace."""
        found = self.product.arguments(pointers, scalars)
        found |= {"partial": partial, "slice_steps": self.slice_steps, "slices": self.slices}
        return [found[name] for name in PARAMETERS[_like("reduce" if entry == REDUCE else self.main_kernel)]]


def _up(size: int) -> int:
    return -(-size // _SCRATCH) * _SCRATCH


def workspace_align(steps: Iterable[Step]) -> int:
    """The alignment of the workspace's address, in bytes."""
    return max([WIDEST, *(step.description.scratch_align for step in steps)])


_SIZES = ("M", "N", "K", "batch")
#: Parameters and constants of each kernel, in its source's order.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "gemm": (
        *POINTERS, "partial", *_SIZES, "lda", "ldb", "ldc", "ldd",
        "stride_a", "stride_b", "stride_c", "stride_d", "alpha", "beta", "slice_steps",
    ),
    "reduce": (
        *(name for name in POINTERS if name not in ("a", "b")), "partial", "M", "N", "batch",
        "ldc", "ldd", "stride_c", "stride_d", "alpha", "beta", "slices",
    ),
    "dequant_gemm": (
        "a", "b", "c", "d", "bias", "scales", "zeros", "partial", "M", "N", "K", "lda", "ldb", "ldc", "ldd",
        "alpha", "beta", "slice_steps",
    ),
    "block_scaled": ("a", "b", "d", "scale_a", "scale_b", "M", "N", "K", "lda", "ldb", "ldd"),
    "inductor_mm": ("a", "b", "d"),
    "fused_moe": ("a", "b", "d", "offsets", "M", "N", "K", "row_blocks", "lda", "ldb", "ldd", "stride_b"),
    "fused_moe_scaled": (
        "a", "b", "d", "offsets", "scale_a", "scale_b", "M", "N", "K", "row_blocks", "lda", "ldb", "ldd",
        "stride_b",
    ),
}  # fmt: skip
_EPILOGUE = ("OUT_INTEGER", "ALPHA_ONE", "BETA", "BIAS", "ACTIVATION", "SCALE_A", "SCALE_B", "SCALE_D")
CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "gemm": (
        "A_ALONG_K", "B_ALONG_K", "D_ALONG_N", "EVEN_M", "EVEN_N", "EVEN_K", "WIDE", "INTEGER", "OUT_INTEGER",
        "PRECISION", "IMPRECISE", *_EPILOGUE[1:], "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "SPLIT",
        "DEPENDENT",
    ),
    "reduce": (
        "D_ALONG_N", "EVEN_M", "EVEN_N", "WIDE", "INTEGER", *_EPILOGUE, "BLOCK_M", "BLOCK_N", "DEPENDENT",
    ),
    "dequant_gemm": (
        "WEIGHTS_FIRST", "FORMAT", "ZERO", "GROUP", "SCALED", "EVEN_M", "EVEN_N", "EVEN_K", "WIDE",
        *_EPILOGUE[1:7], "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "SPLIT", "DEPENDENT",
    ),
    "block_scaled": ("ONE_ROW", "WIDE", "SCALED_N", "SCALED_K", "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M"),
    "inductor_mm": (
        "M", "N", "K", "STRIDE_AM", "STRIDE_AK", "STRIDE_BK", "STRIDE_BN", "LDD", "WIDE", "EVEN_K",
        "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M",
    ),
    "fused_moe": ("GROUPS", "CAPACITY", "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M"),
    "fused_moe_scaled": (
        "GROUPS", "CAPACITY", "SCALED_N", "SCALED_K", "IMPRECISE", "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M",
    ),
}  # fmt: skip


def _like(kernel: str) -> str:
    """The kernel whose parameters a kernel has."""
    return kernel if kernel in PARAMETERS else "gemm"


def request(
    product: TritonOrientedGemm,
    kernel: str,
    constants: Mapping[str, Constant],
    options: Mapping[str, int],
    arch: GpuArch,
) -> Request:
    """The request for a kernel; `constants` may hold more than it has."""
    like = _like(kernel)
    names = (*CONSTANTS[like], "FLATTEN") if kernel in ("persistent", "descriptor") else CONSTANTS[like]
    signature = tuple((name, product.type_of(name)) for name in PARAMETERS[like])
    known = {name: product.divisibility(name) for name in PARAMETERS[like]}
    return Request(
        kernel, signature, {name: constants[name] for name in names},
        {name: unit for name, unit in known.items() if unit > 1}, options, arch.name, arch.warp,
    )  # fmt: skip
