"""Packages: what is compiled into them, without a GPU, and what is refused."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import backends
from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.errors import CompileError, CompilerMissing, IllegalSolution, NoBinary
from backends.kernel_checks.candidates import environment_of
from backends.kernels.families import FAMILIES
from backends.kernels.oriented_gemm import GemmArgs
from backends.packages import package
from backends.packages.package import build, family_of, follows_units
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from backends.toolchains import code_object
from backends.toolchains.hiprtc import Hiprtc
from backends.toolchains.nvrtc import Nvrtc, nvrtc_build
from backends.toolchains.registry import TOOLCHAINS
from backends.toolchains.triton import missing, triton_build
from backends.wire import problem_from_wire
from tests.backends.hip.on_host.build import variables
from tests.backends.packages.opened import PROGRAM, opened, program

DECODE = from_linear(1, 1000, 4096, "bf16", bias="bf16", beta=1.0)
GEMV = Solution(
    "gemv", 2, {"stream": "a", "rows": 1, "unroll": 4, "warps_m": 2, "warps_k": 4, "splits": 4, "ahead": 0}
)
WGMMA = Solution(
    "tile-wgmma", 2,
    {"tile_m": 128, "tile_n": 64, "stages": 4, "share": 1, "share_b": 1, "splits": 2, "group": 8},
)  # fmt: skip
LAYER = from_linear(256, 512, 1024, "bf16")
MFMA_PROBLEM = from_linear(70, 72, 96, "fp16", beta=2.0)
MFMA = next(iter(FAMILIES["tile-mfma"].solutions(MFMA_PROBLEM, environment_of("gfx942"))))
TILE: dict[str, Any] = {
    "block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3, "swap": False,
}  # fmt: skip
LOOP: dict[str, Any] = {"programs_per_unit": 1, "flatten": True, "loads": "tma"}
#: ELF: machines of CUDA and of AMD's GPUs.
CUDA, AMD = 190, 224
INSTALLED = str(Path(backends.__file__).parent.parent).encode()
needs_triton = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def triton(**changed: Any) -> Solution:
    family = "triton-split-k" if "split_k" in changed else "triton-gemm"
    family = "triton-persistent" if "flatten" in changed else family
    return Solution(family, 1, {**TILE, **changed}, triton_build())


def sections(elf: bytes) -> set[str]:
    """Names of its sections; of a cubin there is one .text.NAME a kernel."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    count, names = struct.unpack_from("<HH", elf, 0x3C)
    (strings,) = struct.unpack_from("<Q", elf, start + names * 64 + 24)
    offsets = (struct.unpack_from("<I", elf, start + number * 64)[0] for number in range(count))
    return {elf[strings + at : elf.index(b"\0", strings + at)].decode() for at in offsets}


def machine(elf: bytes) -> int:
    assert elf[:5] == b"\x7fELF\x02"
    return int.from_bytes(elf[18:20], "little")


def compute_capability(cubin: bytes) -> int:
    """Of the ELF's flags: their second byte since CUDA 13, their first before."""
    flags = int.from_bytes(cubin[48:52], "little")
    return flags >> 8 & 0xFF if cubin[8] >= 8 else flags & 0xFF


# ---- what is in one ------------------------------------------------------------------------------


