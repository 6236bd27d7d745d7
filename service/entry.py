"""The gemmtune command's first step: is the installation whole? Only then is the rest imported."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_CHECK = Path(__file__).resolve().parent.parent / "backends" / "installation.py"


def main() -> None:
    """Checks for shadowed packages (exit code 2 with the stranger's folder), then runs the command line."""
    try:
        runpy.run_path(str(_CHECK))["check_installation"]()
    except ImportError as error:
        sys.exit(_say(error))
    from service.cli import main as command_line  # noqa: PLC0415  (only now is it known to be ours)

    command_line()


def _say(error: ImportError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
