"""The CUDA benchmarks' own plumbing, on GPUs that are only numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.cuda.cublaslt_algorithms import MatmulAlgoConfig
from backends.problem import from_linear
from backends.registry import FoundDevice
from benchmarks import cuda, cuda_tuned
from benchmarks.cuda import Lists, lists_document, parser
from benchmarks.cuda_jobs import Jobs, Partial, spread
from benchmarks.cuda_trap import problems, variations
from benchmarks.cuda_tuned import Shape, read_shapes, row, screening_figures, tune
from benchmarks.cuda_types import combinations
from tests.benchmarks.gpus import SPEEDS, GpuRunner, gpu
from tuners.ceilings import Ceilings
from tuners.prior import known_of
from tuners.selftest.calls import host_seconds
from tuners.strategies import PriorKnowledge

SHAPES = [Shape("decode_m1", f"layer{n}", 1, n, 64, True) for n in (64, 128)]
SHAPES.append(Shape("square", "square", 256, 256, 256, False))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path / "cache"))


def _lists(
    folder: Path, start: Callable[[FoundDevice], GpuRunner] = GpuRunner, count: int = 2, **more: float
) -> Lists:
    found = [gpu(index) for index in range(count)]
    return Lists(found, SHAPES, "bf16", 1.0, Partial(folder / "part.jsonl"), start=start, **more)  # type: ignore[arg-type]


# ---- a row ---------------------------------------------------------------------------------------


def test_a_win_is_the_baseline_over_the_answer() -> None:
    tuned = tune(GpuRunner(gpu(0), wrong=["slow"]), from_linear(16, 64, 64, "bf16"), 1.0)
    found = row(tuned, Ceilings(4e12, 3e12, {"bf16": 1e15}))
    assert (found["verdict"], found["family"], found["baseline"]) == ("WIN", "cublaslt", "torch 1")
    assert found["ratio"] == pytest.approx(2.0, rel=0.05)
    assert found["interval"][0] <= found["ratio"] <= found["interval"][1]
    assert found["raw_ratio"] == found["ratio"]
    assert found["heuristic_ratio"] == pytest.approx(1.8, rel=0.05)
    assert found["torch_us"] == pytest.approx(20, rel=0.05)
    assert found["by_status"] == {"ok": 3, "wrong_result": 1}
    assert found["by_family"] == {"cublaslt": 2, "cublaslt-heuristic": 1, "torch": 1}
    assert found["configurations"] == 3
    assert found["binds"] == "memory"
    assert 0 < found["share"] < 1
    assert found["proof"] == {"seeds": 5, "cases": ["exact"]}
    assert found["condition"] == {"watts": 500}
    assert found["notes"] == ["a note"]
    json.dumps(found, allow_nan=False)


def test_a_search_is_told_what_the_service_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped portfolio, and no history."""
    problem, runner = from_linear(16, 64, 64, "bf16"), GpuRunner(gpu(0))
    asked: list[tuple[Any, ...]] = []

    def known(*given: Any) -> tuple[PriorKnowledge, list[str]]:
        asked.append(given)
        return known_of(*given)

    monkeypatch.setattr(cuda_tuned, "known_of", known)
    tune(runner, problem, 1.0)
    assert asked == [(problem, runner, ())]


def test_where_nothing_is_faster_torch_is_the_answer() -> None:
    speeds = {"torch": 1.0, "heuristic": 1.3, "slower": 1.2}
    found = row(tune(GpuRunner(gpu(0), speeds), from_linear(16, 64, 64, "bf16"), 1.0))
    assert (found["verdict"], found["family"], found["ratio"]) == ("LOSS", "torch", 1.0)
    assert found["interval"] is None
    assert found["raw_ratio"] == pytest.approx(1 / 1.2, rel=0.05)
    assert found["heuristic_ratio"] == pytest.approx(1.3, rel=0.05)
    assert found["best_us"] == found["torch_us"]
    assert found["share"] is None
    json.dumps(found, allow_nan=False)


def test_only_what_was_timed_early_enough_is_counted() -> None:
    tuned = tune(GpuRunner(gpu(0)), from_linear(16, 64, 64, "bf16"), 1.0)
    stamps = sorted(stamp for stamp, _ in tuned.screened)
    assert screening_figures(tuned, stamps[-1])["configurations"] == len(SPEEDS)
    assert screening_figures(tuned, stamps[0] / 2)["configurations"] == 0


# ---- jobs ----------------------------------------------------------------------------------------


def test_a_job_of_a_failed_device_goes_to_another() -> None:
    done: list[tuple[int, str]] = []
    spread(
        [gpu(0), gpu(1)], Jobs(["a", "b", "c"]),
        lambda runner, name: (runner.open(None), done.append((runner.device.index, name))),  # type: ignore[func-returns-value, arg-type]
        lambda device, name, error: pytest.fail(f"{name}: {error}"),
        lambda device: GpuRunner(device, dies=device.index == 0),
    )  # fmt: skip
    assert sorted(done) == [(1, "a"), (1, "b"), (1, "c")]


def test_what_no_device_runs_is_left() -> None:
    failed: list[str] = []
    jobs = Jobs(["a", "b"])
    spread(
        [gpu(0)], jobs, lambda runner, name: runner.open(None),
        lambda device, name, error: failed.append(name), lambda device: GpuRunner(device, dies=True),
    )  # fmt: skip
    assert (failed, sorted(jobs.left)) == ([], ["a", "b"])


def test_a_job_that_two_devices_failed_on_is_told_of() -> None:
    failed: list[str] = []
    spread(
        [gpu(0), gpu(1)], Jobs(["a"]), lambda runner, name: runner.open(None),
        lambda device, name, error: failed.append(name), lambda device: GpuRunner(device, dies=True),
    )  # fmt: skip
    assert failed == ["a"]


