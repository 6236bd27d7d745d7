"""The command line: thin commands over the tuner and the service.

Exit codes: 0 done; 1 some problem has no verdict, some kernel does not compile, or the device was lost; 2 bad
input, nothing done; 3 done, but some lines of the input were rejected; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from backends.errors import DeviceLost, GemmtuneError

#: Command -> its module in service/commands, and the first paragraph of its help: listing imports no module.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "tune": (
        "tune",
        "Tune one problem (--m --n --k ...) or every problem of FILE on a device of this "
        "machine: the first of its class that no other process uses.",
    ),
    "model": (
        "model",
        "Tune a model's linear layers and write the file that its program loads: what is unknown is tuned, "
        "and the lines to paste and the expected gain are printed.",
    ),
    "judge": (
        "judge",
        "Judge a kernel of your own: verified on every problem as our own are, checked for cheats, and raced "
        "against the default and the best known solution. Exit code 0: right on every problem.",
    ),
    "best": ("data", "Show the best known way to run a problem. Exit code 1: nothing is known."),
    "report": (
        "reports",
        "Show what tuning is worth on a device class: seconds saved, speed-ups, what to tune next, and rows "
        "that are stale.",
    ),
    "diff": (
        "reports",
        "Show what became of the winners of one environment in another: kept, beaten, broken, retired, or "
        "not measured there yet. `gemmtune report --json` names present environments, `gemmtune devices "
        "--json` this machine's, and GET /v1/environments all.",
    ),
    "import": (
        "data",
        "Store a file's problems, and what it claims or measured. Exit code 3: some lines were rejected.",
    ),
    "export": (
        "export",
        "Write the best known solutions of a device class as a file that a framework loads. What was "
        "written, and what was left out and why, is reported on standard error.",
    ),
    "bundle": (
        "bundle",
        "Write the kernels of our own that won on a device class, with their launches and verdicts, as one "
        "file that gemmtune's client loads.",
    ),
    "devices": (
        "look",
        "List the devices of this machine, what runs on them, their measured ceilings, and which of them "
        "differ from their class.",
    ),
    "problems": (
        "look",
        "List the problems in FILE with their call counts, and every line that could not be read.",
    ),
    "serve": (
        "run",
        "Run the HTTP service, and beside it a worker for each device of a class of this machine.",
    ),
    "worker": (
        "run",
        "Run a worker: it owns one device of this machine, the first of its class that no other "
        "process uses, and measures the jobs of the class.",
    ),
    "workers": (
        "fleet",
        "List the latest worker of each device: where it runs, whether it lives, its job, and what failed "
        "last. A silent worker has not beaten for half a minute.",
    ),
    "jobs": ("fleet", "List the jobs of all tunings, newest first, with the reason of each failure."),
    "retry": (
        "fleet",
        "Queue a failed job again, or every failed one. It is measured anew, and its tunings run again. Exit "
        "code 3: some jobs were refused.",
    ),
    "demo": (
        "run",
        "Go the whole way once: serve, import FILE, tune through HTTP, ask for the best, export, stop.",
    ),
    "selftest": (
        "selftest",
        "Check that a device of this machine works with gemmtune, in ten minutes, and write a report.",
    ),
    "lint": ("lint", "Check other tools' tables before they load them."),
    "pretuned": ("pretuned", "Tables of results that were measured elsewhere: list, install, write one."),
    "portfolio": (
        "portfolio",
        "Small sets of solutions that serve many problems: build one from measurements, show it.",
    ),
    "kernels": ("kernels", "Our own kernel families."),
    "provenance": ("provenance", "Imported files: list them, and remove what one brought."),
    "keys": ("keys", "API keys of the service: make, list and revoke them."),
    "db": ("database", "Look after the database."),
}
_SETTINGS: Mapping[str, Any] = {
    "no_args_is_help": True, "add_completion": False, "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]}, "rich_markup_mode": None,
}  # fmt: skip
BAD_INPUT, FAILED = 2, 1


def _short(text: str, limit: int) -> str:
    """The first sentence, or as many words of it as fit."""
    words: list[str] = []
    for word in text.split():
        words.append(word)
        if len(" ".join(words)) > limit:
            break
        if word.endswith("."):
            return " ".join(words)
    else:
        return " ".join(words)
    while words and len(" ".join(words)) + 3 > limit:
        words.pop()
    return " ".join(words) + "..."


class LazyGroup(TyperGroup):
    """The commands of COMMANDS, each imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of COMMANDS, in their order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, after importing its module; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        made = typer.Typer(**_SETTINGS)
        import_module(f"service.commands.{COMMANDS[cmd_name][0]}").add_to(made)
        return typer.main.get_group(made).commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands from COMMANDS alone, without importing their modules."""
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            rows = ((name, _short(text, limit)) for name, (_, text) in COMMANDS.items())
            formatter.write_dl(list(rows))


app = typer.Typer(cls=LazyGroup, help=__doc__, **_SETTINGS)


@app.callback()
def _root() -> None:
    """Commands are in COMMANDS."""


def main() -> None:
    """Entry point of the gemmtune command: errors become one line and an exit code."""
    try:
        app()
    except DeviceLost as error:
        _fail(str(error), FAILED)
    except GemmtuneError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of standard output is gone: there is nothing to report
        sys.stderr.close()
        sys.exit(FAILED)
    except ValueError as error:
        from pydantic import ValidationError  # noqa: PLC0415  (settings were read, so it is loaded)

        if not isinstance(error, ValidationError):
            raise
        first = error.errors()[0]
        name = "GEMMTUNE_" + "_".join(str(part) for part in first["loc"]).upper()
        _fail(f"setting {name}: {first['msg']} (it is {first['input']!r})")


def _fail(message: str, code: int = BAD_INPUT) -> None:
    from service.commands.common import err  # noqa: PLC0415

    err.print(f"error: {message}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
