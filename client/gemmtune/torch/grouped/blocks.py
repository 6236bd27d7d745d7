"""Activations of a layer of experts as 8-bit floats (e4m3) with an fp32 scale for 128 elements of a row, as
scaled_grouped_mm() takes them: the gathered rows, and silu(gate) * up.

Each is an operator of torch without a gradient: one launch of Triton's on NVIDIA's GPUs from compute
capability 8.9 on, which have the type; torch's operations elsewhere. Both compute in fp32 and round once. Of
gathered rows they give the same bits; of SiLU the kernel's exponential may differ in its last bits, which now
and then rounds to the next 8-bit float."""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.grouped.glue import TRITON, kernels, launching, tiled
from gemmtune.torch.grouped.scaled import BLOCK, TYPE

#: e4m3's largest number.
_LARGEST = 448.0
#: Blocks of less become zeros with the scale 1: their scales would be no normal fp32 numbers.
_NOTHING = 1e-30
_HAS_TYPE = (8, 9)
_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
_LIBRARY.define("moe_gather_blocks(Tensor x, Tensor rows, Tensor ends) -> (Tensor, Tensor)")
_LIBRARY.define("moe_silu_blocks(Tensor gate_up, Tensor ends) -> (Tensor, Tensor)")


def in_blocks(x: Any) -> tuple[Any, Any]:
    """x [rows, k] as e4m3 and its scales, fp32 [rows, k / 128] (a partial block counts): the largest
    magnitude of a block over 448. A block of zeros has the scale 1."""
    rows, k = x.shape
    blocks = -(-k // BLOCK)
    wide = torch.nn.functional.pad(x.float(), (0, blocks * BLOCK - k)).view(rows, blocks, BLOCK)
    largest = wide.abs().amax(-1)
    scales = torch.where(largest < _NOTHING, 1.0, largest / _LARGEST)
    return (wide / scales[..., None]).to(TYPE).view(rows, -1)[:, :k].contiguous(), scales


def gather_by_torch(x: Any, rows: Any, ends: Any) -> tuple[Any, Any]:
    """in_blocks(x)[rows]."""
    found, scales = in_blocks(x)
    return found.view(torch.uint8)[rows].view(TYPE), scales[rows]


def silu_by_torch(gate_up: Any, ends: Any) -> tuple[Any, Any]:
    """in_blocks(silu(gate) * up), which is computed in fp32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return in_blocks(torch.nn.functional.silu(gate) * up)


def _made(like: Any, rows: int, width: int) -> tuple[Any, Any, tuple[int, int], dict[str, int]]:
    """The outputs, the grid, and the constants of a launch."""
    blocks = -(-width // BLOCK)
    _, block, warps = tiled(rows, width)
    tile = max(1, block // BLOCK)
    out = like.new_empty((rows, width), dtype=TYPE)
    scales = like.new_empty((rows, blocks), dtype=torch.float32)
    constants = {"WIDTH": width, "BLOCKS": blocks, "TILE": tile, "num_warps": warps}
    return out, scales, (rows, -(-blocks // tile)), constants


def gather_by_kernel(x: Any, rows: Any, ends: Any) -> tuple[Any, Any]:
    """gather_by_torch() in one launch. Rows from ends[-1] on are undefined."""
    x = x.contiguous()
    out, scales, grid, constants = _made(x, rows.shape[0], x.shape[1])
    with launching(x):
        kernels().gather_in_blocks[grid](x, rows, ends[-1:], out, scales, **constants)
    return out, scales


def silu_by_kernel(gate_up: Any, ends: Any) -> tuple[Any, Any]:
    """silu_by_torch() in one launch. Rows from ends[-1] on are undefined."""
    gate_up = gate_up.contiguous()
    out, scales, grid, constants = _made(gate_up, gate_up.shape[0], gate_up.shape[1] // 2)
    with launching(gate_up):
        kernels().silu_in_blocks[grid](gate_up, ends[-1:], out, scales, **constants)
    return out, scales


def has_kernels(device: Any) -> bool:
    """Whether Triton has the type on a GPU."""
    if not TRITON or torch.version.hip is not None:
        return False
    return bool(torch.cuda.get_device_capability(device) >= _HAS_TYPE)


def _on_gpu(by_kernel: Any, by_torch: Any) -> Any:
    def run(given: Any, *rest: Any) -> Any:
        small = given.dtype in (torch.bfloat16, torch.float16) and given.numel()
        return (by_kernel if small and has_kernels(given.device) else by_torch)(given, *rest)

    return run


def _fake_gather(x: Any, rows: Any, ends: Any) -> tuple[Any, Any]:
    return _fakes(x, rows.shape[0], x.shape[1])


def _fake_silu(gate_up: Any, ends: Any) -> tuple[Any, Any]:
    return _fakes(gate_up, gate_up.shape[0], gate_up.shape[1] // 2)


def _fakes(like: Any, rows: Any, width: int) -> tuple[Any, Any]:
    return (
        like.new_empty((rows, width), dtype=TYPE),
        like.new_empty((rows, -(-width // BLOCK)), dtype=torch.float32),
    )


for _name, _kernel, _torch, _fake in (
    ("moe_gather_blocks", gather_by_kernel, gather_by_torch, _fake_gather),
    ("moe_silu_blocks", silu_by_kernel, silu_by_torch, _fake_silu),
):
    _LIBRARY.impl(_name, _torch, "CPU")
    _LIBRARY.impl(_name, _on_gpu(_kernel, _torch), "CUDA")
    torch.library.register_fake(f"gemmtune::{_name}", _fake, lib=_LIBRARY)