def test_a_kernel_of_our_own(cache: BinaryCache) -> None:
    data = build(DECODE, GEMV, "sm_90a", None, cache)
    document, files = opened(data)
    assert list(files) == ["kernel.cubin"]
    cubin = files["kernel.cubin"]
    assert (machine(cubin), compute_capability(cubin)) == (CUDA, 90)
    assert {".text.gemm", ".text.reduce"} <= sections(cubin)
    assert INSTALLED not in cubin
    assert (document["format"], document["arch"], document["multiprocessors"]) == (3, "sm_90a", None)
    assert document["compiler"] == {"name": "nvrtc", "version": nvrtc_build()}
    assert Solution.from_dict(document["solution"]) == GEMV
    assert document["problem"]["id"] == DECODE.id
    assert problem_from_wire(document["problem"]["wire"]) == DECODE
    assert GemmProblem.from_dict(document["problem"]["canonical"]) == DECODE
    assert [(one["file"], one["entry"]) for one in document["launches"]] == [
        ("kernel.cubin", "gemm"),
        ("kernel.cubin", "reduce"),
    ]
    assert document["workspace"] == {"bytes": 4 * 1000 * 4, "alignment": 16}
    for launch in document["launches"]:
        assert 16 <= launch["resources"]["registers"] <= 255
        assert launch["programmatic_stream_serialization"] is True
    assert set(document["operands"]) == {"a", "b", "c", "d", "bias"}
    weight = document["operands"]["a"]
    assert (weight["row_major"], weight["rows"], weight["columns"], weight["ld"]) == ("b", 4096, 1000, 4096)
    assert (weight["dtype"], weight["bytes"], weight["alignment"]) == ("bf16", 4096 * 1000 * 2, 16)
    assert document["operands"]["d"]["row_major"] == "d"


def test_the_same_kernel_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(DECODE, GEMV, "sm_90a", None, BinaryCache(tmp_path / "first"))
    monkeypatch.setattr("time.time", lambda: 1e9)
    assert build(DECODE, GEMV, "sm_90a", None, BinaryCache(tmp_path / "second")) == first
    assert build(DECODE, GEMV, "sm_80", None, BinaryCache(tmp_path / "second")) != first
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "first").rglob("*.cubin")}
    assert len(kept) == 1
    build(replace(DECODE, beta="zero"), GEMV, "sm_90a", None, BinaryCache(tmp_path / "first"))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "first").rglob("*.cubin")} == kept


@needs_triton
@pytest.mark.parametrize(
    ("solution", "entries"),
    [
        (triton(), {"gemm": "gemm"}),
        (triton(split_k=4), {"gemm": "gemm", "reduce": "reduce"}),
        (triton(**LOOP), {"gemm": "descriptor"}),
    ],
    ids=["gemm", "split-k", "persistent"],
)
def test_a_kernel_of_tritons(solution: Solution, entries: Mapping[str, str], cache: BinaryCache) -> None:
    document, files = opened(build(LAYER, solution, "sm_90a", 20, cache))
    assert list(files) == [f"{name}.cubin" for name in entries]
    assert [(one["file"], one["entry"]) for one in document["launches"]] == [
        (f"{name}.cubin", entry) for name, entry in entries.items()
    ]
    for name, entry in entries.items():
        cubin = files[f"{name}.cubin"]
        assert (machine(cubin), compute_capability(cubin)) == (CUDA, 90)
        assert f".text.{entry}" in sections(cubin)
        assert INSTALLED not in cubin, "where it is compiled is nobody's business"
    assert document["compiler"] == {"name": "triton", "version": triton_build()}
    assert Solution.from_dict(document["solution"]) == solution
    assert all(launch["programmatic_stream_serialization"] for launch in document["launches"])
    first = document["launches"][0]
    assert first["resources"]["registers"] >= 16
    assert first["block"] == [128, 1, 1]
    if solution.family == "triton-persistent":
        assert document["multiprocessors"] == 20
        assert first["grid"] == [20, 1, 1]
        assert document["workspace"] == {"bytes": 20 * 256, "alignment": 128}
        more, _ = opened(build(LAYER, solution, "sm_90a", 1000, cache))
        assert more["launches"][0]["grid"] == [32, 1, 1], "no more than there are tiles"
        assert more["workspace"]["bytes"] == 32 * 256
        with pytest.raises(ValueError, match="units must be given"):
            build(LAYER, solution, "sm_90a", None, cache)
    else:
        assert document["multiprocessors"] is None
        assert first["grid"] == [32, 4 if solution.family == "triton-split-k" else 1, 1]


