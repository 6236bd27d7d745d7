"""gemmtune judge: kernels of the documentation on this CPU, what is stored of them, and bad input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.cpu.blas import OpenBlas
from backends.problem import from_mm
from db import provenance, queries, sessions
from db.engine import open_engine, reading, writing
from service import cli
from service.board_answers import Board
from service.settings import Settings
from service.startup import open_database
from tests.db.samples import CONTENT, store_session
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits
from tests.tuners.judge.kernels import CHEATS, HEAD
from tuners.policy import MeasurementPolicy

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "judge"
PROBLEM = from_mm(64, 48, 80, "fp32")
SHAPES = '{"m":64,"n":48,"k":80,"dtype":"fp32"}\n'


class Here:
    """The command in this process, with a database and a cache of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._patch, self._capsys = folder, patch, capsys
        (folder / "shapes.jsonl").write_text(SHAPES)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        self._patch.setattr(sys, "argv", ["gemmtune", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self._capsys.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0, out, err

    def judge(self, kernel: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
        code, out, err = self.run(
            "judge", str(kernel), "--shapes", str(self.folder / "shapes.jsonl"), "--device", "cpu",
            "--seconds", "0.2", "--cache", "warm", "--json", *arguments,
        )  # fmt: skip
        assert out, err
        found: dict[str, Any] = json.loads(out)
        return code, found

    def written(self, text: str) -> Path:
        path = self.folder / "mine.py"
        path.write_text(HEAD + text)
        return path


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: BinaryCache) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path / 'gemmtune.sqlite'}"
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", url)
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(cache.root.parent))
    open_database(Settings()).dispose()
    opened = open_engine(url)
    yield opened
    opened.dispose()


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engine: Engine
) -> Here:
    return Here(tmp_path, monkeypatch, capsys)


@pytest.mark.torch
def test_a_right_triton_kernel_is_judged_in_the_interpreter(here: Here, engine: Engine) -> None:
    (here.folder / "shapes.jsonl").write_text('{"m":33,"n":17,"k":20,"dtype":"fp32"}\n')
    code, answer = here.judge(EXAMPLES / "triton_gemm.py")
    (result,) = answer["results"]
    assert (code, result["status"], result["cheats"]) == (0, "right", [])
    assert result["evidence"]["proof"]["seeds"] == 5
    assert "ragged, own scalars" in result["evidence"]["cases"]
    assert result["default"]["judgement"] == "LOSS"  # an interpreter is no compiler
    assert result["deterministic"] is True
    with reading(engine) as connection:
        (listed,) = provenance.provenances(connection, 0, 10)
        assert (listed["kind"], listed["source"]) == ("judged", "judged:user.triton_gemm")
        assert (listed["sha256"], listed["sessions"]) == (answer["sha256"], 1)


def test_a_cpp_kernel_races_the_default_and_the_best_known(here: Here, engine: Engine) -> None:
    (environment,) = CpuBackend().probe().devices
    *_, best = OpenBlas().solutions(PROBLEM, environment)  # no default, and nothing to compile
    policy = MeasurementPolicy(cache="warm")
    begun = sessions.SessionStart(PROBLEM, environment, policy.id, policy.to_dict(), CONTENT)
    with writing(engine) as connection:
        store_session(connection, begun, best)
    code, answer = here.judge(EXAMPLES / "rows.cpp")
    (result,) = answer["results"]
    assert (code, result["status"]) == (0, "right")
    assert result["best"]["name"] == "openblas"
    assert result["best"]["solution"] == best.id
    assert result["best"]["speedup"]["mid"] > 0
    assert result["default"]["name"] == "numpy"
    with reading(engine) as connection:  # the best is what it was
        found = queries.best_documents(connection, [PROBLEM.id], str(environment.device_class), policy.id)
        assert json.loads(found[PROBLEM.id])["solution"]["id"] == best.id
    on_the_board(result, policy.id)


def on_the_board(result: dict[str, Any], policy: str) -> None:
    """The leaderboard has the kernel's own verdict where it is asked for, and the winner's else."""
    with serving(Settings()) as client:
        asked = {"device": "cpu", "policy": policy}
        board = fits(
            Board, client.get("/v1/leaderboard", params={**asked, "judged": "user.rows", "by": "family"})
        )
        (item,) = board["items"]
        verdict = result["default"]
        assert board["judged"] == item["family"] == "user.rows"
        assert (item["judgement"], item["speedup"]) == (verdict["judgement"], verdict["speedup"])
        assert board["problems"][verdict["judgement"].lower()] == board["problems"]["all"] == 1
        assert board["geometric_mean"] == pytest.approx(verdict["speedup"]["mid"])
        assert item["winner_id"].startswith("user.rows-source_")
        assert [group["name"] for group in board["groups"]] == ["user.rows"]
        (other,) = fits(Board, client.get("/v1/leaderboard", params=asked))["items"]
        assert other["family"] == "openblas"
        gone = fault_of(client.get("/v1/leaderboard", params={**asked, "judged": "user.none"}), 404)
        assert gone["detail"] == "there is no judged kernel 'user.none'"
        both = client.get("/v1/leaderboard", params={**asked, "judged": "user.rows", "until": "2026-01-01"})
        assert fault_of(both, 422)["detail"] == "judged: it cannot be combined with environment or until"


def test_a_cheat_is_exit_code_1_and_its_name_is_told(here: Here) -> None:
    code, out, err = here.run(
        "judge", str(here.written(CHEATS["caches by address"][0])), "--device", "cpu", "--shapes",
        str(here.folder / "shapes.jsonl"),
    )  # fmt: skip
    assert code == 1, err
    assert "64x48x80 fp32 NN: wrong result: it returned the result of an earlier launch" in out
    assert "1 wrong" in out


def test_a_problem_that_the_kernel_does_not_take_is_told(here: Here) -> None:
    assert here.run("judge", str(EXAMPLES / "rows.cpp"), "--shapes", "llama3", "--device", "cpu")[0] == 2
    with (here.folder / "shapes.jsonl").open("a") as file:
        file.write('{"m":8,"n":8,"k":8,"dtype":"bf16"}\n')
    code, answer = here.judge(EXAMPLES / "rows.cpp")
    assert code == 3
    assert [one["status"] for one in answer["results"]] == ["right", "unsupported"]
    assert answer["results"][1]["text"] == "it takes fp32 -> fp32, not bf16 -> bf16"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent.py", "--shapes", "llama3"), "cannot read absent.py"),
        (("rows.cpp", "--shapes", "llama9"), "'llama9' is neither a file nor one of llama3"),
        (("rows.cpp", "--shapes", "llama3", "--server", "http://h:1"), "a service takes no code"),
        (("rows.cpp", "--shapes", "llama3", "--timeout", "0"), "--timeout must be above 0"),
        (("rows.cpp", "--shapes", "llama3", "--family-of", "conv"), "'conv' is unknown; known: gemm"),
        (("rows.cpp", "--shapes", "llama3", "--tokens", "some"), "--tokens"),
        (("rows.cpp", "--shapes", "llama3", "--effort", "all"), "effort 'all' is unknown"),
        (("rows.cpp", "--shapes", "llama3", "--device", "tpu"), "no device matches 'tpu'"),
        (("tile.cu", "--shapes", "llama3", "--device", "cpu"), "which no CPU runs"),
    ],
)
def test_bad_input_is_one_clear_line(
    here: Here, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(EXAMPLES)
    code, _, err = here.run("judge", *arguments)
    assert words in " ".join(err.split())
    assert code == 2
