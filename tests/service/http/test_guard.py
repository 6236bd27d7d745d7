"""Who is answered: Host, Origin, content types, keys and their scopes, rates and shares, the audit log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from db import keys as rows
from db.engine import writing
from service import keys
from service.campaign_plan import plan_campaign
from service.routes import tunings
from service.settings import Settings
from tests.service.http.conftest import PROBLEMS
from tests.service.http.filled import CLASS, ENVIRONMENT, register
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of
from tests.service.http.uploads import UNTUNED, journal

BEST = "/v1/solutions/best?m=16&n=256&k=512"
PROBLEM = {"problems": [{"m": 1, "n": 1, "k": 1}]}


# ---- hosts and origins, without keys ---------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1", "", "a b", "127.0.0.1@x"]
)
def test_a_rebound_name_is_not_answered(filled: httpx.Client, host: str) -> None:
    for method, url in (("GET", BEST), ("GET", "/metrics"), ("POST", "/v1/tunings"), ("GET", "/docs")):
        fault = fault_of(filled.request(method, url, headers={"Host": host}), 421)
        assert "GEMMTUNE_ALLOWED_HOSTS" in fault["detail"]
    for probe in ("/healthz", "/readyz"):
        assert filled.get(probe, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1", "127.9.9.9:80", "[::1]:8080"])
def test_loopback_names_are_answered(filled: httpx.Client, host: str) -> None:
    assert filled.get(BEST, headers={"Host": host}).status_code == 200


def test_listed_names_are_answered(filled_settings: Settings) -> None:
    named = filled_settings.model_copy(update={"allowed_hosts": "tune.example, .fleet.example"})
    with serving(named) as client:
        for host in ("tune.example", "a.fleet.example:443"):
            assert client.get(BEST, headers={"Host": host}).status_code == 200
        for host in ("fleet.example", "xtune.example", "127.0.0.1"):
            fault_of(client.get(BEST, headers={"Host": host}), 421)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Content-Type": "text/plain"},
        {"Origin": "http://evil.example", "Content-Type": "application/json"},
        {"Origin": "null", "Content-Type": "application/json"},
        {"Origin": "http://127.0.0.1:1", "Content-Type": "text/csv"},
        {"Sec-Fetch-Site": "cross-site", "Content-Type": "application/json"},
        {"Sec-Fetch-Site": "same-site", "Content-Type": "application/json"},
    ],
)
def test_pages_of_other_sites_change_nothing(client: httpx.Client, headers: dict[str, str]) -> None:
    planted = journal(PROBLEMS[0])
    fault_of(client.post("/v1/imports/auto", content=planted, headers=headers), 403)
    fault_of(client.post("/v1/tunings", json=PROBLEM, headers=headers), 403)
    fault_of(client.delete("/v1/tunings/tuning-1", headers=headers), 403)
    assert client.get("/v1/problems").json()["items"] == []


@pytest.mark.parametrize("kind", ["text/plain", "text/plain; charset=utf-8", None, "multipart/form-data"])
def test_types_that_a_page_can_send_unasked_are_refused(client: httpx.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    fault = fault_of(client.post("/v1/imports/auto", content=journal(PROBLEMS[0]), headers=headers), 415)
    assert "any site" in fault["detail"]


def test_a_page_of_this_service_is_answered(client: httpx.Client) -> None:
    headers = {"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    assert client.post("/v1/tunings", json=PROBLEM, headers=headers).status_code == 202
    headers["Content-Type"] = "text/csv"
    assert client.post("/v1/imports/auto", content=UNTUNED, headers=headers).status_code == 200


def test_listed_origins_are_answered_by_cors(filled_settings: Settings) -> None:
    page = "https://board.example"
    with serving(filled_settings.model_copy(update={"cors_origins": page})) as client:
        asked = {"Origin": page, "Access-Control-Request-Method": "GET"}
        response = client.options(BEST, headers=asked)
        assert response.headers["access-control-allow-origin"] == page
        assert (
            "etag"
            in client.get(BEST, headers={"Origin": page}).headers["access-control-expose-headers"].lower()
        )
        other = client.options(BEST, headers={**asked, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


# ---- keys ------------------------------------------------------------------------------------------


def made(engine: Engine, *scopes: str, seconds: float | None = None, **limits: int) -> str:
    with writing(engine) as connection:
        return keys.create(connection, "a key", scopes, seconds, limits)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def keyed(settings: Settings, engine: Engine) -> Iterator[httpx.Client]:
    """A service that needs keys."""
    register(engine, ENVIRONMENT)
    with serving(settings.model_copy(update={"keys": True})) as client:
        yield client


def test_without_a_valid_key_nothing_is_answered_but_the_probes(keyed: httpx.Client, engine: Engine) -> None:
    token, old = made(engine, "read"), made(engine, "admin", seconds=1e-3)
    gone = made(engine, "admin")
    with writing(engine) as connection:
        rows.revoke(connection, gone.split("_")[1])
    wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
    refused: list[dict[str, str]] = [
        {}, bearer("x"), bearer(wrong), bearer(old), bearer(gone), bearer(token + " x"),
        {"Authorization": token}, {"Authorization": f"Basic {token}"}, {"Cookie": f"gemmtune_login={token}"},
    ]  # fmt: skip
    for headers in refused:
        for url in (BEST, "/v1/devices", "/metrics", "/openapi.json", "/docs", "/nothing"):
            response = keyed.get(url, headers=headers)
            assert "gemmtune keys create" in fault_of(response, 401)["detail"]
            assert response.headers["www-authenticate"].startswith("Bearer")
    fault_of(keyed.get(f"{BEST}&key={token}"), 401)
    assert keyed.get("/healthz").status_code == keyed.get("/readyz").status_code == 200
    assert keyed.get(BEST, headers=bearer(token)).status_code == 200


def test_scopes_are_what_a_key_may_do(keyed: httpx.Client, engine: Engine) -> None:
    of = {scope: bearer(made(engine, scope)) for scope in keys.SCOPES}
    csv = {"Content-Type": "text/csv"}
    for scope, headers in of.items():
        assert keyed.get(BEST, headers=headers).status_code == 200
        assert keyed.post("/v1/solutions/best", json=PROBLEM, headers=headers).status_code == 200
        tuned = keyed.post("/v1/tunings", json=PROBLEM, headers=headers)
        assert tuned.status_code == (202 if scope in ("tune", "admin") else 403), scope
        taken = keyed.post("/v1/imports/auto", content=UNTUNED, headers={**headers, **csv})
        assert taken.status_code == (200 if scope in ("import", "admin") else 403), scope
    url = f"/v1/imports/auto?tune=true&device={CLASS}"
    fault = fault_of(keyed.post(url, content=UNTUNED, headers={**of["import"], **csv}), 403)
    assert fault["scope"] == "tune"
    # A key in the header cannot come from a page of another site, so that any type and origin will do.
    plain = {**of["import"], "Content-Type": "text/plain", "Origin": "https://other.example"}
    assert keyed.post("/v1/imports/auto", content=UNTUNED, headers=plain).status_code == 200


def test_a_revoked_key_ends_within_seconds(keyed: httpx.Client, engine: Engine, monkeypatch: Any) -> None:
    monkeypatch.setattr(keys, "REREAD_SECONDS", 0.0)
    token = made(engine, "read")
    assert keyed.get(BEST, headers=bearer(token)).status_code == 200
    with writing(engine) as connection:
        assert rows.revoke(connection, token.split("_")[1])
        assert not rows.revoke(connection, token.split("_")[1])
    fault_of(keyed.get(BEST, headers=bearer(token)), 401)


def test_a_key_is_exchanged_for_a_cookie(keyed: httpx.Client, engine: Engine) -> None:
    token = made(engine, "tune", seconds=100)
    fault_of(keyed.post("/login", json={"key": token + "x"}), 401)
    fault_of(keyed.post("/login", json={"key": token}, headers={"Origin": "http://evil.example"}), 403)
    response = keyed.post("/login", json={"key": token})
    assert response.json()["scopes"] == ["read", "tune"]
    cookie = response.headers["set-cookie"]
    assert all(part in cookie.lower() for part in ("httponly", "samesite=strict", "path=/"))
    assert token not in cookie
    assert 90 <= response.json()["seconds"] <= 100
    assert keyed.get(BEST).status_code == 200  # the client keeps cookies
    assert keyed.post("/v1/tunings", json=PROBLEM).status_code == 202
    fault_of(keyed.post("/v1/tunings", json=PROBLEM, headers={"Origin": "http://evil.example"}), 403)
    login = keyed.cookies["gemmtune_login"]
    keyed.cookies.clear()
    fault_of(keyed.get(BEST, headers=bearer(login)), 401)
    keyed.cookies.set("gemmtune_login", login)
    assert keyed.post("/logout").status_code == 204
    keyed.cookies.set("gemmtune_login", login)
    fault_of(keyed.get(BEST), 401)


def test_revoking_a_key_ends_its_logins(keyed: httpx.Client, engine: Engine, monkeypatch: Any) -> None:
    monkeypatch.setattr(keys, "REREAD_SECONDS", 0.0)
    token = made(engine, "read")
    keyed.post("/login", json={"key": token})
    with writing(engine) as connection:
        rows.revoke(connection, token.split("_")[1])
    fault_of(keyed.get(BEST), 401)


def test_a_key_has_a_rate(keyed: httpx.Client, engine: Engine) -> None:
    slow, other = made(engine, "read", requests_per_second=3), made(engine, "read")
    answers = [keyed.get(BEST, headers=bearer(slow)) for _ in range(8)]
    refused = [response for response in answers if response.status_code == 429]
    assert refused
    assert [response.status_code for response in answers[:3]] == [200] * 3
    assert int(refused[0].headers["retry-after"]) >= 1
    assert fault_of(refused[0], 429)["type"] == "urn:gemmtune:too-many-requests"
    assert keyed.get(BEST, headers=bearer(other)).status_code == 200


def test_a_key_has_a_size(keyed: httpx.Client, engine: Engine) -> None:
    headers = {**bearer(made(engine, "import", upload_bytes=100)), "Content-Type": "text/csv"}
    assert fault_of(keyed.post("/v1/imports/auto", content=UNTUNED, headers=headers), 413)["limit"] == 100


def test_a_key_has_a_share_of_the_queue(keyed: httpx.Client, engine: Engine) -> None:
    first = bearer(made(engine, "tune", queued_jobs=6, urgent_jobs=2))
    other = bearer(made(engine, "tune"))

    def tune(headers: dict[str, str], start: int, count: int, priority: int = 10) -> httpx.Response:
        body = {"problems": [{"m": 1, "n": 1, "k": start + i} for i in range(count)], "priority": priority}
        return keyed.post("/v1/tunings", json=body, headers=headers)

    assert tune(first, 100, 2, 1).status_code == 202
    assert "priority 10 or later" in fault_of(tune(first, 200, 1, 1), 429)["detail"]
    assert tune(first, 200, 4).status_code == 202
    assert "may have 6" in fault_of(tune(first, 300, 1), 429)["detail"]
    assert tune(other, 300, 1, 1).status_code == 202


def test_no_campaign_is_planned_for_a_key_whose_share_is_used_up(
    keyed: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = bearer(made(engine, "tune", queued_jobs=2, urgent_jobs=1))
    planned: list[float] = []

    def plan(*given: Any) -> Any:
        planned.append(given[4])
        return plan_campaign(*given)

    monkeypatch.setattr(tunings, "plan_campaign", plan)

    def tune(k: int, priority: int = 10) -> httpx.Response:
        body = {"problems": [{"m": 1, "n": 1, "k": k}], "priority": priority}
        return keyed.post("/v1/tunings", json={**body, "budget": {"campaign_seconds": 1}}, headers=headers)

    assert tune(100, 1).status_code == 202
    assert "priority 10 or later" in fault_of(tune(200, 1), 429)["detail"]
    assert planned == [1.0]
    assert tune(200).status_code == 202
    assert "may have 2" in fault_of(tune(300), 429)["detail"]
    assert planned == [1.0, 1.0]


def test_every_change_is_a_line_of_the_audit_log(
    keyed: httpx.Client, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gemmtune.audit")
    token = made(engine, "tune")
    keyed.post("/v1/tunings", json=PROBLEM, headers={**bearer(token), "X-Request-Id": "r-1"})
    keyed.post("/v1/tunings", json=PROBLEM)
    keyed.get(BEST, headers=bearer(token))
    keyed.post("/v1/solutions/best", json=PROBLEM, headers=bearer(token))
    lines = [record.getMessage() for record in caplog.records if record.name == "gemmtune.audit"]
    key_id = token.split("_")[1]
    assert len(lines) == 2
    assert f"change=POST subject=/v1/tunings detail=- result=done status=202 by=key:{key_id}" in lines[0]
    assert "name='a key' from=127.0.0.1 request_id=r-1 database=sqlite:///" in lines[0]
    assert "result=refused status=401 by=- name=-" in lines[1]
    assert token.split("_")[2] not in caplog.text


# ---- HEAD ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", [BEST, "/healthz", "/v1/environments", f"/v1/exports/jsonl?device={CLASS}", "/v1/x"]
)
def test_head_is_get_without_the_body(filled: httpx.Client, url: str) -> None:
    got, headed = filled.get(url), filled.head(url)
    assert headed.status_code == got.status_code
    assert headed.content == b""
    varying = {"date", "x-request-id", "transfer-encoding"}
    assert {n: v for n, v in headed.headers.items() if n not in varying} == {
        n: v for n, v in got.headers.items() if n not in varying
    }