def test_tiles_that_blocks_share_are_for_as_many_multiprocessors(cache: BinaryCache) -> None:
    values: dict[str, Any] = {
        "tile_m": 64, "tile_n": 64, "tile_k": 32, "warp_m": 32, "warp_n": 32, "stages": 3, "group": 8,
        "blocks_per_unit": 1,
    }  # fmt: skip
    shared = Solution("stream-k", 1, values)
    document, files = opened(build(LAYER, shared, "sm_90a", 20, cache))
    assert list(files) == ["kernel.cubin"]
    assert document["multiprocessors"] == 20
    assert [launch["entry"] for launch in document["launches"]] == ["gemm", "reduce"]
    assert document["launches"][0]["grid"] == [20, 1, 1]
    assert document["workspace"]["bytes"] == 2 * 20 * 64 * 64 * 4
    even, _ = opened(build(LAYER, shared, "sm_90a", 16, cache))
    assert [launch["entry"] for launch in even["launches"]] == ["gemm"]
    assert even["workspace"]["bytes"] == 0
    with pytest.raises(ValueError, match="units must be given"):
        build(LAYER, shared, "sm_90a", None, cache)


def placed(code: bytes) -> dict[str, list[tuple[int, int]]]:
    """Kernel -> (offset, bytes) of each argument, as the metadata of a code object has them."""
    notes = [
        content for owner, kind, content in code_object._notes(code) if (owner, kind) == (b"AMDGPU\0", 32)
    ]
    kernels = code_object.unpack(notes[0])["amdhsa.kernels"]
    return {
        one[".name"]: [
            (argument[".offset"], argument[".size"])
            for argument in one[".args"]
            if not argument[".value_kind"].startswith("hidden_")
        ]
        for one in kernels
    }


def as_placed(launch: Mapping[str, Any], code: bytes) -> None:
    """The launch's arguments lie where the code object reads them."""
    found = [(one["buffer_offset"], one["bytes"]) for one in launch["arguments"]]
    assert found == placed(code)[launch["entry"]]
    assert launch["argument_bytes"] == sum(found[-1])


@pytest.mark.clang
def test_a_code_object_for_amd(cache: BinaryCache) -> None:
    document, files = opened(build(DECODE, GEMV, "gfx942", None, cache))
    assert list(files) == ["kernel.hsaco"]
    assert machine(files["kernel.hsaco"]) == AMD
    for symbol in (b"gemm.kd\0", b"reduce.kd\0"):
        assert symbol in files["kernel.hsaco"]
    assert document["compiler"]["name"] == "clang"
    assert (document["vendor"], document["launched_by"], document["warp"]) == (
        "hip",
        "hipModuleLaunchKernel",
        64,
    )
    # Eight warps, of 64 threads there.
    assert document["launches"][0]["block"] == [512, 1, 1]
    for launch in document["launches"]:
        as_placed(launch, files["kernel.hsaco"])
        taken = launch["resources"]
        assert (taken["accumulation_registers"], taken["scratch_bytes"]) == (0, 0)
        assert 8 < taken["scalar_registers"] < 128
        assert not launch["needs_shared_memory_attribute"]
        assert not launch["programmatic_stream_serialization"]
    assert INSTALLED not in files["kernel.hsaco"]


@pytest.mark.clang
def test_the_argument_of_matrix_cores_for_amd(cache: BinaryCache) -> None:
    document, files = opened(build(MFMA_PROBLEM, MFMA, "gfx942", None, cache))
    (launch,) = document["launches"]
    as_placed(launch, files["kernel.hsaco"])
    assert launch["arguments"][0]["bytes"] > ctypes.sizeof(GemmArgs)


@needs_triton
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_a_kernel_of_tritons_for_amd(arch: str, cache: BinaryCache) -> None:
    document, files = opened(build(LAYER, triton(split_k=2, num_stages=2), arch, None, cache))
    assert list(files) == ["gemm.hsaco", "reduce.hsaco"]
    for launch in document["launches"]:
        assert machine(files[launch["file"]]) == AMD
        as_placed(launch, files[launch["file"]])
        assert [one["name"] for one in launch["arguments"]][-2:] == ["global_scratch", "profile_scratch"]
        assert INSTALLED not in files[launch["file"]]
    gemm = document["launches"][0]
    assert gemm["block"] == [4 * document["warp"], 1, 1]
    assert gemm["dynamic_shared_bytes"] > 0
    assert gemm["resources"]["static_shared_bytes"] == 0


# ---- what there is none of -----------------------------------------------------------------------


