"""Ahead of time to cubins and code objects: no GPU, no torch, nothing in the user's home."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import CompileError, CompilerMissing, LaunchError
from backends.kernels.triton.configuration import MAIN, REDUCE, TritonConfig
from backends.kernels.triton.description import Compiled, Description, Request, read, write
from backends.kernels.triton.legality import broken, unsupported_arch
from backends.problem import GemmProblem, from_bmm, from_linear
from backends.toolchains import code_object
from backends.toolchains import triton as compiler
from backends.toolchains import triton_worker as program
from backends.toolchains.triton import Triton, TritonUnit, Worker, WorkerPool, missing, triton_build
from tests.backends.kernels.ptx import EARLY, TOUCHES, WAIT, entries, waits_first

needs_triton = pytest.mark.skipif(missing() is not None, reason=str(missing()))
TILE: dict[str, Any] = {
    "block_m": 64, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3,
    "swap": False,
}  # fmt: skip
LOOP = {"programs_per_unit": 2, "flatten": True, "loads": "pointer"}
TMA = {**LOOP, "programs_per_unit": 1, "loads": "tma"}


def requests(problem: GemmProblem, arch: str = "sm_90", **changed: Any) -> dict[str, Request]:
    return TritonConfig.of(problem, {**TILE, **changed}).requests(GPU_ARCHS[arch])


@pytest.fixture
def fresh() -> Any:
    """Nothing compiled yet in this process."""
    compiler._compiled.cache_clear()
    yield
    compiler._compiled.cache_clear()


# ---- a sample ------------------------------------------------------------------------------------

PROBLEMS: dict[str, tuple[GemmProblem, dict[str, Any]]] = {
    "bf16": (from_linear(256, 512, 1024, "bf16"), {}),
    "bf16 odd": (
        from_linear(255, 511, 1023, "bf16", bias="bf16", activation="gelu", beta=1.0), {"swap": True},
    ),
    "fp16 NT": (from_bmm(3, 96, 80, 72, "fp16", trans_a="T"), LOOP),
    "tf32": (from_linear(256, 512, 1024, "tf32", bias="fp32", activation="silu"), {"block_k": 32}),
    "int8": (from_linear(256, 512, 1024, "int8", beta=2.0, activation="relu"), {"split_k": 4}),
    "fp8": (
        from_linear(256, 512, 1024, "fp8_e4m3", dtype_b="fp8_e5m2", scale_a="outer", scale_b="tensor"),
        {"block_k": 128},
    ),
    "fp8 to fp8": (
        from_linear(256, 512, 1024, "fp8_e4m3", dtype_d="fp8_e4m3", scale_d="tensor", fast_accumulation=True),
        {"block_k": 128},
    ),
    "descriptors": (
        from_linear(256, 512, 1024, "bf16", bias="bf16"),
        {**TMA, "block_m": 128, "block_n": 256, "num_warps": 8},
    ),
    "descriptors of int8": (
        from_linear(250, 500, 1008, "int8"), TMA,
    ),
    "wide": (from_linear(2**15, 2**14, 2**16, "bf16", bias="bf16"), {"split_k": 2}),
    "wide, one slice": (from_linear(2**15, 2**14, 2**16, "bf16"), {}),
    "wide, persistent": (from_linear(2**15, 2**14, 2**16, "bf16"), LOOP),
}  # fmt: skip
NEWER = [name for name in PROBLEMS if "fp8" in name or "descriptors" in name]
SAMPLE = [(name, "sm_90") for name in PROBLEMS] + [(name, "sm_80") for name in PROBLEMS if name not in NEWER]


@needs_triton
@pytest.mark.parametrize(("name", "arch"), SAMPLE)
def test_a_sample_compiles(name: str, arch: str, cache: BinaryCache) -> None:
    problem, changed = PROBLEMS[name]
    asked = requests(problem, arch, **changed)
    path = Triton().compile(TritonUnit(asked, arch), cache)
    assert path.is_relative_to(cache.root)
    found = read(path)
    assert list(found) == list(asked)
    for entry, one in found.items():
        assert one.binary.startswith(b"\x7fELF")
        told = one.description
        assert told.entry == asked[entry].kernel
        assert told.entry.encode() in one.binary
        assert told.threads == 32 * asked[entry].options["num_warps"]
        assert told.parameters == asked[entry].parameters
        assert (told.scratch_bytes, told.profile_bytes) == (256 if "descriptors" in name else 0, 0)
        assert told.scratch_align <= 256
        assert told.registers is not None
        assert 16 <= told.registers <= 255
        assert told.spill_bytes is not None
    aligned = name in ("bf16", "tf32", "int8", "fp8", "fp8 to fp8", "wide")
    one_stage = TritonConfig.of(problem, {**TILE, **changed}).stage_bytes
    # A pipeline of three stages holds two of them at least: loads of whole 16 bytes are asynchronous copies.
    assert not aligned or found[MAIN].description.shared_bytes >= 2 * one_stage


#: For AMD's GPUs, of all types that an architecture multiplies; two stages are what its pipelines have.
AMD = {**TILE, "block_n": 64, "num_stages": 2}
LINE, ODD = from_linear(256, 512, 1024, "bf16"), PROBLEMS["bf16 odd"][0]
ON_GFX: dict[str, tuple[GemmProblem, dict[str, Any]]] = {
    "bf16": (LINE, {"matrix_instr_nonkdim": 16}),
    "bf16 odd": (ODD, {"block_m": 32, "block_n": 32, "block_k": 32, "swap": True}),
    "int8 in slices": (PROBLEMS["int8"][0], {"split_k": 4}),
    "fp16 NT, persistent": (PROBLEMS["fp16 NT"][0], {**LOOP, "block_k": 32}),
    "fp32": (from_linear(256, 512, 1024, "fp32", bias="fp32"), {"block_k": 32, "matrix_instr_nonkdim": 32}),
    "tf32": (PROBLEMS["tf32"][0], {"block_k": 32}),
    "fp8": (from_linear(256, 512, 1024, "fp8_e4m3", scale_a="outer"), {"block_k": 128}),
    "two fp8 types": (PROBLEMS["fp8"][0], {"block_k": 128}),
    "wide": (PROBLEMS["wide"][0], {"split_k": 2}),
}
OF_ARCH = {
    "gfx90a": ["bf16", "bf16 odd", "int8 in slices", "fp16 NT, persistent", "fp32", "wide"],
    "gfx942": ["bf16", "bf16 odd", "int8 in slices", "fp16 NT, persistent", "fp32", "tf32", "wide"],
    "gfx950": ["bf16", "bf16 odd", "int8 in slices", "fp16 NT, persistent", "fp32", "two fp8 types", "wide"],
    "gfx1100": ["bf16", "bf16 odd", "int8 in slices", "fp16 NT, persistent", "wide"],
    "gfx1201": ["bf16", "bf16 odd", "int8 in slices", "fp16 NT, persistent", "fp8", "wide"],
}
#: What `make test` compiles of them.
QUICK = (
    ("gfx942", "bf16"), ("gfx942", "int8 in slices"), ("gfx942", "tf32"),
    ("gfx1100", "bf16"), ("gfx1100", "bf16 odd"), ("gfx1100", "fp16 NT, persistent"),
    ("gfx950", "two fp8 types"), ("gfx1201", "fp8"),
)  # fmt: skip


@needs_triton
@pytest.mark.parametrize(
    ("arch", "name"),
    [
        pytest.param(arch, name, marks=[] if (arch, name) in QUICK else pytest.mark.exhaustive)
        for arch, names in OF_ARCH.items()
        for name in names
    ],
)
def test_a_sample_compiles_for_amds_gpus(arch: str, name: str, cache: BinaryCache) -> None:
    problem, changed = ON_GFX[name]
    row, changed = GPU_ARCHS[arch], {**AMD, **changed}
    if row.warp == 32:
        changed.pop("matrix_instr_nonkdim", None)
    config = TritonConfig.of(problem, changed)
    environment = Environment("hip", arch, arch, 32, 2**36, "GPU-0")
    assert unsupported_arch(problem, environment) is None
    assert broken(config, environment) is None
    asked = config.requests(row)
    found = read(Triton().compile(TritonUnit(asked, arch), cache))
    assert list(found) == list(asked)
    for entry, one in found.items():
        made, told = code_object.read(one.binary), one.description
        (kernel,) = made.kernels.values()
        assert (made.arch, kernel.name, told.entry) == (arch, asked[entry].kernel, asked[entry].kernel)
        assert kernel.wavefront_size == row.warp
        assert told.threads == kernel.max_flat_workgroup_size == row.warp * asked[entry].options["num_warps"]
        assert told.shared_bytes <= row.block_shared_bytes
        assert kernel.group_segment_fixed_size == 0, "it is a launch's: dynamic"
        assert (told.scratch_bytes, told.scratch_align, told.profile_bytes) == (0, 1, 0)
        assert told.parameters == asked[entry].parameters
        sizes = {"u64": 8, "u32": 4, "f32": 4}
        assert [size for size, _ in kernel.arguments] == [sizes[kind] for kind in told.parameters]
        assert told.registers == kernel.vgpr_count <= row.thread_registers
        assert told.spill_bytes is not None
        assert told.spill_bytes <= 4 * 150, "a kernel that fits by its estimate spills little"
    assert found[MAIN].description.shared_bytes > 0


#: Answers each line with the PTX that Triton made of a request.
TELLS_PTX = """
import json, sys
import triton
from backends.toolchains import triton_worker as worker
made, compile = [], triton.compile
triton.compile = lambda *given, **named: made.append(compile(*given, **named)) or made[-1]
for line in sys.stdin:
    worker.compile_kernel(json.loads(line))
    print(json.dumps(made[-1].asm["ptx"]))
