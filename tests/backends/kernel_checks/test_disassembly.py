"""Matrix instructions counted in real machine code, and disassemblers that are missing or too old."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.errors import CompilerMissing
from backends.kernel_checks import disassembly
from backends.kernel_checks.check import check, plan
from backends.kernel_checks.disassembly import matrix_instructions, missing
from backends.toolchains.clang_compilers import compiler_for

#: A kernel with three matrix instructions of one kind and one of another, and a second without any.
_MFMA = """
typedef _Float16 half4 __attribute__((ext_vector_type(4)));
typedef float float4 __attribute__((ext_vector_type(4)));
typedef float float16 __attribute__((ext_vector_type(16)));
extern "C" __attribute__((global)) void gemm(float4* d, const half4* a, float16* e) {
    float4 sum = {};
    for (int i = 0; i < 3; ++i) sum = __builtin_amdgcn_mfma_f32_16x16x16f16(a[i], a[i + 3], sum, 0, 0, 0);
    *d = sum;
    *e = __builtin_amdgcn_mfma_f32_32x32x8f16(a[0], a[1], *e, 0, 0, 0);
}
extern "C" __attribute__((global)) void reduce(float* d) { *d += 1; }
"""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What earlier tests found is forgotten, and so is what these find."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    disassembly._command.cache_clear()
    disassembly._processors.cache_clear()


@pytest.mark.clang
def test_each_kernel_of_a_code_object_is_counted_alone(tmp_path: Path) -> None:
    path = tmp_path / "unit.hsaco"
    compiler_for("gfx942").compile(_MFMA, "gfx942", (), path, 60.0)
    code = path.read_bytes()
    assert matrix_instructions(code, "gemm", "gfx942") == {
        "v_mfma_f32_16x16x16_f16": 3,
        "v_mfma_f32_32x32x8_f16": 1,
    }
    assert matrix_instructions(code, "reduce", "gfx942") == {}
    with pytest.raises(ValueError, match="finds no kernel descriptor in the code object"):
        matrix_instructions(code, "descriptor", "gfx942")
    with pytest.raises(ValueError, match="does not disassemble code for gfx942: "):
        matrix_instructions(code[:40], "gemm", "gfx942")


@pytest.mark.parametrize("family", ["tile-mma", "naive"])
def test_tensor_core_instructions_of_a_cubin(family: str, cache: BinaryCache) -> None:
    if (why := missing("sm_80")) is not None:
        pytest.skip(why)
    (found,) = check(plan("sm_80", [family], 1).candidates, cache)
    if family == "naive":
        assert found.matrix_instructions == {}
    else:
        assert found.matrix_instructions is not None
        (name,) = found.matrix_instructions
        assert name == "HMMA.16816.F32.BF16"
        assert found.matrix_instructions[name] >= 8


@pytest.mark.clang
def test_a_disassembler_is_asked_what_it_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LLVM 19 alone disassembles gfx942, and says of gfx950 that it does not know it."""
    installed = shutil.which("llvm-objdump-19")
    assert installed is not None
    (tmp_path / "llvm-objdump-19").symlink_to(installed)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert missing("gfx942") is None
    assert missing("gfx950") == "llvm-objdump-19 does not know gfx950: install a later LLVM"


def test_no_disassembler_is_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(disassembly, "find_spec", lambda name: None)
    assert missing("gfx942") == disassembly._NO_OBJDUMP
    assert missing("sm_90a") == disassembly._NO_NVDISASM
    with pytest.raises(CompilerMissing, match="nvdisasm is not installed"):
        matrix_instructions(b"", "gemm", "sm_90")


def test_a_check_without_a_disassembler_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, cache: BinaryCache
) -> None:
    def nothing(name: str) -> str:
        raise CompilerMissing("no disassembler")

    monkeypatch.setattr(disassembly, "_command", nothing)
    planned = plan("sm_80", ["naive"], 1)
    assert planned.notes == ("sm_80: matrix instructions are not counted: no disassembler",)
    (found,) = check(planned.candidates, cache)
    assert found.resources is not None
    assert found.matrix_instructions is None
    assert found.to_dict()["matrix_instructions"] is None