def test_what_has_no_binary(tmp_path: Path) -> None:
    for family in ("cublaslt", "torch-matmul", "hipblaslt"):
        with pytest.raises(NoBinary, match=f"{family} is a library's call: there is no binary; its attribut"):
            build(DECODE, Solution(family, 1, {}), "sm_90a", None, BinaryCache(tmp_path))
    for family in ("packed", "stream"):
        with pytest.raises(NoBinary, match=f"{family} is compiled for the CPU"):
            family_of(Solution(family, 1, {}))


def test_families_of_cpus_are_named() -> None:
    from backends.registry import backend

    own = {name for name, family in backend("cpu").families().items() if family.compiles}
    assert own == set(package._OF_CPUS)


@pytest.mark.parametrize(
    ("problem", "solution", "arch", "rule"),
    [
        (LAYER, GEMV, "sm_90a", "1 to 1 columns beside the streamed operand, not 256"),
        (DECODE, replace(GEMV, version=1), "sm_90a", "version 1 of gemv is another kernel; this is 2"),
        (DECODE, replace(GEMV, parameters={}), "sm_90a", "a gemv solution has the parameters stream"),
        (LAYER, Solution("tile-mma", 1, {}), "gfx942", "tile-mma has kernels for cuda, not for gfx942"),
        pytest.param(
            LAYER, triton(**LOOP), "gfx942", "accelerator came with sm_90; this is gfx942",
            marks=needs_triton,
        ),
        pytest.param(
            LAYER, triton(**LOOP), "sm_80", "accelerator came with sm_90; this is sm_80", marks=needs_triton,
        ),
        pytest.param(
            LAYER, replace(triton(), build="3.1.0"), "sm_90", "Triton 3.1.0 is another kernel under",
            marks=needs_triton,
        ),
    ],
)  # fmt: skip
def test_what_is_not_legal(
    problem: GemmProblem, solution: Solution, arch: str, rule: str, tmp_path: Path
) -> None:
    with pytest.raises(IllegalSolution, match=rule):
        build(problem, solution, arch, 132, BinaryCache(tmp_path))
    assert not list(tmp_path.iterdir()), "nothing was compiled"


@needs_triton
def test_more_shared_memory_than_a_block_has(cache: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    build(LAYER, triton(), "sm_90a", None, cache)
    small = replace(GPU_TARGETS["sm_90a"], block_shared_bytes=1024, default_shared_bytes=1024)
    monkeypatch.setattr(package, "arch_of", lambda environment: small)
    with pytest.raises(
        IllegalSolution, match=r"gemm takes \d+ bytes of shared memory; a block of sm_90a has 1024"
    ):
        build(LAYER, triton(), "sm_90a", None, cache)


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "missing", lambda family, vendor, arch: f"no compiler for {arch}")
    for solution, arch in ((GEMV, "sm_90a"), (GEMV, "gfx942"), (triton(), "sm_90")):
        with pytest.raises(CompilerMissing, match="no compiler for"):
            build(DECODE, solution, arch, None, BinaryCache(tmp_path))


def test_a_compiler_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> Path:
        raise CompileError("NVRTC refuses unit.cu", "the log")

    monkeypatch.setattr(Nvrtc, "compile", refuses)
    with pytest.raises(CompileError, match="NVRTC refuses"):
        build(DECODE, GEMV, "sm_90a", None, BinaryCache(tmp_path))


def test_what_follows_the_multiprocessors() -> None:
    assert follows_units(triton(**LOOP))
    assert not follows_units(triton(split_k=2))
    assert not follows_units(GEMV)
    assert follows_units(Solution("stream-k", 1, {"blocks_per_unit": 2}))
    assert follows_units(Solution("gemv-persistent", 1, {"blocks_per_unit": 2}))
    assert not follows_units(Solution("gemv-persistent", 1, {"blocks_per_unit": 0})), "one for every turn"


# ---- the program of the documentation ------------------------------------------------------------


