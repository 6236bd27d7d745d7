"""clang as HIP's compiler: the cache, what is told of kernels, and what does not compile."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends import resources
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing
from backends.kernels import headers as module_headers
from backends.resources import Resources
from backends.toolchains import clang
from backends.toolchains.clang import Clang, clang_build, missing, told
from backends.toolchains.toolchain import CompileUnit

HEADER = '#define KERNEL(name) extern "C" __attribute__((global)) void name(float* x)\n'
UNIT = '#include "own.h"\nKERNEL(one) { x[0] = 1.0f; }\nKERNEL(two) { x[0] = 2.0f; }\n'


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "own.h").write_text(HEADER)
    return tmp_path / "headers"


def test_remarks_are_read() -> None:
    log = (
        "<stdin>:8:1: remark: Function Name: gemm [-Rpass-analysis=kernel-resource-usage]\n"
        "<stdin>:8:1: remark:     SGPRs: 62 [-Rpass-analysis=kernel-resource-usage]\n"
        "<stdin>:8:1: remark:     VGPRs: 150 [-Rpass-analysis=kernel-resource-usage]\n"
        "<stdin>:8:1: remark:     AGPRs: 4 [-Rpass-analysis=kernel-resource-usage]\n"
        "<stdin>:8:1: remark:     ScratchSize [bytes/lane]: 16 [-Rpass-analysis=kernel-resource-usage]\n"
        "<stdin>:8:1: remark:     Dynamic Stack: False [-Rpass-analysis=kernel-resource-usage]\n"
        "<stdin>:8:1: remark:     SGPRs Spill: 7 [-Rpass-analysis=kernel-resource-usage]\n"
        "<stdin>:8:1: remark:     VGPRs Spill: 3 [-Rpass-analysis=kernel-resource-usage]\n"
        "<stdin>:8:1: remark:     LDS Size [bytes/block]: 4096 [-Rpass-analysis=kernel-resource-usage]\n"
        "<stdin>:9:1: remark: Function Name: reduce [-Rpass-analysis=kernel-resource-usage]\n"
    )
    assert told(log) == {"gemm": Resources(154, 4096, 12), "reduce": Resources(None, 0, None)}
    assert told("") == {}


@pytest.mark.clang
def test_a_code_object_and_what_its_kernels_take(headers: Path, tmp_path: Path) -> None:
    assert missing() is None
    assert "19" in str(clang_build())
    cache = BinaryCache(tmp_path / "cache")
    path = Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), cache)
    data = path.read_bytes()
    assert data.startswith(b"\x7fELF")
    found = resources.read(path)
    assert set(found) == {"one", "two"}
    for one in found.values():
        assert one.registers is not None
        assert 1 <= one.registers < 16
        assert (one.shared_bytes, one.spill_bytes) == (0, 0)
    assert Clang().compile(CompileUnit(UNIT, "gfx1100", (headers,)), cache) != path
    path.write_bytes(b"kept")
    assert Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), cache).read_bytes() == b"kept", (
        "the second time it is read"
    )
    (headers / "own.h").write_text(HEADER + "// other\n")
    module_headers._read.cache_clear()
    assert Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), cache) != path


@pytest.mark.clang
def test_what_does_not_compile_says_where(headers: Path, tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path / "cache")
    with pytest.raises(
        CompileError, match=r"^clang-19 refuses the unit: <stdin>:2:.*error: .*nobody"
    ) as caught:
        Clang().compile(CompileUnit(UNIT.replace("1.0f", "nobody"), "gfx942", (headers,)), cache)
    assert "1 error generated" in caught.value.log
    with pytest.raises(CompileError, match=r"clang-19 refuses the unit: .*gfx9999"):
        Clang().compile(CompileUnit(UNIT, "gfx9999", (headers,)), cache)
    assert not [path for path in cache.root.rglob("*") if path.is_file()]


def _instead(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """A program in the compiler's place, and one in its linker's."""
    for name in (clang.COMPILER, clang.LINKER):
        (folder / name).write_text(f"#!/bin/sh\n{program}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_compiler_that_hangs_is_ended(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _instead(tmp_path, monkeypatch, 'test "$1" = --version && echo planted || exec sleep 60')
    monkeypatch.setattr(clang, "COMPILE_SECONDS", 0.2)
    assert clang_build() == "planted"
    with pytest.raises(CompileError, match="clang-19 took over 0 s"):
        Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), BinaryCache(tmp_path / "cache"))


def test_one_that_fails_without_a_word(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _instead(tmp_path, monkeypatch, "exit 3")
    assert clang_build() is None
    with pytest.raises(CompileError, match="clang-19 refuses the unit: exit code 3"):
        Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), BinaryCache(tmp_path / "cache"))


def test_without_clang(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clang_build() is None
    with pytest.raises(CompilerMissing, match="are not both here; install clang-19 and lld-19"):
        Clang().compile(CompileUnit(UNIT, "gfx942", (headers,)), BinaryCache(tmp_path / "cache"))
