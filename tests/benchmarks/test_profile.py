"""What Nsight Compute prints, and what becomes of it: no GPU, no ncu."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.problem import from_linear
from backends.solution import Solution
from benchmarks import profile, tables_cuda
from benchmarks.cuda_tuned import Shape
from tests.benchmarks.gpus import gpu

TABLE = """==PROF== Connected to process 1
launched {launched}
"ID","Kernel Name","Block Size","Grid Size","Section Name","Metric Name","Metric Unit","Metric Value"
"0","cold","(32, 1, 1)","(7, 1, 1)","GPU Speed Of Light Throughput","Duration","ns","99,000"
"1","gemm(Args)","(256, 1, 1)","(512, 1, 1)","GPU Speed Of Light Throughput","Duration","ns","9,500"
"1","gemm(Args)","(256, 1, 1)","(512, 1, 1)","GPU Speed Of Light Throughput","DRAM Throughput","%","86.5"
"1","gemm(Args)","(256, 1, 1)","(512, 1, 1)","Launch Statistics","Function Cache","","CachePreferNone"
"1","gemm(Args)","(256, 1, 1)","(512, 1, 1)","Occupancy","","",""
==PROF== Disconnected
"""
SHAPE = Shape("decode_m1", "layer", 1, 64, 64, True)
CALL = Solution("torch", 1, {"call": "mm"})
WINNER = Solution("gemv", 2, {"rows": 1}, None, 0)


def test_the_table_is_read_among_other_lines() -> None:
    first, second = profile.kernels(TABLE)
    assert first["kernel"] == "cold"
    assert second["block"] == "(256, 1, 1)"
    assert second["figures"]["GPU Speed Of Light Throughput: Duration"] == [9500.0, "ns"]
    assert second["figures"]["Launch Statistics: Function Cache"] == ["CachePreferNone", ""]
    assert len(second["figures"]) == 3
    with pytest.raises(ValueError, match="no table"):
        profile.kernels("==ERROR== no kernels were profiled")


def test_a_winner_is_known_by_its_id() -> None:
    row = {"name": "layer", "family": "gemv", "parameters": {"rows": 1}, "build": None, "workspace_bytes": 0}
    assert profile.winner({**row, "winner": WINNER.id}) == WINNER
    with pytest.raises(ValueError, match="no version of gemv gives the id gemv-other"):
        profile.winner({**row, "winner": "gemv-other"})


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ncu answers, and what it was asked."""
    answers: dict[str, Any] = {"status": 0, "output": TABLE, "asked": []}
    compiling = SimpleNamespace(compile=lambda *given: None)
    known = SimpleNamespace(
        families=lambda: {"torch": compiling, "gemv": compiling},
        baselines=lambda problem, environment: [SimpleNamespace(solution=CALL)],
    )

    def heard(arguments: list[str], timeout: float) -> tuple[int | None, str]:
        pairs = json.loads(Path(arguments[-1]).read_text())["pairs"]
        answers["asked"].append((arguments, pairs))
        problem, solution = from_linear(1, 64, 64, "bf16"), Solution.from_dict(pairs[0]["solution"])
        return answers["status"], answers["output"].replace("{launched}", f"{problem.slug} {solution.id}")

    monkeypatch.setattr(profile, "backend", lambda name: known)
    monkeypatch.setattr(profile, "heard", heard)
    return answers


def _rows() -> list[dict[str, Any]]:
    tuned = {"name": "layer", "winner": WINNER.id, "family": "gemv", "parameters": {"rows": 1}, "build": None}
    return profile.rows("ncu", gpu(0), [SHAPE], {"layer": {**tuned, "workspace_bytes": 0}}, 9.0)


def test_the_default_and_the_winner_are_profiled_each_by_itself(said: dict[str, Any]) -> None:
    default, tuned = _rows()
    assert (default["which"], default["family"], tuned["which"], tuned["family"]) == (
        "default", "torch", "tuned", "gemv",
    )  # fmt: skip
    assert [one["kernel"] for one in tuned["kernels"]] == ["gemm(Args)"], "of two launches the second"
    (arguments, pairs), _ = said["asked"]
    assert arguments[0] == "ncu"
    assert arguments[-3:-1] == ["launch", "--pairs"]
    assert "--section" in arguments
    assert [one["binary"] for one in pairs] == [None]