"""


def ptx(asked: Sequence[Request], folder: Path) -> list[str]:
    """What Triton hands to the assembler for each request."""
    lines = "\n".join(one.to_json() for one in asked)
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", TELLS_PTX],
        input=lines,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('"')]


@needs_triton
def test_from_sm_90_on_every_kernel_waits_before_it_touches_memory(tmp_path: Path) -> None:
    layer = from_linear(256, 512, 1024, "bf16", bias="bf16", beta=1.0)
    odd = from_linear(255, 511, 1023, "bf16")
    cases: list[tuple[GemmProblem, dict[str, Any]]] = [
        (layer, {}), (odd, {"split_k": 4}), (layer, {"split_k": 4, "swap": True}), (layer, LOOP), (odd, LOOP),
        (layer, {**TMA, "block_m": 128, "num_warps": 8}),
    ]  # fmt: skip
    asked = [one for problem, changed in cases for one in requests(problem, **changed).values()]
    older = [
        one
        for problem, changed in cases
        if changed.get("loads") != "tma"
        for one in requests(problem, "sm_80", **changed).values()
    ]
    texts = ptx([*asked, *older], tmp_path)
    assert len(texts) == len(asked) + len(older)
    assert {one.kernel for one in asked} == {"gemm", "reduce", "persistent", "descriptor"}
    for one, text in zip(asked, texts, strict=False):
        (entry,) = entries(text).values()
        waits_first(entry)
        after = entry.split(WAIT)[1]
        early = one.constants.get("SPLIT", False)
        assert entry.count(EARLY) == int(bool(early)), "within a product alone"
        if early:
            assert re.search(r"\bst\.global", after.split(EARLY)[1]), "before the last stores"
            assert not re.search(r"\bst\.global", after.split(EARLY)[0])
    for text in texts[len(asked) :]:
        assert "griddepcontrol" not in text
        assert TOUCHES.search(text)


@needs_triton
def test_the_second_time_it_comes_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Any
) -> None:
    own = BinaryCache(tmp_path)
    asked = requests(PROBLEMS["int8"][0], split_k=2)
    path = Triton().compile(TritonUnit(asked, "sm_90"), own)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    data = path.read_bytes()
    compiler._compiled.cache_clear()
    monkeypatch.setattr(compiler, "_POOL", None)
    assert Triton().compile(TritonUnit(asked, "sm_90"), own) == path
    path.unlink()
    monkeypatch.undo()
    assert Triton().compile(TritonUnit(asked, "sm_90"), own).read_bytes() == data, "the same every time"


@needs_triton
def test_threads_compile_at_once(tmp_path: Path, fresh: Any) -> None:
    own, problem = BinaryCache(tmp_path), PROBLEMS["bf16"][0]
    asked = [requests(problem, num_stages=stages) for stages in (2, 3, 4, 5)]
    with ThreadPoolExecutor(4) as threads:
        paths = list(threads.map(lambda one: Triton().compile(TritonUnit(one, "sm_90"), own), asked))
    assert len(set(paths)) == 4
    held = [read(path)[MAIN].description.shared_bytes for path in paths]
    assert held == sorted(set(held)), "each its own answer: more stages, more shared memory"


@needs_triton
def test_the_users_settings_of_triton_stay_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: Any
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name, value in {
        "HOME": str(home), "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(home),
        "PTXAS_OPTIONS": "--nonsense",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    pool = WorkerPool(1)
    monkeypatch.setattr(compiler, "_POOL", pool)
    path = Triton().compile(
        TritonUnit(requests(PROBLEMS["bf16"][0]), "sm_90"), BinaryCache(tmp_path / "cache")
    )
    (worker,) = pool._free
    folder = Path(worker._folder.name)
    assert not (folder / "cache").exists(), "what Triton keeps is dropped after every answer"
    pool.close()
    assert read(path)[MAIN].binary
    assert list(home.iterdir()) == []
    assert not folder.exists()


# ---- what goes wrong -----------------------------------------------------------------------------


@needs_triton
def test_what_triton_refuses_is_a_compile_error_with_its_log(tmp_path: Path) -> None:
    good = requests(PROBLEMS["bf16"][0])[MAIN]
    bad = replace(good, constants={**good.constants, "BLOCK_M": 48})
    with pytest.raises(CompileError, match=r"Triton refuses gemm: .*power of 2") as caught:
        Triton().compile(TritonUnit({MAIN: bad}, "sm_90"), BinaryCache(tmp_path))
    assert "Traceback" in caught.value.log
    assert "span(row, BLOCK_M, WIDE)" in caught.value.log, "the line of the kernel's source"
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("An error\n`ptxas` stderr:\nptxas fatal   : Insufficient registers\nRepro command: ptxas\n",
         "ptxas fatal   : Insufficient registers"),
        ("at 5:16:\n    found = block\n\nnumbers have no such thing\n", "numbers have no such thing"),
        ("", "ValueError"),
    ],
)  # fmt: skip
def test_an_error_is_told_by_its_cause(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: object) -> dict[str, Any]:
        try:
            try:
                raise ValueError(text)
            except ValueError as cause:
                raise KeyError("at 8:9: the caller\n   ^") from cause
        except KeyError as error:
            raise RuntimeError("at 19:16: its caller\n   ^") from error

    monkeypatch.setattr(program, "compile_kernel", refuse)
    answered = program.answer("{}")
    assert answered["error"] == f"RuntimeError: {words}"
    assert "its caller" in answered["log"]


@needs_triton
def test_parameters_in_another_order_than_the_kernels_are_refused(tmp_path: Path) -> None:
    good = requests(PROBLEMS["bf16"][0])[MAIN]
    bad = replace(good, signature=tuple(reversed(good.signature)))
    with pytest.raises(CompileError, match="TypeError: gemm takes"):
        Triton().compile(TritonUnit({MAIN: bad}, "sm_90"), BinaryCache(tmp_path))


@needs_triton
def test_a_compiler_that_dies_is_a_compile_error_and_another_takes_its_place() -> None:
    pool, text = WorkerPool(1), requests(PROBLEMS["bf16"][0])[MAIN].to_json()
    assert "binary" in pool.ask(text)
    (worker,) = pool._free
    worker._process.kill()
    with pytest.raises(CompileError, match=r"Triton's process ended before it answered .*\(status -9\)"):
        pool.ask(text)
    assert "binary" in pool.ask(text)
    assert pool._free != [worker]
    pool.close()


def _instead(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Another program in the compiler's place."""
    start = subprocess.Popen

    def popen(command: list[str], **named: Any) -> Any:
        assert command[0] == sys.executable
        return start([sys.executable, "-c", program], **named)

    monkeypatch.setattr("subprocess.Popen", popen)


