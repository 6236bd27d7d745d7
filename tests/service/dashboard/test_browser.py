"""The pages in a real browser: what they show, that they live, and that anyone can use them.

One browser serves every test, and one server all but those of an empty database, of damaged rows, and of
keys, whose servers are threads of this process as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import (
    BrowserContext,
    Route,
    ViewportSize,
    expect,
)
from sqlalchemy import Engine

from db import jobs, models
from db.engine import open_engine, writing
from db.values import table
from service import keys
from service.settings import Settings
from tests.service.dashboard.recorded import H200, MARKUP, Recorded
from tests.service.dashboard.showing import SHOWN, Watched, address_of
from tests.service.dashboard.test_leaderboard import spoil
from tests.service.http.filled import CLASS, filled_database, new_database, problem
from tests.service.http.serving import serving

pytestmark = pytest.mark.browser

AXE = Path(__file__).parent.parent.parent / "data" / "axe" / "axe.min.js"
PHONE = ViewportSize(width=390, height=844)
_RUN_AXE = """async () => {
  const found = await axe.run({exclude: [".spread *"]}, {resultTypes: ["violations"]});
  return found.violations.filter(v => ["serious", "critical"].includes(v.impact))
    .map(v => `${v.id}: ${v.nodes.map(n => n.target.join(" ")).slice(0, 3).join(", ")}`);
}"""
_CONTRAST = """async () => {
  const which = {runOnly: ["color-contrast"], resultTypes: ["violations"]};
  const found = await axe.run({exclude: [".spread *"]}, which);
  return found.violations.flatMap(v => v.nodes).map(n => n.target.join(" ") + n.any.map(a => a.message));
}"""


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_shows_real_data_to_everyone(context: BrowserContext, recorded: Recorded, name: str) -> None:
    context.add_init_script(path=AXE)  # beside the page's own policy, which stays in force
    watched = Watched(context)
    page = watched.show(address_of(name, recorded))
    expect(page.locator("main")).to_contain_text(SHOWN[name])
    assert page.evaluate(_RUN_AXE) == []
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(_CONTRAST) == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    watched.check()


@pytest.mark.parametrize("address", ["/docs", "/redoc"])
def test_the_interface_is_documented_without_a_network(watched: Watched, address: str) -> None:
    page = watched.page
    page.goto(address)
    expect(page.get_by_text("/v1/leaderboard").first).to_be_attached()
    watched.check()


# ---- filters, order, files -------------------------------------------------------------------------


def test_filters_are_a_permanent_link(watched: Watched, pages: httpx.Client) -> None:
    page = watched.show(f"/leaderboard?device={H200}")
    expect(page.locator("main")).to_contain_text("36 of 36")
    page.get_by_label("Winner's family").select_option("cublaslt")
    expect(page).to_have_url(re.compile("family=cublaslt"))
    wanted = pages.get(f"/v1/leaderboard?device={H200}&family=cublaslt").json()["problems"]["all"]
    expect(page.locator("main")).to_contain_text(f"{wanted} of {wanted}")
    page.get_by_label("Model or list").select_option(MARKUP)
    expect(page).to_have_url(re.compile("list=%3Cimg"))
    page.reload()
    expect(page.get_by_label("Winner's family")).to_have_value("cublaslt")
    page.go_back()
    expect(page.get_by_label("Model or list")).to_have_value("")
    expect(page.locator("main")).to_contain_text(f"{wanted} of {wanted}")
    watched.check()


def test_a_board_is_sorted_by_its_headings(watched: Watched, pages: httpx.Client) -> None:
    page = watched.show(f"/leaderboard?device={H200}")
    problems = page.get_by_role("region", name="Problems")
    problems.get_by_role("button", name="Time", exact=True).click()
    expect(page).to_have_url(re.compile("sort=seconds&order=asc"))
    expect(problems.locator("th[aria-sort=ascending]")).to_have_text("Time")
    first = pages.get(f"/v1/leaderboard?device={H200}&sort=seconds").json()["items"][0]
    link = problems.locator("tbody a").first
    expect(link).to_have_attribute("href", re.compile(re.escape(first["problem_id"])))
    families = page.get_by_role("region", name="Families of the winners")
    families.get_by_role("button", name="Geo. mean").click()
    shown = [
        float(text.rstrip("×")) for text in families.locator("tbody tr td:nth-child(4)").all_inner_texts()
    ]
    assert shown == sorted(shown, reverse=True)
    watched.check()


def test_what_is_shown_is_a_file(watched: Watched, tmp_path: Path) -> None:
    page = watched.show(f"/leaderboard?device={H200}&dtype=fp32")
    expect(page.locator("main")).to_contain_text("2 of 2")
    for name, button in (("table.csv", page.get_by_role("button", name="CSV").last),
                         ("chart.png", page.get_by_role("button", name="PNG"))):  # fmt: skip
        with page.expect_download() as coming:
            button.click()
        coming.value.save_as(tmp_path / name)
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("#,Problem,Verdict,Speed-up,Time,Default,Calls,Saved")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    watched.check()


def test_a_comparison_is_of_all_problems_and_shows_those_that_are_chosen(
    watched: Watched, pages: httpx.Client, recorded: Recorded
) -> None:
    before, after = recorded.environments
    sides = f"a={H200}&b={H200}&a_environment={before}&b_environment={after}"
    found = pages.get(f"/v1/compare?{sides}&order=desc").json()
    problems = found["problems"]
    page = watched.show(f"/compare?{sides}")
    table = page.get_by_role("region", name="Problems")
    expect(page.locator("main")).to_contain_text(f"Problems: {len(found['items'])} of {len(found['items'])}")
    expect(page.locator("main")).to_contain_text(f"share of {problems['both']} problems")
    table.get_by_role("button", name="B over A").click()
    expect(page).to_have_url(re.compile("order=desc"))
    expect(table.locator("th[aria-sort=descending]")).to_have_text("B over A")
    link = table.locator("tbody a").first
    expect(link).to_have_attribute("href", re.compile(re.escape(found["items"][0]["problem_id"])))
    page.get_by_label("Change").select_option("lost")
    expect(page.locator("main")).to_contain_text(f"Problems: {problems['lost']} of {problems['lost']}")
    expect(page.locator(".facts")).to_contain_text(f"{problems['a']} in A, {problems['b']} in B")
    watched.check()


def test_a_roofline_begins_with_what_is_chosen(watched: Watched, pages: httpx.Client) -> None:
    page = watched.show(f"/roofline?device={H200}")
    expect(page.locator("main")).to_contain_text("36 of 36 problems")
    page.get_by_label("First").select_option("roofline")
    expect(page).to_have_url(re.compile("sort=roofline"))
    first = pages.get(f"/v1/leaderboard?device={H200}&sort=roofline&order=asc").json()["items"][0]
    link = page.get_by_role("region", name="Problems by their distance").locator("tbody a").first
    expect(link).to_have_attribute("href", re.compile(re.escape(first["problem_id"])))
    watched.check()


def test_what_a_service_gives_at_a_time_is_enough(watched: Watched, recorded: Recorded) -> None:
    """The limit of a page's rows is a setting. What is not shown is said, and a button shows it."""
    before, after = recorded.environments
    addresses = {
        f"/leaderboard?device={H200}": "Problems: {} of 36",
        f"/roofline?device={H200}": "distance to the roof: {} of 36",
        f"/compare?a={H200}&b={H200}&a_environment={before}&b_environment={after}": "Problems: {} of 36",
    }
    with serving(recorded.settings.model_copy(update={"max_page": 10})) as client:
        for address, words in addresses.items():
            page = watched.show(f"{client.base_url}{address}")
            for shown in (10, 20, 30, 36):
                expect(page.locator("main")).to_contain_text(words.format(shown))
                if shown < 36:
                    page.get_by_role("button", name="Show more").click()
            expect(page.get_by_role("button", name="Show more")).to_have_count(0)
        for name in SHOWN.keys() - {"leaderboard", "roofline", "compare"}:
            page = watched.show(f"{client.base_url}{address_of(name, recorded)}")
            expect(page.locator("main")).to_contain_text(SHOWN[name])
        watched.check()