LOW_BIT = {"kind": "w4a16_prepacked", "m": 8, "n": 64, "k": 128, "winner": WINNER.id, "family": "gemv",
           "parameters": {"rows": 1}, "build": None, "workspace_bytes": 0}  # fmt: skip


@pytest.mark.parametrize("packing", ["pack", "pack(Args)"])
def test_low_bit_winners_are_profiled_alone_and_packing_is_no_launch_of_theirs(
    said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str
) -> None:
    (tmp_path / "lowbit-x.json").write_text(json.dumps({"rows": [LOW_BIT]}))
    known, tuned = profile.winners([tmp_path / "lowbit-x.json", tmp_path / "none.json"])
    shape = known["w4a16_prepacked/64x128/m8"]
    assert shape.problem("bf16").prepacked
    line = '"0","cold","(32, 1, 1)","(7, 1, 1)","GPU Speed Of Light Throughput","Duration","ns","99,000"\n'
    assert line in said["output"]
    pack = line.replace("cold", packing)
    said["output"] = said["output"].replace(line, pack + line.replace('"0","cold"', '"2","gemm"'))
    monkeypatch.setattr(
        profile, "to_json", lambda pairs, environment: json.dumps({"pairs": [{"solution": WINNER.to_dict()}]})
    )
    said["output"] = said["output"].replace("{launched}", f"{shape.problem('').slug} {WINNER.id}")
    (row,) = profile.rows("ncu", gpu(0), [shape], tuned, 9.0)
    assert (row["name"], row["which"]) == ("w4a16_prepacked/64x128/m8", "tuned")
    assert [one["kernel"] for one in row["kernels"]] == ["gemm(Args)"], (
        "of the GEMM's two launches the second"
    )
    ((arguments, _),) = said["asked"]
    assert {"WarpStateStats", "SchedulerStats"} <= set(arguments)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"status": None}, "timed out after 9 s"),
        ({"output": "==ERROR== ERR_NVGPUCTRPERM", "status": 1}, "ncu printed no table, exit status 1"),
        ({"output": TABLE.replace("launched ", "refused ")}, "it was not launched"),
    ],
)
def test_what_went_wrong_is_told(said: dict[str, Any], changed: dict[str, Any], words: str) -> None:
    said.update(changed)
    assert {row["error"] for row in _rows()} == {words}
    assert not any("kernels" in row for row in _rows())


def test_no_ncu_and_no_such_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.profile.shutil.which", lambda name: None)
    with pytest.raises(SystemExit, match=r"ncu .* is not installed"):
        profile.located()
    with pytest.raises(SystemExit, match="no shape 'nothing' in the lists"):
        profile.main(["nothing"])


def test_a_line_a_kernel(said: dict[str, Any]) -> None:
    rows = [*_rows(), {"m": 1, "n": 2, "k": 3, "which": "tuned", "family": "gemv", "error": "it | was not"}]
    environment = gpu(0).environment.to_dict()
    document = {
        "rows": rows,
        "environment": environment,
        "command": "c",
        "commit": "d",
        "measured_at": "2026-11-22",
    }
    page = tables_cuda.profile(document)
    assert "## What the hardware does, by Nsight Compute\n" in page
    libraries = tables_cuda.profile({**document, "command": "c --lists cuda-lists-bf16-libraries.json"})
    assert "Compute: libraries' winners\n" in libraries
    inside = tables_cuda.profile({**document, "command": "c --lists benchmarks/results/cuda-inside.json"})
    assert "Compute: the even products inside odd ones\n" in inside
    assert "| 1 x 64 x 64 | tuned: gemv | `gemm` | 9.50 | 86.50 | - | - | - | - | - |" in page
    assert "| 1 x 2 x 3 | tuned: gemv | it / was not | - |" in page


# ---- rows that are kept --------------------------------------------------------------------------


