"""The command line: thin commands over the tuner and the service.

Exit codes: 0 done; 1 some problem has no verdict, some kernel does not compile, or the device was lost; 2 bad
input, nothing done; 3 done, but some lines of the input were rejected; 130 interrupted.
"""

from __future__ import annotations

import sys

import typer
from pydantic import ValidationError

from backends.errors import DeviceLost, GemmtuneError
from service.commands import data, kernels, look, run, tune
from service.commands.common import BAD_INPUT, FAILED, err

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None,
)  # fmt: skip
for group in (tune, data, look, kernels, run):
    group.add_to(app)


def main() -> None:
    """Entry point of the gemmtune command: errors become one line and an exit code."""
    try:
        app()
    except DeviceLost as error:
        _fail(str(error), FAILED)
    except GemmtuneError as error:
        _fail(str(error))
    except ValidationError as error:
        first = error.errors()[0]
        name = "GEMMTUNE_" + "_".join(str(part) for part in first["loc"]).upper()
        _fail(f"setting {name}: {first['msg']} (it is {first['input']!r})")
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to say
        sys.stderr.close()
        sys.exit(FAILED)


def _fail(message: str, code: int = BAD_INPUT) -> None:
    err.print(f"error: {message}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
