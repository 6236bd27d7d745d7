"""The Triton kernels of a mixture of experts: interpreted, and compiled for GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gemmtune
import pytest
import torch
from gemmtune.torch.grouped import few_tokens, glue
from gemmtune.torch.grouped.layer import moe

from tests.client.torch.grouped import CHECKS
from tests.client.torch.grouped.test_layer import layer

triton = pytest.importorskip("triton")


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """What the program of checks says of each."""
    program = [sys.executable, "-m", "tests.client.torch.grouped.interpreted"]
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": str(Path(gemmtune.__file__).parents[1]),
    }
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return dict(line.split(" ", 1) for line in ran.stdout.splitlines())


@pytest.mark.parametrize("check", CHECKS)
def test_interpreted(found: dict[str, str], check: str) -> None:
    assert found[check] == "ok"


_I32, _F32 = "i32", "*fp32"


class _Text(str):
    """A constant that is a string, where others are types."""

    __slots__ = ()


_SIGNATURES: dict[str, dict[str, Any]] = {
    "route_and_gather": {
        "ids": "*i64", "x": "*bf16", "out": "*u8", "scales": _F32, "ends": "*i32", "place": "*i32",
        "count": _I32, "experts": _I32, "columns": _I32, "CHOSEN": 8, "IDS": 1024, "BLOCKS": 8,
        "QUANTISE": True, "FNUZ": False,
    },
    "route": {
        "ids": "*i32", "ends": "*i32", "place": "*i32", "count": _I32, "experts": _I32, "TILE": 4096,
    },
    "gather": {
        "x": "*fp16", "place": "*i32", "out": "*u8", "scales": _F32, "columns": _I32, "CHOSEN": 8,
        "BLOCKS": 8, "QUANTISE": True, "FNUZ": False,
    },
    "gated_activation": {
        "hidden": "*bf16", "ends": "*i32", "bias": None, "out": "*bf16", "scales": _F32, "experts": _I32,
        "columns": _I32, "limit": None, "EXPERTS": 1, "BLOCKS": 8, "INTERLEAVED": False, "QUANTISE": False,
        "FNUZ": False,
    },
    "weighted_sum": {
        "rows": "*bf16", "place": "*i32", "weights": _F32, "bias": None, "ids": None, "out": "*bf16",
        "columns": _I32, "CHOSEN": 8, "COLUMNS": 256,
    },
    "few_gate_up": {
        "x": "*bf16", "ids": "*i64", "weight": "*bf16", "bias": None, "out": "*bf16", "experts": _I32,
        "limit": None, "CHOSEN": 8, "INTER": 768, "HIDDEN": 2048, "ROWS": 2, "BLOCK_K": 1024, "UNROLL": 1,
        "INTERLEAVED": False,
    },
    "few_down": {
        "hidden": "*bf16", "ids": "*i64", "weights": _F32, "weight": "*bf16", "bias": None, "out": "*bf16",
        "experts": _I32, "CHOSEN": 8, "CHOICES": 8, "HIDDEN": 2048, "INTER": 768, "ROWS": 1, "BLOCK_K": 256,
        "AHEAD": 2,
    },
    "packed_gate_up": {
        "x": "*bf16", "ids": "*i64", "weight": "*i32", "scales": "*u8", "zeros": None, "bias": "*bf16",
        "out": "*bf16", "experts": _I32, "limit": "fp32", "CHOSEN": 4, "INTER": 2880, "HIDDEN": 2880,
        "ROWS": 2, "BLOCK_K": 512, "UNROLL": 1, "INTERLEAVED": True, "GROUP": 32, "ZERO": _Text("none"),
    },
    "packed_down": {
        "hidden": "*fp16", "ids": "*i32", "weights": "*fp16", "weight": "*i32", "scales": "*fp16",
        "zeros": "*i32", "bias": None, "out": "*fp16", "experts": _I32, "CHOSEN": 6, "CHOICES": 8,
        "HIDDEN": 2048, "INTER": 768, "ROWS": 1, "BLOCK_K": 256, "AHEAD": 1, "GROUP": 128,
        "ZERO": _Text("uint4"),
    },
}  # fmt: skip
#: Kernels that load weights, ids and biases before they wait for the launch before them.
_EAGER = ("few_down", "packed_down")
#: As gpt-oss's layer runs them, and 8-bit weights with biases.
_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((name, {}) for name in _SIGNATURES),
    ("gated_activation", {"bias": "*bf16", "EXPERTS": 128, "limit": "fp32", "INTERLEAVED": True}),
    ("gated_activation", {"bias": _F32, "EXPERTS": 512, "out": "*u8", "QUANTISE": True}),
    *(
        (name, {"out": "*u8", "QUANTISE": True, "FNUZ": True})
        for name in ("route_and_gather", "gather", "gated_activation")
    ),
    ("weighted_sum", {"bias": "*bf16", "ids": "*i64"}),
)


@pytest.mark.parametrize("target", [("cuda", 90, 32), ("hip", "gfx942", 64)], ids=["sm_90", "gfx942"])
def test_kernels_compile_for_gpus(
    target: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    modules = few_tokens._kernels(True), few_tokens._kernels(False), glue._kernels()
    for name, options_of_call in _OPTIONS:
        given = {**_SIGNATURES[name], **options_of_call, "DEPENDENT": target[0] == "cuda"}
        kernel = next(getattr(one, name) for one in modules if hasattr(one, name))
        constants = {key: value for key, value in given.items() if type(value) is not str}
        types = {key: "constexpr" if key in constants else value for key, value in given.items()}
        places = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
        options = {"launch_pdl": True} if target[0] == "cuda" else {}
        source = ASTSource(kernel, signature=types, constexprs=places)
        made = triton.compile(source, target=GPUTarget(*target), options=options)
        assert made.metadata.shared < 2**15
        if options:
            first = made.asm["ptx"].index("griddepcontrol.wait")
            before = made.asm["ptx"][made.asm["ptx"].index("{") : first]
            assert ("ld.global" in before) == (name in _EAGER)
            assert "st.global" not in before


def test_a_cpu_takes_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    given = layer()
    assert not glue.runs(*given[:-1])
    monkeypatch.setattr(torch.ops.gemmtune, "moe_rows", None)
    assert moe(*given).shape == given[0].shape
