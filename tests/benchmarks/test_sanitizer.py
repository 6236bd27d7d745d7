"""The check of our kernels under compute-sanitizer, with a sanitizer and a GPU that are only scripts."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.errors import CompileError, IllegalSolution, LaunchError
from backends.gpu.context import GpuBuffer
from backends.kernel_checks.candidates import GPU_FAMILIES
from backends.kernels.triton.configuration import TritonConfig
from backends.kernels.triton.family import holds
from backends.kernels.triton.framework_families import FrameworkFamily
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_linear, from_mm
from backends.solution import Solution
from benchmarks import sanitizer, sanitizer_pairs
from benchmarks.sanitizer import command, heard, judged, located, main, parser
from benchmarks.sanitizer_pairs import (
    BYTES,
    FAMILIES,
    GROUPED,
    GROUPED_BYTES,
    GROUPED_WEIGHTS,
    LARGE,
    MX_PRODUCTS,
    PACKED,
    PROBLEMS,
    QUANTISED,
    Pair,
    compiled,
    launch,
    launch_file,
    sampled,
    to_json,
)
from tests.backends.gpu.null_device import NullDevice
from tests.backends.kernels.emulator.host import H200
from tests.benchmarks.gpus import gpu
from tests.tuners.packing import PackingKernel
from tests.tuners.test_verify import HostDevice

ODD = from_linear(1, 70, 523, "fp16", ldb=525, alignment=2, beta=1.0)
CLEAN = {
    "memcheck": "========= ERROR SUMMARY: 0 errors\n",
    "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
}
LAUNCHED = "pair one gemv-1\nlaunched one gemv-1\n"


def candidate(name: str) -> Solution:
    return Solution("gemv", 1, {"name": name})


# ---- the sample ----------------------------------------------------------------------------------


def test_problems_are_of_every_kind() -> None:
    assert {(one.trans_a, one.trans_b) for one in PROBLEMS} == {(a, b) for a in "NT" for b in "NT"}
    assert {one.dtype_a for one in PROBLEMS} == {"fp32", "bf16", "fp16", "int8", "fp8_e4m3"}
    assert {"fp32", "tf32", "int32"} == {one.compute for one in PROBLEMS}
    assert {one.beta for one in PROBLEMS} == {"zero", "one", "any"}
    assert {one.bias_axis for one in PROBLEMS} == {None, "m", "n"}
    assert {one.alignment for one in PROBLEMS} == {2, 16}
    assert len(set(PROBLEMS)) == len(PROBLEMS)
    every = (*PROBLEMS, *QUANTISED, *PACKED, *BYTES, *MX_PRODUCTS, *GROUPED, *GROUPED_BYTES, *GROUPED_WEIGHTS)
    for name in FAMILIES:
        least = 3 if isinstance(GPU_FAMILIES[name], FrameworkFamily) else 15
        assert sum(GPU_FAMILIES[name].supports(one) for one in every) >= least, name


@pytest.mark.parametrize("name", ["gemv", "tile-mma", "tile-wgmma", "naive"])
def test_the_likeliest_of_each_problem_and_some_of_the_whole_space(name: str) -> None:
    family = GPU_FAMILIES[name]
    found = sampled(name, H200, 6, 0)
    likeliest = sampled(name, H200, 0, 0)
    assert found[: len(likeliest)] == likeliest
    assert len(set(found)) == len(found) == len(likeliest) + 6
    for problem, solution in likeliest:
        assert solution == next(iter(family.solutions(problem, H200)))
    assert [family.illegal(*pair, H200) for pair in found] == [None] * len(found)
    assert found == sampled(name, H200, 6, 0)
    assert found != sampled(name, H200, 6, 1)


def test_where_small_products_have_no_likeliest_large_ones_have() -> None:
    found = sampled("stream-k", H200, 3, 0)
    assert {problem for problem, _ in found} & set(LARGE)
    assert len([problem for problem, _ in found if problem in PROBLEMS]) == 3


def test_of_tritons_only_what_shared_memory_may_hold_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer_pairs, "PROBLEMS", (from_mm(133, 75, 259, "bf16"),))
    monkeypatch.setattr(sanitizer_pairs, "BYTES", ())
    here = replace(H200, libraries={"triton": "3.6.0"})
    found = sampled("triton-gemm", here, 12, 0)
    assert len(found) == 13
    for problem, solution in found:
        assert solution.build == "3.6.0"
        assert holds(TritonConfig.of(problem, solution.parameters), here)


def test_what_does_not_compile_is_told_in_its_place(tmp_path: Path) -> None:
    def compile_(problem: GemmProblem, solution: Solution, *_: Any) -> Path:
        if solution.parameters["name"] == "bad":
            raise CompileError("no such register")
        return tmp_path / str(solution.parameters["name"])

    wanted = [(ODD, candidate(name)) for name in ("one", "bad", "two")]
    found = list(compiled(wanted, SimpleNamespace(compile=compile_), H200, None))  # type: ignore[arg-type]
    assert [pair.binary for pair in found] == [tmp_path / "one", None, tmp_path / "two"]
    assert found[1].told()["error"] == "no such register"
    assert "error" not in found[0].told()


# ---- under the sanitizer -------------------------------------------------------------------------


class _Device(NullDevice):
    """Loads candidates by name; records what launches see and every allocation's (address, size)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.allocated: list[tuple[int, int]] = []

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None) -> Any:
        name = solution.parameters["name"]
        if name == "refused":
            raise IllegalSolution("too much shared memory")

        def bind(operands: Operands, workspace: int) -> Callable[[], None]:
            def start() -> None:
                if name == "faulty":
                    raise LaunchError("it does not start")
                for operand, layout in layouts(problem).items():
                    at = getattr(operands, operand)
                    assert any(ctypes.string_at(at, layout.bytes)), f"{operand} was not drawn"
                self.seen.append((name, binary, operands, workspace))

            return start

        return SimpleNamespace(workspace_bytes=44 if name == "split" else 0, bind=bind, prepare=lambda: None)

    def allocate(self, size: int) -> GpuBuffer:
        made = super().allocate(size)
        self.allocated.append((made.address, made.size))
        return made

    def synchronize(self) -> None:
        self.seen.append("waited")


