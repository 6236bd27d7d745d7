"""A user's CUDA source: compiled for a GPU, and launched as it states, on the null driver."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.errors import CompileError, IllegalSolution, LaunchError, ReadError
from backends.gpu.user_kernel import CompiledUserKernel, TorchUserKernel, user_family
from backends.operands import Operands
from backends.problem import from_mm
from backends.toolchains.nvrtc import Nvrtc, header_folders
from backends.user_kernels.gemm_call import GemmCall
from backends.user_kernels.source import read_kernel
from tests.backends.gpu.null_device import ENVIRONMENT, NOTHING, NullDevice

TILE = Path(__file__).parents[3] / "docs" / "examples" / "judge" / "tile.cu"
PROBLEM = replace(from_mm(40, 50, 60, "fp32"), ldd=56)


def family(path: Path = TILE) -> CompiledUserKernel:
    found = user_family(read_kernel(path), Nvrtc(), "cuda")
    assert isinstance(found, CompiledUserKernel)
    return found


def test_the_example_compiles_and_an_error_has_its_log(cache: BinaryCache, tmp_path: Path) -> None:
    mine = family()
    binary = mine.compile(PROBLEM, mine.solution, ENVIRONMENT, cache)
    assert binary.read_bytes()[:4] == b"\x7fELF"
    broken = tmp_path / "broken.cu"
    broken.write_text(TILE.read_text().replace("float total = 0.0f;", ""))
    other = family(broken)
    with pytest.raises(CompileError, match="total") as raised:
        other.compile(PROBLEM, other.solution, ENVIRONMENT, cache)
    assert raised.value.log


def test_a_source_may_include_cudas_headers(cache: BinaryCache, tmp_path: Path) -> None:
    assert header_folders()  # Triton has a copy
    path = tmp_path / "half.cu"
    path.write_text("#include <cuda_fp16.h>\n" + TILE.read_text())
    mine = family(path)
    assert mine.compile(PROBLEM, mine.solution, ENVIRONMENT, cache).exists()


def test_it_is_launched_as_the_source_states() -> None:
    device, mine = NullDevice(), family()
    kernel = mine.load(PROBLEM, mine.solution, NOTHING, device)
    # Canonical operands: the row-major A is b.
    operands = Operands.at({"a": 0x1000, "b": 0x2000, "d": 0x3000}, PROBLEM.scalars)
    kernel.bind(operands, 0)()
    (launched,) = device.launches
    assert (launched.entry, launched.grid, launched.block, launched.shared) == (
        "gemm",
        (4, 3, 1),
        (16, 16, 1),
        0,
    )
    assert not launched.dependent
    call = launched.argument
    assert isinstance(call, GemmCall)
    assert (call.m, call.n, call.k, call.batch) == (40, 50, 60, 1)
    assert (call.a, call.b, call.d, call.c, call.bias) == (0x2000, 0x1000, 0x3000, None, None)
    assert (call.lda, call.ldb, call.ldd) == (60, 50, 56)
    assert (call.alpha, call.beta, call.transposed_a, call.input) == (1.0, 0.0, 0, 0)


def test_a_large_shared_memory_is_asked_for_and_an_empty_launch_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(TILE.read_text() + "// gemmtune: shared 1024 * 100\n")
    device = NullDevice()
    mine = family(path)
    mine.load(PROBLEM, mine.solution, NOTHING, device)
    assert ("allow_shared", "gemm", 102400) in device.driver.log
    path.write_text(TILE.read_text().replace("cdiv(n, 16), cdiv(m, 16)", "n // 1000"))
    mine = family(path)
    with pytest.raises(LaunchError, match="which are empty"):
        mine.load(PROBLEM, mine.solution, NOTHING, device)


def test_what_the_source_does_not_state_is_illegal(tmp_path: Path) -> None:
    mine, device = family(), NullDevice()
    other = from_mm(8, 8, 8, "bf16")
    assert not mine.supports(other)
    assert mine.illegal(other, mine.solution, ENVIRONMENT) == "it takes fp32 -> fp32, not bf16 -> bf16"
    with pytest.raises(IllegalSolution):
        mine.load(other, mine.solution, NOTHING, device)
    stale = replace(mine.solution, parameters={"source": "0" * 16})
    assert "of another source" in (mine.illegal(PROBLEM, stale, ENVIRONMENT) or "")


def test_languages_are_those_of_the_device(tmp_path: Path) -> None:
    rows = read_kernel(TILE.parent / "rows.cpp")
    with pytest.raises(ReadError, match="--device cpu"):
        user_family(rows, Nvrtc(), "cuda")
    triton = user_family(read_kernel(TILE.parent / "triton_gemm.py"), Nvrtc(), "cuda")
    assert isinstance(triton, TorchUserKernel)
    path = tmp_path / "k.py"
    path.write_text("ARRAYS = 'numpy'\ndef gemm(a, b, out): ...\n")
    with pytest.raises(ReadError, match="torch's only"):
        user_family(read_kernel(path), Nvrtc(), "cuda")
