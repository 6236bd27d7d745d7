"""gemmtune export measurements and gemmtune report -o, on a database and through a service."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from db.engine import open_engine
from service.cli import app
from service.settings import Settings
from tests.service.http.filled import CLASS, fill, problem
from tests.service.http.serving import serving
from tests.service.http.test_measurements import OUTCOMES

PROBLEMS = [problem(m, 256, 512) for m in (16, 32)]
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> str:
    path = tmp_path_factory.mktemp("filled") / "gemmtune.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    made = f"sqlite:///{path}"
    engine = open_engine(made)
    fill(engine, PROBLEMS)
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
        return CliRunner().invoke(app, list(arguments))

    return command


def test_a_file_has_its_card_beside_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "all.parquet"
    done = run("export", "measurements", "-o", str(path), "--json")
    assert done.exit_code == 0, done.exception
    answer = json.loads(done.stdout)
    assert (answer["format"], answer["card"]) == ("parquet", f"{path}.md"), "the name says the format"
    table = pq.read_table(path)
    assert table.num_rows == OUTCOMES * len(PROBLEMS)
    card = Path(answer["card"]).read_text()
    assert f"{table.num_rows} measurements of " in card
    assert f"* measurements up to number {answer['last']}" in card
    assert sorted(found.name for found in tmp_path.iterdir()) == ["all.parquet", "all.parquet.md"]


def test_what_was_asked_for_is_in_the_card(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    asked = ("--family", "packed", "--problem", PROBLEMS[0].id, "--device", CLASS, "--since", "2020-01-01")
    done = run("export", "measurements", "--format", "csv", "-o", str(path), *asked)
    assert done.exit_code == 0, done.exception
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert {(row["family"], row["problem_id"]) for row in rows} == {("packed", PROBLEMS[0].id)}
    card = Path(f"{path}.md").read_text()
    for words in (
        "* family: packed",
        f"* problem: {PROBLEMS[0].id}",
        f"* device: {CLASS}",
        "* since: 2020-01-01",
    ):
        assert words in card
    assert f"{len(rows)} measurements of " in done.stderr


def test_without_a_file_it_is_printed(run: Run) -> None:
    done = run("export", "measurements")
    assert len(done.stdout.splitlines()) == OUTCOMES * len(PROBLEMS)
    assert run("export", "measurements", "-o", "-").stdout == done.stdout
    assert done.stderr == ""


def test_what_makes_no_sense_is_refused(run: Run) -> None:
    for arguments, words in (
        (("measurements", "--format", "xml"), "--format 'xml' is unknown; known: jsonl, csv, parquet"),
        (("measurements", "--target", "torch-2.9+cuda"), "leave --target out"),
        (("measurements", "--tuning", "tuning-none"), "there is no tuning 'tuning-none'"),
        (("measurements", "--problem", "none"), "there is no problem 'none'"),
        (("measurements", "--device", "hip"), "hip"),
        (("measurements", "--since", "now"), "'now' is no date or time"),
        (("csv", "--family", "packed"), "leave --family out: it is for measurements"),
    ):
        assert words in str(run("export", *arguments).exception), arguments


def test_without_pyarrow_it_says_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)  # as if it were not installed
    path = tmp_path / "all.parquet"
    done = run("export", "measurements", "-o", str(path))
    assert "pip install 'gemmtune[parquet]'" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_the_report_is_written_as_a_page(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    done = run("report", "--device", "cpu", "-o", str(path))
    assert done.exit_code == 0, done.exception
    assert done.stdout == ""
    text = path.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("<svg") == 3
    assert CLASS in text
    found = json.loads(run("report", "--device", "cpu", "-o", str(path), "--json").stdout)
    assert found["detail"]["gains"]
    assert json.loads(run("report", "--device", "cpu", "--json").stdout)["detail"] is None
