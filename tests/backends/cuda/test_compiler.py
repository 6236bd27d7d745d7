"""NVRTC itself: every arch, the cache, and what is said of a kernel that does not compile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.cuda import compiler as module
from backends.cuda.compiler import KERNELS, compile_cubin, nvrtc, nvrtc_build
from backends.errors import CompileError, CompilerMissing

#: e_flags of a cubin: the arch's number is in the lowest byte or, from newer compilers, in the second.
_FLAGS_AT = 48


@pytest.fixture
def own(tmp_path: Path) -> BinaryCache:
    return BinaryCache(tmp_path / "cache")


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of kernels of this test's own: one source, one header."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "half.h").write_text("#define HALF 0.5f\n")
    (folder / "one.cu").write_text(
        '#include "half.h"\nextern "C" __global__ void one(float *x) { x[0] = HALF * FACTOR; }\n'
    )
    monkeypatch.setattr(module, "KERNELS", folder)
    return folder


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    """Sources are read once a process; every test is one."""
    module._inputs.cache_clear()
    yield
    module._inputs.cache_clear()


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were really compiled."""
    compiled: list[str] = []
    real = module._compile

    def counting(source: str, texts: dict[str, str], flags: list[str]) -> bytes:
        compiled.append(source)
        return real(source, texts, flags)

    monkeypatch.setattr(module, "_compile", counting)
    return compiled


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_a_kernel_of_ours_for_every_arch(arch: str, own: BinaryCache, count: list[str]) -> None:
    first = compile_cubin("bandwidth.cu", arch, own)
    data = first.read_bytes()
    assert data.startswith(b"\x7fELF")
    assert b"read_words" in data
    assert b"copy_words" in data
    number = int(arch.removeprefix("sm_"))
    assert number in data[_FLAGS_AT : _FLAGS_AT + 2], "a cubin of that arch"
    assert compile_cubin("bandwidth.cu", arch, own) == first
    assert count == ["bandwidth.cu"], "the second time it is read"


def test_every_source_is_somebody_elses_file(own: BinaryCache) -> None:
    paths = {compile_cubin("bandwidth.cu", arch, own) for arch in ("sm_80", "sm_90")}
    assert len(paths) == 2
    assert {path.suffix for path in paths} == {".cubin"}


def test_macros_and_headers_are_part_of_the_key(kernels: Path, own: BinaryCache, count: list[str]) -> None:
    two = compile_cubin("one.cu", "sm_80", own, {"FACTOR": "2"})
    three = compile_cubin("one.cu", "sm_80", own, {"FACTOR": "3"})
    assert two != three
    assert two.read_bytes() != three.read_bytes()
    (kernels / "half.h").write_text("#define HALF 0.25f\n")
    module._inputs.cache_clear()
    changed = compile_cubin("one.cu", "sm_80", own, {"FACTOR": "2"})
    assert changed not in (two, three)
    assert len(count) == 3
    (kernels / "half.h").write_text("#define HALF 0.5f\n")
    module._inputs.cache_clear()
    assert compile_cubin("one.cu", "sm_80", own, {"FACTOR": "2"}) == two
    assert len(count) == 3


def test_the_order_of_macros_is_nobodys_business(kernels: Path, own: BinaryCache, count: list[str]) -> None:
    compile_cubin("one.cu", "sm_80", own, {"FACTOR": "2", "OTHER": "1"})
    compile_cubin("one.cu", "sm_80", own, {"OTHER": "1", "FACTOR": "2"})
    assert len(count) == 1


def test_another_compiler_is_another_key(
    kernels: Path, own: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = compile_cubin("one.cu", "sm_80", own, {"FACTOR": "2"})
    monkeypatch.setattr(module, "nvrtc_build", lambda: "99.9")
    module._inputs.cache_clear()
    assert compile_cubin("one.cu", "sm_80", own, {"FACTOR": "2"}) != here


def test_a_kernel_that_does_not_compile_says_where(kernels: Path, own: BinaryCache) -> None:
    (kernels / "one.cu").write_text('extern "C" __global__ void one(float *x) {\n  x[0] = nobody;\n}\n')
    with pytest.raises(
        CompileError, match=r"^NVRTC refuses one\.cu: one\.cu\(2\): error: .*nobody"
    ) as caught:
        compile_cubin("one.cu", "sm_80", own)
    assert "1 error detected" in caught.value.log
    assert "\0" not in caught.value.log
    assert not list(own.root.rglob("*.cubin")), "nothing is left of it"


def test_an_arch_that_the_compiler_does_not_know(own: BinaryCache) -> None:
    with pytest.raises(CompileError, match=r"^NVRTC refuses bandwidth\.cu: "):
        compile_cubin("bandwidth.cu", "sm_9", own)


def test_without_nvrtc(own: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    monkeypatch.delattr(sys.modules["cuda.bindings"], "nvrtc", raising=False)
    try:
        with pytest.raises(
            CompilerMissing, match=r"^NVRTC is not to be had .*pip install 'gemmtune\[cuda\]'"
        ):
            nvrtc()
        assert nvrtc_build() is None
        with pytest.raises(CompilerMissing):
            compile_cubin("bandwidth.cu", "sm_90", own)
    finally:
        nvrtc.cache_clear()


def test_the_build_is_a_version() -> None:
    build = nvrtc_build()
    assert build is not None
    major, minor = build.split(".")
    assert int(major) >= 13
    assert minor.isdigit()


@pytest.mark.parametrize("source", sorted(path.name for path in KERNELS.glob("*.cu")))
def test_kernels_include_only_headers_beside_them(source: str) -> None:
    lines = (KERNELS / source).read_text().splitlines()
    included = {line.split('"')[1] for line in lines if line.startswith('#include "')}
    assert included <= {path.name for path in KERNELS.glob("*.h")}
