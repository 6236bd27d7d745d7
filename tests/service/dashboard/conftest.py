"""One database, one server and one browser for all suites of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from tests.service.dashboard.recorded import Recorded, recorded_database
from tests.service.dashboard.showing import CHROMIUM, DESK, PATIENCE_MS, Watched
from tests.service.http.serving import serving


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The recorded database; suites of the browser cancel its running tuning."""
    return recorded_database(Path(tmp_path_factory.mktemp("recorded")))


@pytest.fixture(scope="session")
def pages(recorded: Recorded) -> Iterator[httpx.Client]:
    """A client of the server that all of these suites use."""
    quick = {"events_poll_seconds": 0.05}
    with serving(recorded.settings.model_copy(update=quick)) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser of a suite. Playwright's event loop runs in this thread until the suite's end, so that no
    other suite could run one."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def context(browser: Browser, pages: httpx.Client) -> Iterator[BrowserContext]:
    """A window of its own; its pages may be given by their address alone."""
    made = browser.new_context(viewport=DESK, base_url=str(pages.base_url), accept_downloads=True)
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


@pytest.fixture
def watched(context: BrowserContext) -> Watched:
    """A page that is watched."""
    return Watched(context)
