"""Which gemmtune runs: its version, and its commit where that is known."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
#: The folders whose changes make a checkout differ from its commit.
_CODE = ("backends", "tuners", "db", "service")
_GIT_SECONDS = 10.0


def program(root: Path = _ROOT) -> dict[str, str | None]:
    """version: of the installed package, None where only the source is there. commit: of the checkout that
    this file lies in (+changes if its code differs), else of the repository that pip installed from."""
    version, commit = None, _checkout(root)
    try:
        installed = distribution("gemmtune")
    except PackageNotFoundError:
        pass
    else:
        version = installed.version
        commit = commit or _installed_commit(installed.read_text("direct_url.json"))
    return {"version": version, "commit": commit, "python": platform.python_version()}


def _checkout(root: Path) -> str | None:
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "HEAD")
    return head and head + ("+changes" if _git(root, "status", "--porcelain", "--", *_CODE) else "")


def _installed_commit(text: str | None) -> str | None:
    """The commit in pip's record of a direct URL (PEP 610)."""
    found = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    return None if found is None else str(found)


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; None where there is no git, or it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False,
            timeout=_GIT_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
