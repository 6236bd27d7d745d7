"""A page that a browser shows: its address, the words of its data, what its console said, whom it asked."""

from __future__ import annotations

import httpx
from playwright.sync_api import BrowserContext, Page, ViewportSize, expect

from tests.service.dashboard.recorded import H200, Recorded

CHROMIUM = "/usr/bin/chromium"
DESK = ViewportSize(width=1360, height=900)
#: A page's data is there within this time on a busy machine; else it never comes.
PATIENCE_MS = 15_000


class Watched:
    """A page, what its console said, and the hosts that it asked."""

    def __init__(self, context: BrowserContext) -> None:
        self.page = context.new_page()
        self.said: list[str] = []
        self.asked: set[str] = set()
        self.page.on(
            "console", lambda m: self.said.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.add(httpx.URL(request.url).netloc.decode()))

    def show(self, address: str) -> Page:
        """Opens an address and waits for its data."""
        self.page.goto(address)
        expect(self.page.locator("main")).not_to_contain_text("Loading…")
        return self.page

    def check(self) -> None:
        """No error was said and no other host asked."""
        assert self.said == []
        hosts = {host for host in self.asked if host}
        assert hosts == {httpx.URL(self.page.url).netloc.decode()}


def address_of(name: str, recorded: Recorded) -> str:
    """A page of the recorded database."""
    before, after = recorded.environments
    return {
        "overview": "/", "leaderboard": f"/leaderboard?device={H200}",
        "problem": f"/leaderboard/{recorded.problem_id}?device={H200}",
        "roofline": f"/roofline?device={H200}&shown=both",
        "candidates": f"/roofline?device={H200}&problem={recorded.problem_id}",
        "tunings": "/tunings", "tuning": f"/tunings/{recorded.ended}",
        "compare": f"/compare?a={H200}&b={H200}&a_environment={before}&b_environment={after}",
        "fleet": "/fleet", "login": "/login",
    }[name]  # fmt: skip


#: Words that a page shows once its data is there.
SHOWN = {
    "overview": "llama-3-8b.jsonl", "leaderboard": "36 of 36", "problem": "the fastest first",
    "roofline": "801 TFLOP/s", "candidates": "Candidates of", "tunings": "running", "tuning": "Best so far",
    "compare": "A's winner in B", "fleet": "node-1", "login": "needs no key",
}  # fmt: skip
