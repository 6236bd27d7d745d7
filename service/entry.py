"""The gemmtune command's first step: checks the installation before the rest is imported."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_CHECK = Path(__file__).resolve().parent.parent / "backends" / "installation.py"


def main() -> None:
    """Checks for shadowed packages (exit code 2, naming the foreign folder), then runs the command line."""
    try:
        runpy.run_path(str(_CHECK))["check_installation"]()
    except ImportError as error:
        sys.exit(_say(error))
    from service.cli import main as command_line  # noqa: PLC0415  (only now known to be gemmtune's)

    command_line()


def _say(error: ImportError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
