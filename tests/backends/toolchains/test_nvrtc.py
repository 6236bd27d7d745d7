"""NVRTC itself: every arch, the cache, and what is said of a kernel that does not compile."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from backends import resources
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing
from backends.gpu.units import device_unit
from backends.kernels import headers
from backends.kernels.families import FAMILIES
from backends.problem import from_mm
from backends.resources import Resources
from backends.toolchains import nvrtc as module
from backends.toolchains.nvrtc import Nvrtc, nvrtc, nvrtc_build, told
from backends.toolchains.toolchain import CompileUnit
from tests.backends.kernels.samples import SM_90

#: e_flags of a cubin: the arch's number is in the lowest byte or, from newer compilers, in the second.
_FLAGS_AT = 48


@pytest.fixture
def own(tmp_path: Path) -> BinaryCache:
    return BinaryCache(tmp_path / "cache")


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A folder of kernels of this test's own: one source, one header."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "half.h").write_text("#define HALF 0.5f\n")
    (folder / "one.cu").write_text(
        '#include "half.h"\nextern "C" __global__ void one(float *x) { x[0] = HALF * FACTOR; }\n'
    )
    return folder


def compiled(folder: Path, cache: BinaryCache, **defines: str) -> Path:
    """one.cu of a folder for sm_80; its headers are read anew."""
    headers._read.cache_clear()
    text = (folder / "one.cu").read_text()
    return Nvrtc().compile(CompileUnit(text, "sm_80", (folder,), tuple(sorted(defines.items()))), cache)


def bandwidth(arch: str, cache: BinaryCache) -> Path:
    """The shared layer's reading and copying kernels."""
    return Nvrtc().compile(device_unit("bandwidth.h", arch, {}), cache)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were really compiled."""
    compiled: list[str] = []
    real = module._compile

    def counting(source: str, texts: dict[str, str], flags: list[str]) -> tuple[bytes, str]:
        compiled.append(source)
        return real(source, texts, flags)

    monkeypatch.setattr(module, "_compile", counting)
    return compiled


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_a_kernel_of_ours_for_every_arch(arch: str, own: BinaryCache, count: list[str]) -> None:
    first = bandwidth(arch, own)
    data = first.read_bytes()
    assert data.startswith(b"\x7fELF")
    assert b"read_words" in data
    assert b"copy_words" in data
    number = int(arch.removeprefix("sm_"))
    assert number in data[_FLAGS_AT : _FLAGS_AT + 2], "a cubin of that arch"
    assert bandwidth(arch, own) == first
    assert count == [module.UNIT], "the second time it is read"


def test_each_architecture_has_a_file_of_its_own(own: BinaryCache) -> None:
    paths = {bandwidth(arch, own) for arch in ("sm_80", "sm_90")}
    assert len(paths) == 2
    assert {path.suffix for path in paths} == {".cubin"}


def test_macros_and_headers_are_part_of_the_key(kernels: Path, own: BinaryCache, count: list[str]) -> None:
    two = compiled(kernels, own, FACTOR="2")
    three = compiled(kernels, own, FACTOR="3")
    assert two != three
    assert two.read_bytes() != three.read_bytes()
    (kernels / "half.h").write_text("#define HALF 0.25f\n")
    changed = compiled(kernels, own, FACTOR="2")
    assert changed not in (two, three)
    assert len(count) == 3
    (kernels / "half.h").write_text("#define HALF 0.5f\n")
    assert compiled(kernels, own, FACTOR="2") == two
    assert len(count) == 3


def test_another_compiler_is_another_key(
    kernels: Path, own: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = compiled(kernels, own, FACTOR="2")
    monkeypatch.setattr(module, "nvrtc_build", lambda: "99.9")
    assert compiled(kernels, own, FACTOR="2") != here


def test_a_kernel_that_does_not_compile_says_where(kernels: Path, own: BinaryCache) -> None:
    (kernels / "one.cu").write_text('extern "C" __global__ void one(float *x) {\n  x[0] = nobody;\n}\n')
    with pytest.raises(
        CompileError, match=r"^NVRTC refuses unit\.cu: unit\.cu\(2\): error: .*nobody"
    ) as caught:
        compiled(kernels, own)
    assert "1 error detected" in caught.value.log
    assert "\0" not in caught.value.log
    assert not list(own.root.rglob("*.cubin")), "nothing is left of it"


def test_a_short_text_of_the_compilers_is_written_into_bytes_of_its_own(
    kernels: Path, own: BinaryCache
) -> None:
    """Python has one object for each single byte: what is written into one of them is everybody's."""
    (kernels / "one.cu").write_text("__device__ int nothing;\n")  # no kernel: the log is one byte
    compiled(kernels, own)
    assert [ord(chr(code).encode()) for code in range(128)] == list(range(128))
    for size in (0, 1, 2, 9):
        assert len(module._buffer(size)) >= 2
        assert module._buffer(size) is not module._buffer(size)


