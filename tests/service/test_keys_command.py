"""gemmtune keys, and the commands that need one: serve on other addresses, and --server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner
from typer.testing import Result as Done

from db.fleet import NoSuchName
from service import serve
from service.cli import app
from service.hosts import BadSetting, is_same_origin, origins
from service.keys import KeyRefused
from service.remote import Remote, ServiceError
from service.serve import NoKeys
from service.settings import Settings


@pytest.fixture(autouse=True)
def database(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's empty database."""
    path = tmp_path / "gemmtune.sqlite"
    shutil.copyfile(sqlite_template, path)
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", f"sqlite:///{path}")
    return path


def call(*arguments: str) -> Done:
    return CliRunner().invoke(app, ["keys", *arguments])


def test_a_key_is_made_listed_and_revoked(database: Path) -> None:
    made = json.loads(call("create", "ci", "--scope", "tune", "--queued-jobs", "7", "--json").stdout)
    (row,) = json.loads(call("list", "--json").stdout)["keys"]
    assert (row["id"], row["name"], row["scopes"]) == (made["id"], "ci", ["tune"])
    assert row["limits"] == {"queued_jobs": 7}
    assert row["expires_at"] > row["created_at"]
    secret = made["key"].split("_")[2].encode()
    assert secret not in database.read_bytes()
    assert call("revoke", made["id"]).exit_code == 0
    assert isinstance(call("revoke", made["id"]).exception, NoSuchName)
    whole = call("revoke", made["key"]).exception
    assert isinstance(whole, NoSuchName)
    assert made["key"][-8:] not in str(whole), "who pastes the whole key does not print it"
    assert json.loads(call("list", "--json").stdout)["keys"][0]["revoked_at"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("ci", "--scope", "write"), "scopes are read, tune, import, admin, not write"),
        (("", "--scope", "read"), "a key's name"),
        (("a\nb", "--scope", "read"), "a key's name"),
        (("ci", "--scope", "read", "--days", "-1"), "later than now"),
        (("ci", "--scope", "read", "--days", "1e12"), "name fewer days"),
    ],
)
def test_keys_that_cannot_be_are_refused(arguments: tuple[str, ...], why: str) -> None:
    error = call("create", *arguments).exception
    assert isinstance(error, KeyRefused)
    assert why in str(error)


def test_another_address_needs_keys_or_their_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "listen", reached)
    for settings in (Settings(host="0.0.0.0"), Settings(keys=True), Settings(host="10.0.0.1", keys=None)):
        with pytest.raises(NoKeys, match="gemmtune keys create NAME --scope admin"):
            serve.serve(settings, None, print)
    with pytest.raises(NoKeys, match="both a certificate and its key"):
        serve.serve(Settings(tls_key=Path("key.pem")), None, print)
    for settings in (Settings(), Settings(host="0.0.0.0", keys=False)):
        with pytest.raises(KeyboardInterrupt):
            serve.serve(settings, None, print)
    call("create", "ci", "--scope", "read")
    with pytest.raises(KeyboardInterrupt):
        serve.serve(Settings(host="0.0.0.0"), None, print)


def test_the_settings_key_is_sent_but_not_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMTUNE_KEY", "gt_secret")
    assert "gt_secret" not in repr(Settings())
    seen: list[str] = []

    def service(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200, json={})

    for server in ("http://127.0.0.1:1", "https://gemmtune.example.org"):
        with Remote(server, httpx.MockTransport(service)) as remote:
            remote.get("/healthz")
    assert seen == ["Bearer gt_secret"] * 2
    with pytest.raises(ServiceError, match="in the clear"):
        Remote("http://gemmtune.example.org")


@pytest.mark.parametrize("text", ["*", "example.org", "https://a/path", "https://a,ftp://b"])
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="GEMMTUNE_CORS_ORIGINS"):
        origins(text)


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://localhost:8080", "localhost:8080", True),
        ("https://tune.example", "tune.example:443", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("https://tune.example:8443", "tune.example", False),
        ("null", "localhost", False),
        ("http://localhost:80a", "localhost", False),
        ("http://localhost.evil.example", "localhost", False),
    ],
)
def test_same_origins(origin: str, host: str, same: bool) -> None:
    assert is_same_origin(origin, host) is same