# ---- lists ---------------------------------------------------------------------------------------


def test_every_shape_gets_a_row(tmp_path: Path) -> None:
    run = _lists(tmp_path)
    rows = run.run()
    assert [one["name"] for one in rows] == [shape.name for shape in SHAPES]
    environments, figures = lists_document(run, rows)
    assert figures["complete"]
    assert figures["lists"]["decode_m1"]["shapes"] == 2
    assert figures["serving"]["geometric_mean"] == pytest.approx(2.0, rel=0.05)
    assert figures["all"]["verdicts"] == {"WIN": 3}
    assert {one["uuid"] for one in figures["gpus"]} == {env.uuid for env in environments}
    assert figures["gpus"][0]["ceilings"]["flops_per_second"] == {"bf16": 1e15}


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    _lists(tmp_path).run()
    part = tmp_path / "part.jsonl"
    kept = [line for line in part.read_text().splitlines() if '"square"' not in line]
    part.write_text("\n".join([*kept, '{"kind": "row", "li']) + "\n")
    runners: list[GpuRunner] = []

    def start(device: FoundDevice) -> GpuRunner:
        runners.append(GpuRunner(device))
        return runners[-1]

    assert len(_lists(tmp_path, start).run()) == 3
    assert sum(bool(runner.calls) for runner in runners) == 1  # the shape that was missing


def test_a_run_over_one_list_keeps_the_others(tmp_path: Path) -> None:
    _lists(tmp_path).run()
    partial = Partial(tmp_path / "copied.jsonl", resumed=tmp_path / "part.jsonl")
    run = Lists([gpu(0)], SHAPES[2:], "bf16", 1.0, partial, published=SHAPES, start=GpuRunner)
    figures = lists_document(run, run.run())[1]
    assert (figures["complete"], list(figures["lists"])) == (True, ["decode_m1", "square"])


def test_an_error_is_a_row_and_is_tried_again(tmp_path: Path) -> None:
    rows = _lists(tmp_path, lambda device: GpuRunner(device, wrong=["torch", "heuristic"])).run()
    assert all("no default to compare with" in one["error"] for one in rows)
    run = _lists(tmp_path)
    assert lists_document(run, rows)[1]["errors"] == 3
    assert not any("error" in one for one in run.run())


def test_a_limit_ends_it_with_the_rows_so_far(tmp_path: Path) -> None:
    run = _lists(tmp_path, limit_seconds=0.001)
    rows = run.run()
    environments, figures = lists_document(run, rows)
    assert (rows, figures["complete"], len(environments)) == ([], False, 2)


def test_rows_that_are_kept_make_a_document_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*asked: object) -> list[FoundDevice]:
        raise AssertionError("no device is asked for")

    _lists(tmp_path).run()
    monkeypatch.setattr(cuda, "machine", nobody)
    monkeypatch.setattr(cuda, "read_shapes", lambda *asked: SHAPES)
    given = ["lists", "--kept", "--any-commit", "--seconds", "1", "--output", str(tmp_path)]
    cuda.main([*given, "--resume", str(tmp_path / "part.jsonl")])
    figures = json.loads((tmp_path / "cuda-lists-bf16.json").read_text())
    assert (figures["complete"], figures["shapes_done"]) == (True, 3)
    with pytest.raises(SystemExit, match="no rows"):
        cuda.main([*given[:-1], str(tmp_path / "elsewhere")])


def test_the_published_lists_are_read() -> None:
    found = read_shapes(lists=["decode_m1", "square"])
    assert {shape.list for shape in found} == {"decode_m1", "square"}
    linear = next(shape for shape in found if shape.trans_b)
    assert linear.problem("bf16") == from_linear(linear.m, linear.n, linear.k, "bf16")
    with pytest.raises(SystemExit, match="no list 'nothing'"):
        read_shapes(lists=["nothing"])


# ---- the rest ------------------------------------------------------------------------------------


def test_every_combination_is_a_problem() -> None:
    problems = [make() for make in combinations().values()]
    assert len({problem.id for problem in problems}) == len(problems)


def test_every_split_and_scheme_of_a_configuration_is_tried_once() -> None:
    made = list(variations(MatmulAlgoConfig(66, 10, 35, cluster_shape_id=3)))
    assert len(set(made)) == len(made) == 1 + 31 * 3
    assert {(one.algo_id, one.tile_id, one.stages_id, one.cluster_shape_id) for one in made} == {
        (66, 10, 35, 3)
    }
    assert all((one.splitk_num == 1) == (one.reduction_scheme == 0) for one in made)


def test_problems_of_the_trap_have_aligned_leading_dimensions() -> None:
    found = list(problems())
    assert {problem.k % 2 for problem in found} == {0, 1}
    assert all(problem.lda % 8 == problem.ldb % 8 == 0 for problem in found)


def test_host_seconds_are_of_the_calls_alone() -> None:
    calls: list[str] = []
    found = host_seconds(lambda: calls.append("launch"), lambda: calls.append("wait"), 20, 5, 3)
    assert len(found) == 3
    assert calls.count("launch") == 5 + 3 * 20
    assert all(0 < seconds < 1e-2 for seconds in found)


def test_the_commands_have_their_budgets() -> None:
    options = parser().parse_args(["lists", "--lists", "square", "--limit-minutes", "9"])
    assert (options.seconds, options.dtype, options.limit_minutes) == (6.0, "bf16", 9.0)
    assert parser().parse_args(["screening"]).seconds == 3.0
    assert parser().parse_args(["repeat", "--only", "1x2x3"]).only == [(1, 2, 3)]