def test_a_failed_assertions_words_are_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    _instead(
        monkeypatch, "import os, sys; sys.stdin.readline(); os.write(2, b'Assertion `x` failed'); os.abort()"
    )
    pool = WorkerPool(1)
    with pytest.raises(CompileError, match=r"\(status -6\)") as caught:
        pool.ask("{}")
    assert caught.value.log == "Assertion `x` failed"
    assert pool._free == []


def test_the_log_of_a_process_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import os, sys\nfor number, line in enumerate(sys.stdin):\n"
        "    if number == 9: os.write(2, b'the last words'); os.abort()\n"
        "    os.write(2, b'x' * 50000); print('{}', flush=True)"
    )
    _instead(monkeypatch, program)
    worker = Worker()
    for _ in range(9):
        assert worker.ask("{}") == {}
        assert os.fstat(worker._log.fileno()).st_size <= compiler._LOG_BYTES + 50_000
    with pytest.raises(CompileError) as caught:
        worker.ask("{}")
    assert caught.value.log == "the last words"
    worker.close()


def test_a_compiler_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    _instead(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(compiler, "TIMEOUT_SECONDS", 0.2)
    worker = Worker()
    with pytest.raises(CompileError, match="no answer within 0 s"):
        worker.ask("{}")
    assert worker._process.poll() is not None
    worker.close()


def test_half_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    _instead(monkeypatch, "import sys; sys.stdin.readline(); print('{', end='')")
    worker = Worker()
    with pytest.raises(CompileError, match="ended before it answered"):
        worker.ask("{}")
    worker.close()


def test_parameters_that_a_launch_would_not_pass(monkeypatch: pytest.MonkeyPatch, fresh: Any) -> None:
    program = (
        "import sys, json; sys.stdin.readline(); print(json.dumps(dict(binary='', entry='gemm', threads=1, "
        "shared_bytes=0, scratch_bytes=0, scratch_align=1, profile_bytes=0, parameters=['u64'])))"
    )
    _instead(monkeypatch, program)
    pool = WorkerPool(1)
    monkeypatch.setattr(compiler, "_POOL", pool)
    one = requests(PROBLEMS["bf16"][0])[MAIN]
    with pytest.raises(
        CompileError, match=re.escape("gave gemm the parameters ('u64',), and a launch passes")
    ):
        compiler._compiled(one.to_json(), one.parameters)
    pool.close()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (None, "Triton is not installed; pip install 'gemmtune[triton]'"),
        ("3.7.1", "Triton 3.7.1 is not of the line 3.6.x"),
        ("2.1.0", "pip install 'gemmtune[triton]'"),
    ],
)
def test_without_triton(
    build: str | None, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiler, "triton_build", lambda: build)
    assert words in str(missing())
    with pytest.raises(CompilerMissing, match=re.escape(words)):
        Triton().compile(TritonUnit(requests(PROBLEMS["bf16"][0]), "sm_90"), BinaryCache(tmp_path))


