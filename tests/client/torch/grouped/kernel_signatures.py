"""The arguments of the Triton kernels of a layer of experts, of Qwen3-30B-A3B's sizes, by which they are
compiled without a GPU."""

from __future__ import annotations

from typing import Any

#: Kernel -> arguments and their types, then constants.
KERNELS: dict[str, tuple[str, dict[str, int]]] = {
    "route_few": (
        "ids *i64, ends *i32, rows *i64, place *i64, n i32, experts i32", {"CHOSEN": 8, "BLOCK": 64},
    ),
    "route_count": ("ids *i64, counts *i32, n i32, experts i32, blocks i32", {"BLOCK": 256, "BINS": 256}),
    "route_starts": (
        "counts *i32, starts *i32, ends *i32, experts i32, blocks i32", {"CHUNK": 2048, "BLOCKS": 128},
    ),
    "route_scatter": (
        "ids *i64, starts *i32, rows *i64, place *i64, n i32, experts i32, blocks i32",
        {"CHOSEN": 8, "BLOCK": 256, "PART": 32},
    ),
    "gather": ("x *bf16, rows *i64, end *i32, out *bf16", {"WIDTH": 2048, "BLOCK": 256}),
    "silu_mul": ("gate_up *bf16, end *i32, out *bf16", {"WIDTH": 768, "BLOCK": 256}),
    "weighted_sum": (
        "y *bf16, place *i64, ids *i64, weights *fp32, out *bf16, experts i32",
        {"WIDTH": 2048, "CHOSEN": 8, "BLOCK": 256},
    ),
    "gather_in_blocks": (
        "x *bf16, rows *i64, end *i32, out *fp8e4nv, scales *fp32", {"WIDTH": 2048, "BLOCKS": 16, "TILE": 2},
    ),
    "silu_in_blocks": (
        "gate_up *bf16, end *i32, out *fp8e4nv, scales *fp32", {"WIDTH": 768, "BLOCKS": 6, "TILE": 2},
    ),
}  # fmt: skip


def names(arch: str) -> list[str]:
    """The kernels that an architecture runs: those of 8-bit floats are NVIDIA's."""
    return [name for name in KERNELS if arch.startswith("sm_") or "blocks" not in name]


def compiled(name: str, arch: str) -> str:
    """The assembly of a kernel, whose pointers are multiples of 16 bytes."""
    import triton
    from gemmtune.torch.grouped import glue_kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    given, constants = KERNELS[name]
    signature: dict[str, Any] = dict(one.split() for one in given.split(", "))
    signature |= dict.fromkeys(constants, "constexpr")
    order = list(signature)
    source = ASTSource(
        getattr(glue_kernels, name), signature,
        constexprs={(order.index(one),): value for one, value in constants.items()},
        attrs={(order.index(one),): [["tt.divisibility", 16]] for one in order if signature[one][0] == "*"},
    )  # fmt: skip
    cuda = arch.startswith("sm_")
    target = GPUTarget("cuda", int(arch[3:]), 32) if cuda else GPUTarget("hip", arch, 64)
    warps = 4 if name.startswith("route") else 1
    made = triton.compile(source, target=target, options={"num_warps": warps})
    return str(made.asm["ptx" if cuda else "amdgcn"])
