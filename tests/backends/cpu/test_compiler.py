"""The system compiler: found, cached, and every way it fails."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from backends.archs import CPU_ISAS, CpuIsa
from backends.cache import BinaryCache
from backends.cpu import compiler
from backends.cpu.backend import CpuBackend
from backends.cpu.compiler import compile_unit, find_compiler, target_flags
from backends.cpu.driver import read_cpu
from backends.errors import CompileError, CompilerMissing, StorageError

PARTITION = read_cpu().partition
UNIT = 'extern "C" int answer() { return 42; }\n'


def script(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_unit_is_compiled_once(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    first = compile_unit(UNIT, PARTITION, cache)
    stamp = first.stat().st_mtime_ns
    assert compile_unit(UNIT, PARTITION, cache) == first
    assert first.stat().st_mtime_ns == stamp
    assert compile_unit(UNIT + "// other\n", PARTITION, cache) != first
    assert compile_unit(UNIT, PARTITION, cache, ("-DX=1",)) != first
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()], "no temporary file stays"


def test_a_unit_that_does_not_compile_keeps_the_log(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="error") as caught:
        compile_unit("int broken( {", PARTITION, BinaryCache(tmp_path))
    assert "expected" in caught.value.log
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_without_a_compiler_only_library_candidates_run_and_the_probe_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert find_compiler() is None
    with pytest.raises(CompilerMissing, match=r"install g\+\+ or clang"):
        compile_unit(UNIT, PARTITION, BinaryCache(tmp_path))
    backend = CpuBackend()
    probe = backend.probe()
    assert any("only library candidates can run; install g++" in note for note in probe.notes)
    available = [f.name for f in backend.families().values() if f.unavailable(probe.devices[0]) is None]
    assert "openblas" in available
    assert not {"packed", "stream"} & set(available)


def test_cxx_names_the_compiler_and_a_name_that_is_none_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(tmp_path, "my-c++", "echo 'my compiler 1.0'")
    monkeypatch.setenv("CXX", str(path))
    found = find_compiler()
    assert found is not None
    assert found.version == "my compiler 1.0"
    monkeypatch.setenv("CXX", f"{path} -m64")
    found = find_compiler()
    assert found is not None
    assert found.command == (str(path), "-m64")
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    assert find_compiler() is None
    with pytest.raises(CompilerMissing, match=r"CXX='.*missing' is none"):
        compile_unit(UNIT, PARTITION, BinaryCache(tmp_path))


def test_a_full_disk_is_the_disks_fault_not_the_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(
        tmp_path,
        "full-c++",
        '[ "$1" = --version ] && echo full 1.0 && exit 0\n'
        "echo 'fatal error: error writing to /tmp/x.s: No space left on device' >&2; exit 1",
    )
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(StorageError, match=r"full; free some space or set GEMMTUNE_CACHE_DIR"):
        compile_unit(UNIT, PARTITION, BinaryCache(tmp_path / "cache"))


def test_a_compiler_that_hangs_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(
        tmp_path,
        "slow-c++",
        f'[ "$1" = --version ] && echo slow 1.0 && exit 0\nsleep 60 & echo $! > {tmp_path}/child; wait',
    )
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setattr(compiler, "COMPILE_SECONDS", 0.5)
    with pytest.raises(CompileError, match="took over"):
        compile_unit(UNIT, PARTITION, BinaryCache(tmp_path / "cache"))
    child = int((tmp_path / "child").read_text())
    for _ in range(50):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    os.kill(child, 9)
    pytest.fail("the compiler's child outlived it")


@pytest.mark.parametrize(
    "isa", [row for row in CPU_ISAS if row.machine == "x86_64"], ids=lambda row: row.name
)
def test_flags_name_the_level_never_the_machine(isa: CpuIsa) -> None:
    flags = target_flags(f"{isa.name}+avx512_bf16")
    assert f"-march={isa.name}" in flags
    assert "-march=native" not in flags
    assert "-mavx512bf16" in flags


@pytest.mark.parametrize("name", sorted(name for name in compiler.kernel_sources() if name.endswith(".h")))
def test_a_header_includes_what_it_needs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the compiler of this test run includes by itself (conftest.py: precompiled)."""
    monkeypatch.delenv("CXX")
    plain = find_compiler()
    assert plain is not None
    unit = tmp_path / "unit.cpp"
    unit.write_text(f'#include "{name}"\n')
    flags = (*compiler.FLAGS, *target_flags(read_cpu().partition), f"-I{compiler.KERNELS}", "-fsyntax-only")
    done = subprocess.run([*plain.command, *flags, str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