def test_the_version_is_read_without_importing_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_build.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert triton_build() is None
    triton_build.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} 3.6.0")
    assert triton_build() == "triton 3.6.0"
    triton_build.cache_clear()
    assert "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") is None


# ---- the file ------------------------------------------------------------------------------------

TOLD = Description("gemm", 128, 1000, 0, 1, 0, ("u64", "f32"), 90, 0)


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "one.zip"
    kernels = {MAIN: Compiled(b"abc", TOLD), REDUCE: Compiled(b"", replace(TOLD, entry="reduce"))}
    write(path, "sm_90", "triton 3.6.0", kernels)
    assert read(path) == kernels
    first = path.read_bytes()
    write(path, "sm_90", "triton 3.6.0", kernels)
    assert path.read_bytes() == first


@pytest.mark.parametrize("data", [b"", b"PK", b"x" * 1000])
def test_what_is_no_such_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "one.zip"
    path.write_bytes(data)
    with pytest.raises(LaunchError, match=r"one\.zip is no file of compiled Triton kernels"):
        read(path)
    with pytest.raises(LaunchError, match="none"):
        read(tmp_path / "none")


def test_a_file_of_another_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.zip"
    with monkeypatch.context() as changed:
        changed.setattr("backends.kernels.triton.description.FORMAT", 2)
        write(path, "sm_90", "triton 3.6.0", {MAIN: Compiled(b"abc", TOLD)})
    with pytest.raises(LaunchError, match="format 2, 1 is known"):
        read(path)


def test_a_description_that_lacks_something() -> None:
    with pytest.raises(ValueError, match="no launch description"):
        Description.from_dict({"entry": "gemm", "parameters": ["u64"]})
