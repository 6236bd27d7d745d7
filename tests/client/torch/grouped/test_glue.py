"""The Triton kernels of a layer of experts: interpreted against torch's operations and exact numbers,
compiled for GPUs, and which calls take them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from gemmtune.torch import moe
from gemmtune.torch.grouped import glue

from backends.toolchains.triton import missing
from tests.client.torch.grouped import kernel_signatures

_PROGRAM = [sys.executable, "-m", "tests.client.torch.grouped.interpreted"]
WITH_TRITON = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@WITH_TRITON
@pytest.mark.process
def test_interpreted_kernels_are_right() -> None:
    done = subprocess.run(
        _PROGRAM, capture_output=True, text=True, check=False, env={**os.environ, "TRITON_INTERPRET": "1"}
    )
    assert done.returncode == 0, done.stderr
    found = {one["check"]: one["wrong"] for one in map(json.loads, done.stdout.splitlines())}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    assert {"one token", "blocks", "rows of 77 torch.float16", "a compiled layer"} <= set(found)
    assert {"8-bit rows of 200 torch.bfloat16", "an 8-bit layer"} <= set(found)


@WITH_TRITON
@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_they_compile_ahead_of_time(
    arch: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
    for name in kernel_signatures.names(arch):
        assembly = kernel_signatures.compiled(name, arch)
        if name in ("gather", "silu_mul", "weighted_sum"):  # eight elements of 16 bits at once
            assert "ld.global.v4.b32" in assembly or "load_dwordx4" in assembly or "load_dwordx2" in assembly


class Told:
    """What the rule looks at in a tensor of a GPU."""

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, device: str = "cuda:0", grad: bool = False
    ) -> None:
        self.shape, self.dtype, self.device = shape, dtype, torch.device(device)
        self.requires_grad = grad

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return int(torch.Size(self.shape).numel())

    def is_floating_point(self) -> bool:
        return bool(self.dtype.is_floating_point)


def given(**changed: Told) -> tuple[Told, ...]:
    half = torch.bfloat16
    every = {
        "x": Told((7, 48), half), "gate_up": Told((5, 64, 48), half), "down": Told((5, 48, 32), half),
        "weights": Told((7, 2), torch.float32), "ids": Told((7, 2), torch.int64),
    }  # fmt: skip
    return tuple((every | changed).values())


def test_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glue, "TRITON", True)
    half, fp32 = torch.bfloat16, torch.float32
    assert glue.serves(*given())
    assert glue.serves(*given(ids=Told((7, 2), torch.int32), weights=Told((7, 2), half)))
    small = torch.float8_e4m3fn
    assert glue.serves(*given(gate_up=Told((5, 64, 48), small), down=Told((5, 48, 32), small)))
    for changed in (
        {"x": Told((7, 48), half, "cpu")},
        {"down": Told((5, 48, 32), half, "cuda:1")},
        {"x": Told((7, 48), torch.float16)},
        {"gate_up": Told((5, 64, 48), small)},
        {"x": Told((7, 48), fp32), "gate_up": Told((5, 64, 48), fp32), "down": Told((5, 48, 32), fp32)},
        {"x": Told((0, 48), half), "ids": Told((0, 2), torch.int64), "weights": Told((0, 2), fp32)},
        {"x": Told((7, 48, 1), half)},
        {"ids": Told((7, 2), torch.int16)},
        {"weights": Told((7, 2), torch.int32)},
        {"gate_up": Told((1024, 64, 48), half)},
        {"ids": Told((7, 65), torch.int64)},
    ):
        assert not glue.serves(*given(**changed)), changed
    for name, one in zip(("x", "gate_up", "down", "weights"), given(), strict=False):
        wanting = {name: Told(one.shape, one.dtype, grad=True)}
        assert not glue.serves(*given(**wanting)), "the kernels have no gradients"
        with torch.no_grad():
            assert glue.serves(*given(**wanting))
    monkeypatch.setattr(glue, "TRITON", False)
    assert not glue.serves(*given())


def test_programs_cover_every_row() -> None:
    for rows, width in ((1, 16), (8, 2048), (8, 77), (65536, 7168), (512, 1024)):
        (along, across), block, warps = glue.tiled(rows, width)
        assert along == rows
        assert (across - 1) * block < width <= across * block
        assert block in (16, 128, 256, 1024)
        assert warps == max(1, block // 256)
    assert glue.tiled(8, 2048)[0] == (8, 8), "few rows are spread"
    assert glue.tiled(4096, 2048)[0] == (4096, 2)


@pytest.mark.cuda
@pytest.mark.parametrize("tokens", [1, 8, 600])
def test_on_a_gpu(tokens: int) -> None:
    """A layer by the kernels in a graph, the same bits at every replay, against torch's operations, which run
    where a gradient is required."""
    torch.manual_seed(tokens)
    experts, chosen, width, inner = 16, 8, 256, 128
    half: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    x, gate_up = torch.randn(tokens, width, **half), torch.randn(experts, 2 * inner, width, **half) / 16
    down = torch.randn(experts, width, inner, **half) / 12
    weights, ids = torch.rand(tokens, experts, device="cuda").topk(chosen)
    ids[0, 0] = -1
    assert glue.serves(x, gate_up, down, weights, ids)
    expected = moe(x.clone().requires_grad_(), gate_up, down, weights, ids).detach().float()
    found = moe(x, gate_up, down, weights, ids)
    assert torch.allclose(found.float(), expected, rtol=0.03, atol=0.03)
    for _ in range(3):
        assert torch.equal(moe(x, gate_up, down, weights, ids), found)
    if torch.cuda.get_device_capability()[0] == 9:  # elsewhere torch's grouped product reads the ends
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = moe(x, gate_up, down, weights, ids)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, found)