def _held(device: _Device, address: int) -> tuple[int, int]:
    """The address and the size of the allocation that an address is in."""
    return next((at, size) for at, size in device.allocated if at <= address < at + size)


def test_operands_are_allocations_of_their_own_and_no_larger(capsys: pytest.CaptureFixture[str]) -> None:
    device = _Device()
    launch([Pair(ODD, candidate("split"), Path("f"))], device)  # type: ignore[arg-type]
    first, wait, second, again = device.seen
    assert (wait, again) == ("waited", "waited")
    assert first == second
    _, binary, operands, workspace = first
    assert binary == Path("f")
    assert (operands.alpha, operands.beta) == ODD.scalars
    for name, layout in layouts(ODD).items():
        address = getattr(operands, name)
        start, size = _held(device, address)
        assert (address % 4, start + size - address) == (2, layout.bytes), name
    assert _held(device, workspace)[1] == 44
    assert len(device.allocated) == len(layouts(ODD)) + 1
    assert device.driver.memory == {}, "every allocation is freed"
    assert capsys.readouterr().out.splitlines() == [
        f"{word} {ODD.slug} {candidate('split').id}" for word in ("pair", "launched")
    ]


def test_an_aligned_problems_operands_begin_where_allocations_do() -> None:
    device = _Device()
    problem = from_mm(5, 7, 9, "bf16")
    launch([Pair(problem, candidate("one"), Path("f"))], device)  # type: ignore[arg-type]
    _, _, operands, workspace = device.seen[0]
    assert device.allocated == [
        (getattr(operands, name), layout.bytes) for name, layout in layouts(problem).items()
    ]
    assert (operands.c, workspace) == (0, 0)


def test_weights_are_packed_once_before_the_launches(capsys: pytest.CaptureFixture[str]) -> None:
    problem = QUANTISED[0]
    kernel = PackingKernel(problem)

    class Device(HostDevice):
        def load(self, problem: GemmProblem, solution: Solution, binary: Path | None) -> Any:
            return kernel

    device: Any = Device()
    launch([Pair(problem, candidate("a"), None)], device)
    assert (kernel.packs, kernel.launches) == (1, 2)
    assert not device.live
    assert "launched" in capsys.readouterr().out