# ---- keyboard --------------------------------------------------------------------------------------


def test_a_keyboard_is_enough(watched: Watched) -> None:
    page = watched.show(f"/roofline?device={H200}")
    expect(page.locator("main")).to_contain_text("801 TFLOP/s")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    chart = page.locator(".chart")
    chart.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tip")).to_contain_text("FLOP/s")
    expect(page.locator(".chart [aria-live]")).to_contain_text("bound by")
    page.keyboard.press("Escape")
    expect(page.locator(".tip")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/leaderboard/"))
    watched.check()


def test_a_pointer_on_a_point_names_its_kernel(watched: Watched) -> None:
    page = watched.show(f"/roofline?device={H200}&dtype=fp32")
    expect(page.locator(".u-over")).to_be_visible()
    page.locator(".chart").focus()
    page.keyboard.press("ArrowRight")
    named, tip = page.locator(".tip").inner_text(), page.locator(".tip").bounding_box()
    assert tip is not None
    page.keyboard.press("Escape")
    expect(page.locator(".tip")).to_be_hidden()
    page.mouse.move(tip["x"] - 14, tip["y"] - 22)  # the tip is below its point, to the right
    expect(page.locator(".tip")).to_have_text(named, use_inner_text=True)
    assert re.search("fp32.*bound by (memory|compute)", named, re.DOTALL)
    watched.check()


# ---- live ------------------------------------------------------------------------------------------


@pytest.fixture
def engine(recorded: Recorded) -> Iterator[Engine]:
    """A worker's way into the database."""
    made = open_engine(recorded.settings.database_url)
    yield made
    made.dispose()


def measured(engine: Engine, job: str, number: int) -> None:
    """An event of a job: so many candidates were measured."""
    row = table(models.Job)
    with writing(engine) as connection:
        found = connection.execute(row.select().where(row.c.id == job)).mappings().one()
        fastest = {"solution_id": "a", "seconds": 1e-6 * number}
        content = {
            "job_id": job,
            "problem_id": found["problem_id"],
            "outcomes": {"ok": number},
            "fastest": fastest,
        }
        jobs.emit_to_all(connection, found["number"], "measured", content)


def test_a_tuning_is_followed_live_and_cancelled(
    context: BrowserContext, pages: httpx.Client, recorded: Recorded, engine: Engine
) -> None:
    watched = Watched(context)
    page = watched.show(f"/tunings/{recorded.running}")
    job = pages.get(f"/v1/tunings/{recorded.running}").json()["jobs"]["items"][4]
    row = page.get_by_role("region", name="Problems").locator("tbody tr").nth(4)
    expect(row).to_contain_text("1 failed")
    heading = page.get_by_role("region", name="Problems").get_by_role("button", name="Calls", exact=True)
    heading.click()  # all are equal: the order stays, and newer data keeps it
    measured(engine, job["id"], 421)
    expect(row).to_contain_text("421")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Calls")
    expect(heading).to_be_focused()
    expect(page.locator(".chart")).to_be_visible()
    watched.check()
    context.set_offline(True)  # the stream breaks; what happens meanwhile is told afterwards
    measured(engine, job["id"], 512)
    page.wait_for_timeout(200)
    context.set_offline(False)
    expect(row).to_contain_text("512")
    page.get_by_role("button", name="Cancel tuning").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep it").click()
    assert pages.get(f"/v1/tunings/{recorded.running}").json()["status"] == "running"
    page.get_by_role("button", name="Cancel tuning").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel tuning").click()
    expect(page.locator(".facts")).to_contain_text("cancelled")
    expect(page.get_by_role("button", name="Cancel tuning")).to_have_count(0)
    assert pages.get(f"/v1/tunings/{recorded.running}").json()["status"] == "cancelled"


def test_an_event_stream_that_is_refused_is_tried_again(watched: Watched, recorded: Recorded) -> None:
    page, refused = watched.page, []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.fulfill(status=503, body="{}", content_type="application/problem+json")

    page.route("**/events*", refuse)
    page.route(f"**/v1/tunings/{recorded.ended}?*", _still_running)
    watched.show(f"/tunings/{recorded.ended}")
    expect(page.get_by_role("status")).to_contain_text("reading again")
    page.unroute("**/events*")
    expect(page.locator("main")).to_contain_text("3 of 3")
    assert refused


def _still_running(route: Route) -> None:
    found = route.fetch()
    route.fulfill(response=found, json={**found.json(), "status": "running", "ended_at": None})


# ---- bad input -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service without a row."""
    with serving(new_database(Path(tmp_path_factory.mktemp("empty")))) as client:
        yield str(client.base_url)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/", "No device class is known"), ("/leaderboard", "No device class is known"),
        ("/roofline", "No device class is known"), ("/tunings", "No such tuning"),
        ("/compare", "No device class is known"), ("/fleet", "No worker has registered"),
    ],
)  # fmt: skip
def test_an_empty_database_is_said_to_be_empty(
    watched: Watched, empty: str, address: str, words: str
) -> None:
    expect(watched.show(empty + address).locator("main")).to_contain_text(words)
    watched.check()


