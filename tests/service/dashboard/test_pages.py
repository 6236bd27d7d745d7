"""The pages without a browser: their headers, their assets, and who may see them."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import httpx
import pytest

from db.engine import open_engine, writing
from service import keys
from service.dashboard import vendor
from service.dashboard.assets import PREFIX, assets, version
from service.dashboard.pages import PAGES, is_page
from tests.service.dashboard.recorded import Recorded
from tests.service.http.filled import new_database
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of

ROOT = Path(__file__).parent.parent.parent.parent
ADDRESSES = [page.path.replace("{problem_id}", "p").replace("{tuning_id}", "t") for page in PAGES]
ALL = [*ADDRESSES, "/login", "/docs", "/redoc"]
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
#: Bytes of a page with all that it loads, compressed; the interface's documentation is no page.
MOST_BYTES = 300_000


def directives(response: httpx.Response) -> dict[str, list[str]]:
    """The page's Content-Security-Policy."""
    parts = [part.split() for part in response.headers["content-security-policy"].split(";")]
    return {name: sources for name, *sources in parts}


@pytest.mark.parametrize("address", ALL)
def test_a_page_allows_nothing_inline_and_no_other_host(pages: httpx.Client, address: str) -> None:
    response = pages.get(address)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = directives(response)
    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == policy["connect-src"] == ["'self'"]
    assert not any(
        "unsafe" in one or "http" in one or "*" in one for found in policy.values() for one in found
    )
    assert policy["style-src"] == ["'self'"] or address == "/redoc"
    assert policy["frame-ancestors"] == ["'none'"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=|https?://", response.text)


@pytest.mark.parametrize("address", ALL)
def test_a_page_is_kept_and_its_assets_for_ever(pages: httpx.Client, address: str) -> None:
    response = pages.get(address)
    assert "no-cache" in response.headers["cache-control"]
    again = pages.get(address, headers={"If-None-Match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "content-security-policy" in again.headers
    assert pages.head(address).status_code == 200
    linked = re.findall(rf'(?:src|href)="({PREFIX}[^"]+)"', response.text)
    assert linked
    for url in linked:
        asset = pages.get(url)
        assert asset.status_code == 200
        assert "immutable" in asset.headers["cache-control"]


def loaded(text: str) -> set[str]:
    """The assets of a page, with the modules that its scripts import."""
    found = {url.removeprefix(f"{PREFIX}{version()}/") for url in re.findall(rf'"({PREFIX}[^"]+)"', text)}
    waiting = list(found)
    while waiting:
        source = assets()[waiting.pop()]
        if source.media_type.startswith("text/javascript"):
            imported = set(re.findall(rb'from "\./(?:lib/)?([\w-]+\.js)"', source.content))
            fresh = {f"lib/{name.decode()}" for name in imported} - found
            found |= fresh
            waiting += fresh
    return found


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_with_its_assets_is_small(pages: httpx.Client, address: str) -> None:
    names = loaded(pages.get(address).text)
    assert "lib/api.js" in names
    size = sum(len(gzip.compress(assets()[name].content, 5)) for name in names)
    assert size < MOST_BYTES // 4  # the rest is for what a page shows


def test_every_module_of_a_page_is_fetched_with_it(pages: httpx.Client) -> None:
    """Else a browser learns of one module from another, one after the other."""
    for kind in PAGES:
        if "{" in kind.path:
            continue
        text = pages.get(kind.path).text
        preloaded = re.findall(rf'rel="modulepreload" href="{PREFIX}{version()}/([^"]+)"', text)
        assert {name for name in loaded(text) if name.startswith("lib/")} == set(preloaded) != set()
        drawn = b"uPlot" in b"".join(assets()[name].content for name in (kind.script, *preloaded))
        assert drawn == kind.chart, "a page loads the chart library if it draws"


def test_what_is_no_asset_is_404(pages: httpx.Client) -> None:
    for name in ("none.js", "../pages.py", "%2e%2e/pages.py", "lib", ""):
        fault_of(pages.get(f"{PREFIX}{version()}/{name}"), 404)
    fault_of(pages.get(f"{PREFIX}0123456789abcdef/pages.css"), 404)
    fault_of(pages.post(f"{PREFIX}{version()}/pages.css"), 405)


def test_names_in_addresses_are_never_markup(pages: httpx.Client) -> None:
    for address in ("/leaderboard/%3Cscript%3Ealert(1)%3C%2Fscript%3E", "/tunings/%22%3E%3Cb%3E?x=%3Cb%3E"):
        assert "<b>" not in pages.get(address).text
        assert "<script>" not in pages.get(address).text


def test_pages_are_told_from_the_interface() -> None:
    assert all(map(is_page, [*ADDRESSES, "/docs", "/redoc"]))
    assert not any(
        map(is_page, ["/v1/devices", "/metrics", "/login", "/leaderboard/a/b", "/nothing", "/docs/x"])
    )


# ---- keys ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, str]]:
    """A service that needs keys, and a key."""
    settings = new_database(Path(tmp_path_factory.mktemp("keyed")), keys=True)
    engine = open_engine(settings.database_url)
    with writing(engine) as connection:
        token = keys.create(connection, "pages", ["read"], None)
    engine.dispose()
    with serving(settings) as client:
        yield client, token


@pytest.mark.parametrize("address", [*ADDRESSES, "/docs", "/redoc"])
def test_without_a_login_a_browser_is_sent_to_it(keyed: tuple[httpx.Client, str], address: str) -> None:
    client, _ = keyed
    response = client.get(f"{address}?list=a%26b", headers=HTML)
    assert response.status_code == 303
    where = httpx.URL(response.headers["location"])
    assert (where.path, where.params["next"]) == ("/login", f"{address}?list=a%26b")
    fault_of(client.get(address), 401)  # a program is told what is missing
    fault_of(client.get(address, headers={**HTML, "Host": "10.0.0.256"}), 421)


def test_the_login_opens_the_pages(keyed: tuple[httpx.Client, str]) -> None:
    client, token = keyed
    shown = client.get("/login", headers=HTML)
    assert 'type="password"' in shown.text
    for url in re.findall(rf'(?:src|href)="({PREFIX}[^"]+)"', shown.text):
        assert client.get(url).status_code == 200
    fault_of(client.post("/login", json={"key": "wrong"}), 401)
    answer = client.post("/login", json={"key": token})
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    client.cookies.clear()
    for address in ("/", "/fleet", "/docs", "/v1/devices"):
        assert client.get(address, headers=HTML | cookie).status_code == 200
    for probe in ("/healthz", "/readyz"):
        assert client.get(probe).status_code == 200
    fault_of(client.get("/v1/devices", headers=HTML), 401)


def test_a_service_without_keys_has_nothing_to_log_in_to(pages: httpx.Client) -> None:
    assert "needs no key" in pages.get("/login").text
    assert "Log out" not in pages.get("/").text


# ---- what is shipped -------------------------------------------------------------------------------


def test_vendored_files_are_as_recorded_with_their_licences() -> None:
    record = json.loads(vendor.RECORD.read_text())
    assert vendor.check(record) == []
    for package in record.values():
        assert package["integrity"].startswith("sha512-")
        assert package["license"]
        assert any("LICENSE" in name for name in package["files"])
    size = sum(vendor.target(p, name).stat().st_size for p in record.values() for name in p["files"])
    assert size <= 4_000_000


def test_a_changed_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "ROOT", tmp_path)
    record = {"p": {"version": "1", "folder": "v", "files": {"dist/a.js": "0" * 64, "LICENSE": "0" * 64}}}
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "a.js").write_text("changed")
    assert vendor.check(record) == ["v/a.js is not p 1's", "v/LICENSE.txt of p is missing"]


def test_the_package_has_every_asset() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["service.dashboard"]
    folder = ROOT / "service" / "dashboard"
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            assert any(fnmatch(name, one) and name.count("/") == one.count("/") for one in patterns), name


# ---- candidates ------------------------------------------------------------------------------------


def test_candidates_are_ranked_by_what_they_took(pages: httpx.Client, recorded: Recorded) -> None:
    for problem in pages.get("/v1/problems?limit=100").json()["items"]:
        found = pages.get(f"/v1/problems/{problem['id']}/measurements?view=leaderboard").json()
        rows, verdict = found["items"], found["verdict"]
        right = [row for row in rows if row["standing"] != "failed"]
        assert rows[: len(right)] == right
        times = [row["seconds"] for row in right]
        assert times == sorted(times)
        for row in rows:
            assert row["reason"]
            if row["interval"] and row["interval"]["low"] is not None:
                assert row["interval"]["low"] <= row["interval"]["mid"] <= row["interval"]["high"]
        if verdict is not None:
            stands = {row["solution"]["id"]: row["standing"] for row in rows}
            assert stands[verdict["baseline"]] == "default"
            assert verdict["judgement"] != "WIN" or stands[verdict["winner"]] == "winner"