def test_a_refused_pair_is_told_and_a_failing_one_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("refused", "one", "faulty", "two")
    device = _Device()
    with pytest.raises(LaunchError, match="it does not start"):
        launch([Pair(ODD, candidate(name), Path(name)) for name in names], device)  # type: ignore[arg-type]
    words = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert words == ["pair", "refused", "pair", "launched", "pair"]
    assert device.driver.memory == {}, "every allocation is freed"


def test_the_child_launches_what_the_file_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    device = _Device()

    def open_(*how: Any) -> _Device:
        opened.append(how)
        return device

    monkeypatch.setattr(sanitizer_pairs, "GpuDevice", open_)
    pairs = [
        Pair(ODD, candidate("one"), tmp_path / "f"),
        Pair(from_mm(1, 1, 1), candidate("two"), tmp_path / "g"),
    ]
    (tmp_path / "pairs").write_text(to_json(pairs, H200))
    main(["launch", "--pairs", str(tmp_path / "pairs")])
    assert opened[0][1] == H200
    assert "gemv" in opened[0][-1]
    assert [seen[:2] for seen in device.seen[::2]] == [("one", tmp_path / "f")] * 2 + [
        ("two", tmp_path / "g")
    ] * 2
    with pytest.raises(FileNotFoundError):
        launch_file(tmp_path / "none")


# ---- what the sanitizer says ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "status", "output", "verdict"),
    [
        ("memcheck", 0, LAUNCHED + CLEAN["memcheck"], "clean"),
        ("racecheck", 0, LAUNCHED + CLEAN["racecheck"], "clean"),
        ("synccheck", 0, f"refused x: y\n{LAUNCHED}{CLEAN['memcheck']}", "1 of 1 launched"),
        ("memcheck", 0, CLEAN["memcheck"], "0 of 1 launched"),
        ("memcheck", 0, "refused x: y\n" + CLEAN["memcheck"], "0 of 1 launched"),
        ("memcheck", 1, LAUNCHED + CLEAN["memcheck"], "exit status 1"),
        ("memcheck", 0, LAUNCHED, "no summary, exit status 0"),
        ("racecheck", 0, LAUNCHED + CLEAN["memcheck"], "no summary, exit status 0"),
        ("memcheck", None, LAUNCHED + CLEAN["memcheck"], "timed out"),
        ("memcheck", 9, f"{LAUNCHED}========= ERROR SUMMARY: 3 errors\n"
         "========= ERROR SUMMARY: 1 error was not printed\n", "3 errors, 0 warnings"),
        ("racecheck", 0, f"{LAUNCHED}========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)\n",
         "0 errors, 1 warnings"),
    ],
)  # fmt: skip
def test_only_a_summary_of_nothing_after_every_launch_is_clean(
    tool: str, status: int | None, output: str, verdict: str
) -> None:
    found = judged(tool, 1, status, output)
    assert found["verdict"] == verdict
    assert found["status"] == status
    assert (found["report"] == []) == (verdict == "clean")
    if "summary" in verdict:
        assert (found["errors"], found["warnings"]) == (None, None)


def test_a_report_names_the_pair_and_keeps_its_first_lines() -> None:
    invalid = ["========= Invalid __global__ read of size 16 bytes", *["=========     more"] * 100]
    lines = ["========= COMPUTE-SANITIZER", "pair a gemv-1", "launched a gemv-1", "pair b gemv-2", *invalid,
             "launched b gemv-2", "========= ERROR SUMMARY: 1 error"]  # fmt: skip
    found = judged("memcheck", 2, 9, "\n".join(lines))
    assert found["report"][:2] == ["pair b gemv-2", invalid[0]]
    assert found["report"][-1] == lines[-1]
    assert len(found["report"]) == sanitizer.REPORT_LINES + 6
    warned = judged("racecheck", 1, 0, f"{LAUNCHED}========= Warning: not checked\n{CLEAN['racecheck']}")
    assert warned["verdict"] == "clean"
    assert warned["report"] == ["pair one gemv-1", "========= Warning: not checked"]


def test_a_process_that_takes_too_long_is_ended_with_all_that_it_started() -> None:
    assert heard([sys.executable, "-c", "print('said'); raise SystemExit(9)"], 30) == (9, "said\n")
    inner = "import subprocess, sys; print('begun', flush=True); subprocess.run(['sleep', '60'])"
    begin = time.monotonic()
    assert heard([sys.executable, "-c", inner], 2.0) == (None, "begun\n")
    assert time.monotonic() - begin < 50, "sleep held the pipe"


