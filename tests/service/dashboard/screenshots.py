"""Makes the pictures of docs/pages.md from the recorded database.

python -m tests.service.dashboard.screenshots [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import expect, sync_playwright

from tests.service.dashboard.recorded import recorded_database
from tests.service.dashboard.showing import CHROMIUM, SHOWN, address_of
from tests.service.http.serving import serving

FOLDER = Path(__file__).parent.parent.parent.parent / "docs" / "images"
#: Page -> its picture's height and colours.
PICTURES: dict[str, tuple[int, Literal["light", "dark"]]] = {
    "overview": (620, "light"), "leaderboard": (620, "light"), "problem": (600, "light"),
    "roofline": (780, "light"), "tuning": (740, "dark"), "compare": (860, "light"), "fleet": (470, "dark"),
}  # fmt: skip


def main(folder: Path = FOLDER) -> None:
    """Writes a PNG of each page."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        recorded = recorded_database(Path(place))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with serving(recorded.settings) as client:
            for name, (height, scheme) in PICTURES.items():
                address = f"/tunings/{recorded.running}" if name == "tuning" else address_of(name, recorded)
                context = browser.new_context(
                    color_scheme=scheme, viewport={"width": 1240, "height": height},
                    base_url=str(client.base_url),
                )  # fmt: skip
                page = context.new_page()
                page.goto(address)
                expect(page.locator("main")).to_contain_text(SHOWN[name])
                page.wait_for_timeout(800)  # events, and the chart
                page.screenshot(path=folder / f"{name}.png")
                context.close()
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
