"""gemmtune leaderboard, on a database and through a service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from db.engine import open_engine, writing
from service.cli import app
from service.report import winner_text
from service.settings import Settings
from tests.db.samples import BASELINE, CLASS, candidate, problem, start, store_session
from tests.service.http.serving import serving
from tests.service.test_worth import listed

Run = Callable[..., Result]
CALLED, FASTEST, STAYS = problem(1), problem(2), problem(3)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> str:
    """A problem that is called often, one that is fastest, one whose default stays."""
    path = tmp_path_factory.mktemp("filled") / "gemmtune.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    made = f"sqlite:///{path}"
    engine = open_engine(made)
    with writing(engine) as connection:
        store_session(connection, start(CALLED), candidate(4), 2e-6)
        store_session(connection, start(FASTEST), candidate(8), 1e-6)
        store_session(connection, start(STAYS), BASELINE)
        listed(connection, "app.csv", {CALLED: 100, STAYS: 7})
    engine.dispose()
    return made


@pytest.fixture(scope="module")
def address(url: str) -> Iterator[str]:
    """A service on the database."""
    with serving(Settings(database_url=url)) as client:
        yield str(client.base_url)


@pytest.fixture(params=["database", "service"])
def run(url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command on the database, or through a service on it."""
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", url)
    monkeypatch.delenv("GEMMTUNE_SERVER", raising=False)
    if request.param == "service":
        monkeypatch.setenv("GEMMTUNE_SERVER", request.getfixturevalue("address"))

    def command(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["leaderboard", *arguments])

    return command


def board(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_saves_most_of_all_calls_comes_first(run: Run) -> None:
    found = board(run("--json"))
    assert (found["device_class"], found["sort"]) == (CLASS, "saved")
    assert [row["problem_id"] for row in found["items"]] == [CALLED.id, FASTEST.id, STAYS.id]
    assert found["problems"] == {"all": 3, "win": 2, "tie": 1, "loss": 0}
    assert found["geometric_mean"] == pytest.approx(9 ** (1 / 3))
    first = found["items"][0]
    assert (first["calls"], first["judgement"], first["family"]) == (100, "WIN", "packed")
    assert first["saved_seconds"] == pytest.approx(100 * 3e-6 * (1 - 1 / 3))
    assert found["items"][1]["calls"] is None
    assert found["items"][2]["saved_seconds"] == 0


def test_a_board_is_ordered_filtered_and_cut(run: Run, tmp_path: Path) -> None:
    assert [row["problem_id"] for row in board(run("--sort", "seconds", "--json"))["items"]][-1] == CALLED.id
    cut = board(run("--limit", "1", "--json"))
    assert (len(cut["items"]), cut["problems"]["all"]) == (1, 3)
    ties = board(run("--judgement", "tie", "--json"))
    assert [row["problem_id"] for row in ties["items"]] == [STAYS.id]
    assert board(run("--family", "nobody", "--json"))["items"] == []
    assert board(run("--dtype", "fp64", "--json"))["geometric_mean"] is None
    path = tmp_path / "problems.jsonl"
    path.write_text(
        json.dumps({"m": 2, "n": 64, "k": 128, "dtype": "bf16", "trans_b": True, "count": 9}) + "\n"
    )
    of_file = board(run(str(path), "--json"))
    assert [(row["problem_id"], row["calls"]) for row in of_file["items"]] == [(FASTEST.id, 9)]


def test_the_table_says_default_best_ratio_and_verdict(run: Run) -> None:
    said = " ".join(run().stdout.split())
    for words in (
        "1x64x128 bf16 NT",
        "3 us",
        "2 us",
        "3.00x",
        "WIN",
        "3 problems on",
        "2 WIN, 1 TIE, 0 LOSS",
    ):
        assert words in said
    assert "nothing was measured" in run("--dtype", "fp64").stdout
    assert "must be one of" in str(run("--sort", "luck").exception)
    assert "must be one of" in str(run("--judgement", "DRAW").exception)


@pytest.mark.parametrize(
    ("solution_id", "text"),
    [
        ("openblas-routine_matmul-threads_2-81ff3702cb99", "openblas, 2 threads"),
        ("skinny-ring-rows_16-slots_4-f80a40c2a661", "skinny-ring"),
        ("torch-0089969201fd", "torch"),
        ("openblas_upcast-threads_1-c6265a4dd06c", "openblas_upcast, 1 threads"),
        ("user.my_kernel-rows_2-aaaa", "user.my_kernel"),
    ],
)
def test_a_winner_is_named_by_its_whole_family(solution_id: str, text: str) -> None:
    assert winner_text(solution_id) == text