def test_memcheck_keeps_allocations_apart() -> None:
    found = command("/bin/cs", "memcheck", Path("/tmp/p"))
    assert found[:3] == ["/bin/cs", "--tool", "memcheck"]
    assert found[found.index("--padding") + 1] == "65536"
    assert found[-6:] == [sys.executable, "-m", "benchmarks.sanitizer", "launch", "--pairs", "/tmp/p"]
    assert "--padding" not in command("/bin/cs", "racecheck", Path("/tmp/p"))


#: Launches nothing, and finds a hazard in what racecheck sees of "naive".
_SCRIPT = """#!{python}
import json, sys
if "--version" in sys.argv:
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.3.1.0 (build 1)")
    raise SystemExit
tool, path = sys.argv[sys.argv.index("--tool") + 1], sys.argv[-1]
for row in json.load(open(path))["pairs"]:
    print("launched", row["solution"]["id"])
if tool == "racecheck":
    bad = int(path.endswith("naive"))
    print(f"========= RACECHECK SUMMARY: {{bad}} hazards displayed ({{bad}} errors, 0 warnings)")
    raise SystemExit(9 * bad)
print("========= ERROR SUMMARY: 0 errors")
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that programs are looked for in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sanitizer, "ELSEWHERE", str(folder / "toolkit" / "compute-sanitizer"))
    return folder


def _install(folder: Path) -> None:
    script = folder / "compute-sanitizer"
    script.write_text(_SCRIPT.format(python=sys.executable))
    script.chmod(0o755)


def test_without_a_sanitizer_nothing_counts_as_checked(path: Path) -> None:
    with pytest.raises(SystemExit, match="compute-sanitizer is not installed"):
        main([])
    (path / "toolkit").mkdir()
    _install(path / "toolkit")
    assert located() == (str(path / "toolkit" / "compute-sanitizer"), "2025.3.1.0")


def test_a_row_a_family_and_exit_status_1_for_a_hazard(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(path)
    here = replace(gpu(0), environment=replace(H200, libraries={"nvrtc": "13.0"}))
    monkeypatch.setattr(sanitizer, "machine", lambda *_: [here])

    def ready(wanted: list[tuple[GemmProblem, Solution]], *_: Any) -> list[Pair]:
        return [Pair(problem, solution, tmp_path / "kernels") for problem, solution in wanted]

    monkeypatch.setattr(sanitizer, "compiled", ready)
    options = ["--tools", "memcheck,racecheck", "--sample", "2", "--jobs", "2", "--output", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main(["--families", "naive,coalesced,triton-gemm", *options])
    assert ended.value.code == 1
    document = json.loads((tmp_path / "cuda-sanitizer.json").read_text())
    assert document["version"] == "2025.3.1.0"
    assert document["unclean"] == [
        "naive racecheck: 1 errors, 0 warnings",
        "triton-gemm memcheck: nothing to launch", "triton-gemm racecheck: nothing to launch",
    ]  # fmt: skip
    naive, coalesced, triton = document["rows"]
    assert [pair["solution"] for pair in naive["pairs"]] == [
        one.id for _, one in sampled("naive", H200, 2, 0)
    ]
    assert naive["tools"]["memcheck"]["launched"] == naive["compiled"] == len(naive["pairs"])
    assert (naive["tools"]["racecheck"]["errors"], naive["tools"]["racecheck"]["status"]) == (1, 9)
    assert coalesced["tools"]["racecheck"]["verdict"] == "clean"
    assert "Triton" in triton["missing"]
    main(["--families", "coalesced", *options])
    assert json.loads((tmp_path / "cuda-sanitizer.json").read_text())["unclean"] == []


def test_unknown_names_and_sizes_are_refused() -> None:
    assert parser().parse_args([]).families == list(FAMILIES)
    assert parser().parse_args(["--tools", "synccheck,memcheck,synccheck"]).tools == ["synccheck", "memcheck"]
    for wrong in (["--families", "cublaslt"], ["--tools", "initcheck"], ["--jobs", "0"], ["--sample", "-1"],
                  ["launch"], ["check", "--pairs", "f"]):  # fmt: skip
        with pytest.raises(SystemExit, match="2"):
            main(wrong)