def test_damaged_rows_and_missing_ceilings_are_dashes(watched: Watched, tmp_path: Path) -> None:
    asked = [problem(16, n, 512) for n in (64, 128, 256, 512)]
    settings = filled_database(tmp_path, asked, device=CLASS)
    with closing(_Engine(settings)) as engine:
        spoil(engine.engine, [one.id for one in asked])
    with serving(settings) as client:
        base = str(client.base_url)
        page = watched.show(f"{base}/leaderboard?device={CLASS}")
        expect(page.locator("main")).to_contain_text("4 of 4")
        assert "NaN" not in page.locator("main").inner_text()
        page = watched.show(f"{base}/roofline?device={CLASS}")
        expect(page.locator("main")).to_contain_text("No ceiling of this class was measured")
        page = watched.show(f"{base}/leaderboard/{asked[0].id}?device={CLASS}")
        expect(page.locator("main")).to_contain_text("Candidates: 5 of 5")
        assert not re.search("NaN|undefined|Infinity", page.locator("main").inner_text())
        watched.check()


class _Engine:
    """An engine that closing() closes."""

    def __init__(self, settings: Settings) -> None:
        self.engine = open_engine(settings.database_url)

    def close(self) -> None:
        self.engine.dispose()


def test_names_with_markup_are_names(watched: Watched, recorded: Recorded) -> None:
    page = watched.show("/")
    expect(page.get_by_text(MARKUP)).to_be_visible()
    page = watched.show("/fleet")
    expect(page.get_by_text("build-<b>1</b>")).to_be_visible()
    assert page.locator("main img, main b").count() == 0
    watched.check()