class Library:
    """Stands in for libcuda: records what it is called with."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.loaded: list[bytes] = []
        self.shared: list[int] = []
        self.launches: list[SimpleNamespace] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate"):
            return lambda *_: 0
        raise AttributeError(name)

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:  # noqa: N802
        self.loaded.append(image)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:  # noqa: N802
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, size: int) -> int:  # noqa: N802
        assert attribute == 8
        self.shared.append(size)
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, pointers: Any, extra: Any) -> int:  # noqa: N802
        assert extra is None
        one = config._obj
        numbers = [*one.grid, *one.block, one.shared]
        attributes = [(each.id, each.value) for each in one.attributes[: one.count]]
        values = [ctypes.string_at(at, size) for at, size in zip(pointers, self.sizes, strict=True)]
        self.launches.append(
            SimpleNamespace(numbers=numbers, stream=one.stream, attributes=attributes, values=values)
        )
        return 0


@needs_triton
def test_the_documents_program_launches_a_package(cache: BinaryCache, tmp_path: Path) -> None:
    path = tmp_path / "package.zip"
    path.write_bytes(build(LAYER, triton(**LOOP), "sm_90a", 20, cache))
    document, files = opened(path.read_bytes())
    module = program()
    cuda = Library([argument["bytes"] for argument in document["launches"][0]["arguments"]])
    loaded = module.Package(module.Driver("cuda", cuda), str(path))
    loaded.run({"a": 1 << 40, "b": 2 << 40, "d": 3 << 40, "workspace": 4 << 40}, 77)
    (launch,) = cuda.launches
    assert cuda.loaded == list(files.values())
    shared = document["launches"][0]["dynamic_shared_bytes"]
    assert shared > 48 * 1024
    assert cuda.shared == [shared]
    assert (launch.numbers, launch.stream) == ([20, 1, 1, 128, 1, 1, shared], 77)
    assert launch.attributes == [(6, 1)], "as it was measured"
    addresses = [int.from_bytes(value, "little") >> 40 for value in launch.values if len(value) == 8]
    # A of the kernel is the activation, the problem's b; scratch comes last but one.
    assert addresses == [2, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0]


def test_a_package_with_maps_of_its_operands(cache: BinaryCache, tmp_path: Path) -> None:
    """Fields that the driver encodes, and that the document's program has it encode."""
    data = build(LAYER, WGMMA, "sm_90", None, cache)
    document, files = opened(data)
    (launch,) = document["launches"]
    (argument,) = launch["arguments"]
    fields = {field["name"]: field for field in argument["fields"]}
    assert list(files) == ["kernel.cubin"]
    assert (launch["grid"], launch["block"]) == ([16, 2, 1], [288, 1, 1])
    assert (argument["bytes"], argument["alignment"]) == (fields["maps[1]"]["offset"] + 128, 64)
    found = fields["maps[0]"]
    assert (found["type"], found["bytes"], found["offset"] % 64, found["fill"]) == (
        "CUtensorMap",
        128,
        0,
        "a",
    )
    assert found["tensor_map"] == {
        "data_type": "BFLOAT16", "sizes": [1024, 512, 1], "strides": [2048, 16], "box": [64, 128, 1],
        "element_strides": [1, 1, 1], "interleave": "NONE", "swizzle": "128B", "l2_promotion": "L2_256B",
        "fill": "NONE",
    }  # fmt: skip
    asked: list[tuple[int, list[int], list[int]]] = []

    class Encoder:
        def cuTensorMapEncodeTiled(self, *given: Any) -> int:  # noqa: N802
            at, kind, rank, address, *rest = given
            sizes, _, box, _, *enums = rest
            assert (kind.value, rank.value, [one.value for one in enums]) == (9, 3, [0, 3, 3, 0])
            asked.append((address.value, list(sizes), list(box)))
            assert at.value % 64 == 0
            ctypes.memset(at.value, len(asked), 128)
            return 0

    filled = {"a": 1 << 20, "b": 2 << 20, "d": 3 << 20}
    packed = program().pack(argument, filled, Encoder())
    assert asked == [(1 << 20, [1024, 512, 1], [64, 128, 1]), (2 << 20, [1024, 256, 1], [64, 64, 1])]
    places = [fields[f"maps[{number}]"]["offset"] for number in (0, 1)]
    assert [packed[place : place + 128] for place in places] == [b"\1" * 128, b"\2" * 128]