def _kept(folder: Path, *rows: dict[str, Any], **more: Any) -> None:
    environment = {**gpu(1).environment.to_dict(), "driver": "0", **more}
    held = {"commit": "1" * 40, "measured_at": "2026-01-01T00:00:00+00:00", "environment": environment}
    folder.mkdir(exist_ok=True)
    (folder / "cuda-profile.json").write_text(json.dumps({**held, "rows": rows}))


def _row(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "m": 1,
        "n": 64,
        "k": 64,
        "which": "default",
        "family": "torch",
        "kernels": [],
        **more,
    }


@pytest.fixture
def measured(said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Profiles the shape by its name with these options; the document that comes of it."""
    shapes = [Shape("square", name, 1, 64, 64, True) for name in ("first", "layer", "last")]
    monkeypatch.setattr(profile, "read_shapes", lambda: shapes)
    monkeypatch.setattr(profile, "located", lambda: "ncu")
    monkeypatch.setattr(profile, "machine", lambda backend, most: [gpu(0)])
    monkeypatch.setattr(profile, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("GEMMTUNE_COMMIT", "2" * 40)
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(tmp_path / "cache"))

    def run(*options: str) -> dict[str, Any]:
        own = ["--output", str(tmp_path / "out"), "--lists", str(tmp_path / "cuda-lists-bf16.json")]
        profile.main(["layer", *own, *options])
        document: dict[str, Any] = json.loads((tmp_path / "out" / "cuda-profile.json").read_text())
        return document

    return run


def test_rows_of_other_shapes_are_kept_with_their_commit(measured: Any, tmp_path: Path) -> None:
    older = {"commit": "0" * 40, "measured_at": "2025-01-01T00:00:00+00:00"}
    _kept(tmp_path / "out", _row("last"), _row("gone"), _row("layer"), _row("first", **older))
    document = measured("--keep")
    assert [row["name"] for row in document["rows"]] == ["first", "layer", "last", "gone"], "as in the lists"
    first, layer, last, _ = document["rows"]
    assert (first["commit"], first["measured_at"]) == (older["commit"], older["measured_at"])
    assert (last["commit"], last["measured_at"]) == ("1" * 40, "2026-01-01T00:00:00+00:00")
    assert "commit" not in layer, "it is the document's"
    assert layer["kernels"], "measured, and no longer what was there"
    assert document["commits"] == ["0" * 40, "1" * 40, "2" * 40]
    assert document["commit"] == "2" * 40
    assert [one["uuid"] for one in document["environments"]] == ["GPU-0", "GPU-1"], "this one first"

    page = tables_cuda.profile(
        {**document, "rows": [{**row, "kernels": layer["kernels"]} for row in document["rows"]]}
    )
    assert page.count(f"| {'2' * 12} |") == 1
    assert page.count(f"| {'1' * 12} |") == 2
    assert page.endswith(f"\n\nRows are of the commits {'0' * 12}, {'1' * 12}, {'2' * 12}.\n")

    again = measured("--keep")
    assert [row["name"] for row in again["rows"]] == ["first", "layer", "last", "gone"]
    assert again["commits"] == document["commits"]


def test_without_the_option_nothing_is_kept(measured: Any, tmp_path: Path) -> None:
    _kept(tmp_path / "out", _row("last"))
    document = measured()
    assert [row["name"] for row in document["rows"]] == ["layer"]
    assert document["commits"] == ["2" * 40]
    assert "environments" not in document
    assert "commit |" not in tables_cuda.profile(document)
    assert "Rows are of" not in tables_cuda.profile(document)


def test_the_published_document_is_kept_where_the_folder_has_none(measured: Any, tmp_path: Path) -> None:
    assert [row["name"] for row in measured("--keep")["rows"]] == ["layer"], "there is none at all"
    (tmp_path / "out" / "cuda-profile.json").unlink()
    _kept(tmp_path / "results", _row("last"))
    assert [row["name"] for row in measured("--keep")["rows"]] == ["layer", "last"]


def test_rows_of_another_kind_of_gpu_are_not_kept(
    measured: Any, said: dict[str, Any], tmp_path: Path
) -> None:
    _kept(tmp_path / "out", _row("last"), product="Another")
    with pytest.raises(SystemExit, match="is of Another, not Imagined: its rows cannot be kept"):
        measured("--keep")
    assert said["asked"] == [], "before anything is measured"
