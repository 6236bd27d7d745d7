"""Finds, proves and remembers the fastest right way to run a GEMM on a device: commands of the tuner and the
service.

Exit codes: 0 done, even if some lines of the input were rejected (their number is on standard error); 1 every
line was rejected, some problem has no verdict, some kernel does not compile, or the device was lost; 2 bad
input, nothing done; 130 interrupted. With --json standard output is one JSON document. That of an error is
{"error": {...}}, a problem document like the service's (RFC 9457); standard error has it as a line.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from backends.errors import DeviceLost, GemmtuneError
from service.failures import error_document, wants_json

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
    "leaderboard": (
        "leaderboard",
        "List tuned problems with their default, their best known way, the ratio and the verdict: those that "
        "save most of all calls first.",
    ),
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
        "Store a file's problems, and what it claims or measured. Exit code 1: every line was rejected.",
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
    "status": (
        "tunings",
        "Show the workers, the queue and the tunings that are not finished. Exit code 1: the service does "
        "not answer.",
    ),
    "tunings": ("tunings", "List tunings, newest first."),
    "cancel": (
        "tunings",
        "Cancel a tuning. Jobs that another tuning waits for go on; what was measured stays.",
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
#: Other spellings of commands, which the list does not show: the singular or the plural. None of a command
#: that runs something: `workers` is no `worker`.
ALIASES: Mapping[str, str] = {
    "bundles": "bundle", "device": "devices", "exports": "export", "imports": "import",
    "job": "jobs", "kernel": "kernels", "key": "keys", "leaderboards": "leaderboard", "models": "model",
    "portfolios": "portfolio", "problem": "problems", "reports": "report", "tuning": "tunings",
}  # fmt: skip
_SETTINGS: Mapping[str, Any] = {
    "no_args_is_help": True, "add_completion": False, "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]}, "rich_markup_mode": None,
}  # fmt: skip
BAD_INPUT, FAILED = 2, 1
#: Base of what the parser of command lines raises: it prints itself and has an exit code.
_USAGE_ERROR: Any = typer.BadParameter.__mro__[2]


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
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        made = typer.Typer(**_SETTINGS)
        _imported(f"service.commands.{COMMANDS[cmd_name][0]}").add_to(made)
        return typer.main.get_group(made).commands[cmd_name]

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Completes names from COMMANDS alone, without importing their modules."""
        listed: dict[str, Any] = {name: TyperCommand(name, help=text) for name, (_, text) in COMMANDS.items()}
        ctx.command = TyperGroup(name=self.name, commands=listed, params=self.params)
        return ctx.command.shell_complete(ctx, incomplete)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command. Raises a usage error that suggests a command for a misspelt one."""
        unknown = args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None
        if unknown and not ctx.resilient_parsing:
            near = get_close_matches(args[0], [*COMMANDS, *ALIASES])
            meant = f" Did you mean {ALIASES.get(near[0], near[0])!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None,
        complete_var: str | None = None, standalone_mode: bool = True, *rest: Any, **named: Any,
    ) -> Any:  # fmt: skip
        """Runs a command line. With --json a usage error is also a JSON document on standard output."""
        given = sys.argv[1:] if args is None else args
        if not standalone_mode or not wants_json(list(given)):
            return super().main(args, prog_name, complete_var, standalone_mode, *rest, **named)
        try:
            code = super().main(args, prog_name, complete_var, False, *rest, **named)
        except _USAGE_ERROR as error:
            error.show()
            _print_error(error)
            sys.exit(error.exit_code)
        sys.exit(code if isinstance(code, int) else 0)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands from COMMANDS alone, without importing their modules."""
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            rows = ((name, _short(text, limit)) for name, (_, text) in COMMANDS.items())
            formatter.write_dl(list(rows))


def _imported(name: str) -> Any:
    """A module, imported without collections of memory: they find no garbage meanwhile, and take a tenth of
    the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if collecting:
            gc.enable()


app = typer.Typer(cls=LazyGroup, help=__doc__, **{**_SETTINGS, "add_completion": True})


def _show_version(given: bool) -> None:
    if given:
        from importlib.metadata import version  # noqa: PLC0415

        typer.echo(f"gemmtune {version('gemmtune')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Commands are in COMMANDS."""


def main() -> None:
    """Entry point of the gemmtune command: errors become one line and an exit code."""
    try:
        app()
    except DeviceLost as error:
        _fail(str(error), error, FAILED)
    except GemmtuneError as error:
        _fail(str(error), error)
    except BrokenPipeError:  # the reader of standard output is gone: there is nothing to report
        sys.stderr.close()
        sys.exit(FAILED)
    except ValueError as error:
        from pydantic import ValidationError  # noqa: PLC0415  (settings were read, so it is loaded)

        if not isinstance(error, ValidationError):
            raise
        first = error.errors()[0]
        name = "GEMMTUNE_" + "_".join(str(part) for part in first["loc"]).upper()
        text = f"setting {name}: {first['msg']} (it is {first['input']!r})"
        _fail(text, ValueError(text))


def _print_error(error: Exception) -> None:
    """The error's document on standard output."""
    json.dump(error_document(error), sys.stdout, indent=1, default=str)
    sys.stdout.write("\n")
    sys.stdout.flush()


def _fail(message: str, error: Exception, code: int = BAD_INPUT) -> None:
    from service.commands.common import err  # noqa: PLC0415

    if wants_json(sys.argv[1:]):
        _print_error(error)

    err.print(f"error: {message}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