@pytest.fixture
def on_host(rocm: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The libamdhip64 of a ROCm on the host, whose hipRTC makes the code objects that it loads."""
    for name, value in variables(rocm).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(cast("dict[str, Any]", TOOLCHAINS), "hip", Hiprtc())
    monkeypatch.setattr(package, "missing", lambda *_: None)
    return rocm / "lib" / "libamdhip64.so"


#: Slices of k that a second launch adds, and matrix cores: one launch, and a struct of its own.
HOST = {"split-k": (from_linear(1, 96, 256, "fp16", beta=2.0), GEMV), "tile-mfma": (MFMA_PROBLEM, MFMA)}


@pytest.mark.parametrize("case", HOST)
def test_a_package_through_libamdhip64(case: str, on_host: Path, cache: BinaryCache, tmp_path: Path) -> None:
    """By the document's program alone, against numpy; the same calls as on a GPU."""
    problem, solution = HOST[case]
    path = tmp_path / "package.zip"
    path.write_bytes(build(problem, solution, "gfx942", None, cache))
    launched_right(program().Driver("hip", ctypes.CDLL(str(on_host))), path)


def test_the_program_finds_the_vendor_in_the_package(
    on_host: Path, cache: BinaryCache, tmp_path: Path
) -> None:
    problem, solution = HOST["split-k"]
    path = tmp_path / "package.zip"
    path.write_bytes(build(problem, solution, "gfx942", None, cache))
    command = [sys.executable, str(PROGRAM), str(path)]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(on_host.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{solution.id}: 2 launches, done\n"), done.stderr
    (tmp_path / "faults").write_text("hipModuleLaunchKernel 1\n")
    environment["GEMMTUNE_SHIM_FAULTS"] = str(tmp_path / "faults")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the driver answers 1" in done.stderr


def test_a_package_for_another_vendor(cache: BinaryCache, tmp_path: Path) -> None:
    path = tmp_path / "package.zip"
    path.write_bytes(build(DECODE, GEMV, "sm_90a", None, cache))
    with pytest.raises(ValueError, match="the package is for sm_90a, not for a device of hip"):
        program().Package(SimpleNamespace(vendor="hip"), str(path))


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["own", "triton", "maps"])
def test_a_package_on_a_gpu(kind: str, cache: BinaryCache, tmp_path: Path) -> None:
    """By the document's program alone, against numpy."""
    from backends.cuda.backend import CudaBackend

    here = CudaBackend().probe().devices[0]
    solution = {"own": GEMV, "triton": triton(split_k=4), "maps": WGMMA}[kind]
    problem = from_linear(1 if kind == "own" else 64, 512, 1024, "fp16", beta=2.0)
    path = tmp_path / "package.zip"
    path.write_bytes(build(problem, solution, here.arch, None, cache))
    launched_right(program().Driver("cuda"), path)


def launched_right(driver: Any, path: Path) -> None:
    """The package computes what numpy does; its problem is row-major, with B transposed and beta open."""
    package = program().Package(driver, str(path))
    document = package.document
    rng = np.random.default_rng(0)
    m, n, k = (document["problem"]["wire"][name] for name in ("m", "n", "k"))
    shapes = {"a": (n, k), "b": (m, k), "c": (m, n), "d": (m, n)}  # in memory, row by row
    host = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    filled: dict[str, Any] = {"alpha": 1.0, "beta": 0.5}
    for name, array in host.items():
        assert document["operands"][name]["bytes"] == array.nbytes
        filled[name] = driver.allocate(array.nbytes)
        driver.write(filled[name], array.tobytes())
    filled["workspace"] = driver.allocate(document["workspace"]["bytes"])
    package.run(filled)
    out = np.frombuffer(driver.read(filled["d"], host["d"].nbytes), np.float16).reshape(shapes["d"])
    wide = {name: array.astype(np.float64) for name, array in host.items()}
    expected = wide["b"] @ wide["a"].T + 0.5 * wide["c"]
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=2e-3, atol=2e-1)