def test_what_the_drivers_cache_had_is_compiled_past_it(
    own: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, past = module._compile, []

    def cached(source: str, texts: Mapping[str, str], flags: list[str]) -> tuple[bytes, str]:
        cubin, log = real(source, texts, flags)
        past.append("--no-cache" in flags)
        return cubin, log if past[-1] else ""

    monkeypatch.setattr(module, "_compile", cached)
    unit = FAMILIES["naive"].config(from_mm(8, 8, 8), {"tile_m": 16, "tile_n": 16}, SM_90).unit
    assert set(resources.read(Nvrtc().compile(CompileUnit(unit, "sm_90"), own))) == {"gemm", "reduce"}
    assert past == [False, True]


def test_an_arch_that_the_compiler_does_not_know(own: BinaryCache) -> None:
    with pytest.raises(CompileError, match=r"^NVRTC refuses unit\.cu: "):
        bandwidth("sm_9", own)


# ---- what kernels take -----------------------------------------------------------------------------

#: A thread holds more numbers than the 32 registers that its block leaves it; a block declares 1200 bytes.
SPILLING = """
extern "C" __global__ void plain(float* x) { x[threadIdx.x] *= 2.0f; }
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* x) {
    __shared__ float shared[300];
    float held[64];
    for (int i = 0; i < 64; ++i) held[i] = x[i * 1024 + threadIdx.x];
    shared[threadIdx.x % 300] = held[0];
    __syncthreads();
    for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = held[63 - i] * held[i] + shared[i];
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_a_units_kernels_tell_registers_shared_memory_and_spills(arch: str, own: BinaryCache) -> None:
    path = Nvrtc().compile(CompileUnit(SPILLING, arch), own)
    found = resources.read(path)
    assert set(found) == {"plain", "spilling"}
    plain, spilling = found["plain"], found["spilling"]
    assert plain.registers is not None
    assert 4 <= plain.registers <= 32
    assert (plain.shared_bytes, plain.spill_bytes) == (0, 0)
    assert (spilling.registers, spilling.shared_bytes) == (32, 1200)
    assert spilling.spill_bytes is not None
    assert spilling.spill_bytes >= 64, "what is spilled is stored and loaded"


def test_the_second_time_a_unit_is_read_and_tells_the_same(own: BinaryCache, count: list[str]) -> None:
    path = Nvrtc().compile(CompileUnit(SPILLING, "sm_80"), own)
    first = resources.read(path)
    assert Nvrtc().compile(CompileUnit(SPILLING, "sm_80"), own) == path
    assert len(count) == 1
    path.with_name(path.stem + resources.SUFFIX).unlink()
    assert Nvrtc().compile(CompileUnit(SPILLING, "sm_80"), own) == path
    assert len(count) == 2, "somebody took away what was told: it is told anew"
    assert resources.read(path) == first


def test_what_ptxas_says_is_read() -> None:
    log = (
        "ptxas info    : 104 bytes gmem\n"
        "ptxas info    : Compiling entry function 'reduce' for 'sm_90a'\n"
        "ptxas info    : Function properties for reduce\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 32 registers, used 0 barriers\n"
        "ptxas info    : Compiling entry function 'gemm' for 'sm_90a'\n"
        "ptxas info    : Function properties for gemm\n"
        "    24 bytes stack frame, 24 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 8448 bytes smem, 400 bytes cmem[0]\n"
        "ptxas info    : Compiling entry function 'silent' for 'sm_90a'\n"
    )
    assert told(log) == {
        "reduce": Resources(32, 0, 0), "gemm": Resources(255, 8448, 44), "silent": Resources(None, 0, None),
    }  # fmt: skip
    assert told("") == {}


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
            bandwidth("sm_90", own)
    finally:
        nvrtc.cache_clear()


def test_the_build_is_a_version() -> None:
    build = nvrtc_build()
    assert build is not None
    major, minor = build.split(".")
    assert int(major) >= 13
    assert minor.isdigit()
