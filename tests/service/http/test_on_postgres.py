"""Everything once on PostgreSQL: what the suites beside this one do on SQLite."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from db.engine import open_engine
from service import answers, records
from service.settings import Settings
from tests.postgres import PostgresServer
from tests.service.http.conftest import PROBLEMS
from tests.service.http.filled import CLASS, HUNGRY, fill, problem
from tests.service.http.serving import serving
from tests.service.http.shapes import fits
from tests.service.http.uploads import RESULTS, UNTUNED, journal

pytestmark = pytest.mark.postgres
ONE = {"m": 16, "n": 256, "k": 512}


@pytest.fixture(scope="module")
def client(postgres: PostgresServer, postgres_template: str) -> Iterator[httpx.Client]:
    """An application on a server, with PROBLEMS measured."""
    name = postgres.create(postgres_template)
    settings = Settings(database_url=postgres.url(name))
    engine = open_engine(settings.database_url)
    fill(engine, PROBLEMS)
    engine.dispose()
    with serving(settings) as made:
        yield made
    postgres.drop(name)


def test_best(client: httpx.Client) -> None:
    def best(**parameters: str | int) -> str:
        response = client.get("/v1/solutions/best", params={**ONE, **parameters})
        return str(fits(answers.Best, response)["match"])

    assert best() == "exact"
    assert best(max_workspace=HUNGRY - 1) == "exact"
    assert best(m=24) == "nearest"
    assert best(m=4096) == "default"
    many = client.post("/v1/solutions/best", json={"problems": [ONE, {**ONE, "m": 24}]})
    assert [one["match"] for one in fits(answers.BestAnswers, many)["results"]] == ["exact", "nearest"]


def test_tunings(client: httpx.Client) -> None:
    body = {"problems": [{**ONE, "count": 2}, {"m": 7, "n": 7, "k": 7}]}
    made = fits(answers.TuningCreated, client.post("/v1/tunings", json=body))
    assert made["new"] == 2
    assert client.post("/v1/tunings", json=body).json()["shared"] == 2
    tuning = fits(answers.Tuning, client.get(made["links"]["self"]))
    assert [job["count"] for job in tuning["jobs"]["items"]] == [2, 1]
    assert client.delete(made["links"]["self"]).json()["status"] == "cancelled"
    text = client.get(made["links"]["events"]).text
    assert text.index("event: queued") < text.index("event: ended")
    page = fits(answers.Paged[answers.TuningSummary], client.get("/v1/tunings?limit=1"))
    assert page["next_cursor"] is not None


def test_lists(client: httpx.Client) -> None:
    first = PROBLEMS[0].id
    fits(answers.Paged[records.ProblemSummary], client.get("/v1/problems?limit=2"))
    fits(records.ProblemAnswer, client.get(f"/v1/problems/{first}"))
    fits(answers.Paged[records.Measurement], client.get(f"/v1/problems/{first}/measurements"))
    board = client.get(f"/v1/problems/{first}/measurements?view=leaderboard")
    winner = fits(records.Leaderboard, board)["items"][0]["solution"]["id"]
    fits(records.SolutionAnswer, client.get(f"/v1/solutions/{winner}"))
    fits(records.Devices, client.get("/v1/devices"))
    fits(answers.Paged[records.Environment], client.get(f"/v1/environments?device={CLASS}"))
    assert 'gemmtune_workers{status="idle"} 1.0' in client.get("/metrics").text


def test_files(client: httpx.Client) -> None:
    gpu = "hip:gfx942:MI300X:304"
    files = ((UNTUNED, CLASS, 0), (RESULTS, gpu, 1), (journal(problem(9, 9, 9)), CLASS, 0))
    for content, device, stored in files:
        for again in (False, True):
            response = client.post(
                f"/v1/imports/auto?device={device}", content=content,
                headers={"Content-Type": "application/octet-stream"},
            )  # fmt: skip
            found = fits(records.ImportAnswer, response)
            assert found["provenance"]["new"] is not again
            assert (found["claims"]["stored"], found["claims"]["known"]) == (
                (0, stored) if again else (stored, 0)
            )
    assert client.get("/v1/solutions/best?m=9&n=9&k=9").json()["provenance"]["kind"] == "node"
    claimed = "m=1024&n=1024&k=1024&dtype=bf16&imported=true&device=hip"
    assert client.get(f"/v1/solutions/best?{claimed}").json()["match"] == "imported"
    rows = client.get("/v1/exports/json?imported=true").json()["rows"]
    assert len(rows) == len(PROBLEMS) + 1
    report = fits(records.ExportReport, client.get("/v1/exports/csv?report=true"))
    assert report["written"] == len(PROBLEMS) + 1