def test_a_failed_job_shows_its_evidence(watched: Watched) -> None:
    page = watched.show("/fleet")
    page.get_by_text("the device process ended: crash").click()
    expect(page.get_by_text("cudaErrorIllegalAddress")).to_be_visible()
    page.locator("select[name=state]").select_option("succeeded")
    expect(page).to_have_url(re.compile("state=succeeded"))
    expect(page.get_by_role("region", name="Jobs succeeded")).to_contain_text("bf16")
    watched.check()


def test_what_does_not_exist_is_said(watched: Watched) -> None:
    for address in (
        "/leaderboard/none",
        "/tunings/none",
        "/leaderboard?device=hip",
        f"/roofline?device={H200}&list=x",
    ):
        page = watched.page
        page.goto(address)
        expect(page.get_by_role("alert")).to_be_visible()
    assert all("404" in said for said in watched.said)


def test_what_is_asked_wrongly_can_be_chosen_anew(watched: Watched) -> None:
    page = watched.page
    for address in (
        "/leaderboard?judgement=win",
        f"/roofline?device={H200}&list=x",
        "/leaderboard?device=hip",
    ):
        page.goto(address)
        expect(page.get_by_role("alert")).to_be_visible()
        page.locator("select[name=device]").select_option("cpu:x86_64:AMD-EPYC-9B14:2")
        for name in ("judgement", "list"):
            if name in address:
                page.locator(f"select[name={name}]").select_option("")
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.locator("main")).to_contain_text("6 of 6")


def test_a_login_opens_the_page_that_was_asked(watched: Watched, tmp_path: Path) -> None:
    settings = new_database(tmp_path, keys=True)
    with closing(_Engine(settings)) as engine, writing(engine.engine) as connection:
        token = keys.create(connection, "pages", ["read"], None)
    with serving(settings) as client:
        base, page = str(client.base_url), watched.page
        page.goto(f"{base}/fleet?state=failed")
        expect(page).to_have_url(re.compile("/login"))
        watched.check()
        page.get_by_label("Key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
        page.get_by_label("Key").fill(token)
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"/fleet\?state=failed"))
        expect(page.locator("main")).to_contain_text("No worker has registered")
        page.get_by_role("button", name="Log out").click()
        expect(page).to_have_url(re.compile("/login"))
        page.goto(f"{base}/login?next=https://evil.example/")
        page.get_by_label("Key").fill(token)
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{base}/")
