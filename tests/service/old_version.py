"""An earlier version's wheel, which the suite on rolling upgrades runs beside this version.

    python -m tests.service.old_version [COMMIT]       default: HEAD

The scripts of the pages are left out, 40% of it. A new asset replaces the old one when versions before it are
no longer to be upgraded from without a stop.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "data" / "versions"
_LEFT_OUT = "service/dashboard/static/vendor/"


def build(commit: str) -> Path:
    """Builds the wheel of a commit and puts it, without what is left out, in place of the one in FOLDER."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        with (place / "source.tar").open("wb") as tar:
            subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=tar, check=True)
        with tarfile.open(place / "source.tar") as source:
            source.extractall(place / "source", filter="data")
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--wheel-dir", place, place / "source"], check=True,
        )  # fmt: skip
        (wheel,) = place.glob("*.whl")
        FOLDER.mkdir(exist_ok=True)
        for earlier in FOLDER.glob("*.whl"):
            earlier.unlink()
        with zipfile.ZipFile(wheel) as full, zipfile.ZipFile(FOLDER / wheel.name, "w") as kept:
            for info in full.infolist():
                if not info.filename.startswith(_LEFT_OUT):
                    kept.writestr(info, full.read(info), zipfile.ZIP_DEFLATED, 9)
    return FOLDER / wheel.name


if __name__ == "__main__":
    made = build(*(sys.argv[1:] or ["HEAD"]))
    print(f"{made.relative_to(ROOT)}: {made.stat().st_size} bytes")
