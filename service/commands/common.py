"""Shared by the commands: exit codes, consoles, options, and the output for a file that was read."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from shutil import copyfileobj
from typing import Annotated, Any

import typer
from rich.console import Console

from backends.counted import counted
from backends.errors import InvalidProblem, ReadError, StorageError
from backends.wire import problem_to_wire
from service.formats import FORMATS, READERS, ReadOptions, read_file
from service.formats.core.base import TOKENS, Imported
from service.formats.vllm.beside import with_folder
from tuners.effort import effort_help
from tuners.policy import read_bytes

OK, FAILED, BAD_INPUT, PARTLY, INTERRUPTED = 0, 1, 2, 3, 130

#: Without a terminal there is no width to fit: a wide console keeps the lines of tables whole.
out = Console(width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
FormatName = Annotated[
    str | None,
    typer.Option("--format", help=f"Format of FILE ({', '.join(FORMATS)}); detected if not given."),
]
Device = Annotated[str | None, typer.Option(help="Device selector, e.g. cpu or cuda:sm_90.")]
#: For commands that use a device of this machine.
OwnDevice = Annotated[
    str | None, typer.Option("--device", help="Device selector, e.g. cpu or cuda:sm_90, or a device's UUID.")
]
Index = Annotated[
    int | None, typer.Option(help="Of several such devices the one with this index (gemmtune devices).")
]
Mode = Annotated[
    str | None, typer.Option(help="eager or graph; default: the device's (graph on GPUs, eager on CPUs).")
]
MaxWorkspace = Annotated[str | None, typer.Option(help="Workspace limit: bytes, or e.g. 32MiB.")]
Tp = Annotated[
    int | None, typer.Option("--tp", help="Of a model's config.json: devices that share each layer.")
]
Tokens = Annotated[
    str | None,
    typer.Option(help="Of a model's config.json: rows of activations, such as 1,16,2048."),
]
Layers = Annotated[
    str | None,
    typer.Option(
        help="Of a model's config.json: fused as vLLM runs them (default), split as transformers does, or "
        "both."
    ),
]
Ep = Annotated[
    int | None, typer.Option("--ep", help="Devices that share a layer's experts, whole ones each.")
]
HiddenSize = Annotated[
    int | None,
    typer.Option("--hidden-size", help="Of names of layers of experts: the size of their inputs."),
]
TopK = Annotated[
    int | None, typer.Option("--top-k", help="Of names of layers of experts: the experts of a token.")
]
Effort = Annotated[
    str | None,
    typer.Option(help=f"How much to spend on a problem. {effort_help()}. Other options replace its own."),
]
StopAtRoofline = Annotated[
    float | None,
    typer.Option(help="End the search once a candidate reaches this share of the roofline, e.g. 0.95."),
]
StopAtRegret = Annotated[
    float | None,
    typer.Option(
        help="End the search once timing twice as many candidates gained no more than this share, e.g. 0.01."
    ),
]
Server = Annotated[
    str | None,
    typer.Option(envvar="GEMMTUNE_SERVER", help="Ask the service at http://host:port, not this machine."),
]


def print_json(value: object) -> None:
    """Prints the value on standard output, indented."""
    json.dump(value, sys.stdout, indent=1, default=dict)
    sys.stdout.write("\n")


def tell(text: str, style: str | None = None) -> None:
    """Prints one line on standard error, without wrapping it: scripts and logs read it."""
    err.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def compile_progress(first: str, *, silent: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Shows on a terminal how many rows of a bundle are compiled; `first` is shown before the first one."""
    if silent:
        yield lambda done, total: None
        return
    with err.status(first) as status:
        yield lambda done, total: status.update(f"{done} of {counted(total, 'row')} compiled")


@cache
def _standard_input() -> Path:
    """Standard input as a file, which is removed when the program ends."""
    if sys.stdin is None or sys.stdin.closed:
        raise ReadError("- names standard input, which is closed; name a file")
    if sys.stdin.isatty():
        tell("reading standard input; end it with Ctrl-D")
    folder = tempfile.TemporaryDirectory(prefix="gemmtune-")
    _FOLDERS.append(folder)
    made = Path(folder.name) / "standard input"
    with made.open("wb") as file:
        copyfileobj(sys.stdin.buffer, file)
    return made


#: A folder is removed with its object.
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def input_path(file: Path) -> Path:
    """The file, or a copy of standard input for -. Raises ReadError."""
    return _standard_input() if str(file) == "-" else file


def write_file(output: Path | None, pieces: Iterator[bytes]) -> None:
    """Writes to a file, whole or not at all, or to standard output."""
    if output is None or str(output) == "-":
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    fresh = output.with_name(f".{output.name}.part")
    try:
        with fresh.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        fresh.replace(output)
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def imported_json(read: Imported) -> dict[str, Any]:
    """What a file held, as plain JSON values."""
    return {
        "format": read.format,
        "problems": [
            {**problem_to_wire(i.problem), "id": i.problem.id, "count": i.count} for i in read.problems
        ],
        "rejected": [{"line": r.line, "reason": r.reason} for r in read.rejected],
    }


def input_code(read: Imported) -> int:
    """FAILED if every line was rejected, else OK."""
    return FAILED if read.rejected and not read.problems else OK


def tell_rejected(count: int, source: object) -> None:
    """Says on standard error how many lines of the input were rejected."""
    if count:
        named = "standard input" if str(source) == "-" else source
        tell(f"{counted(count, 'line')} of {named} rejected", "yellow")


def token_counts(text: str | None) -> tuple[int, ...]:
    """--tokens as numbers; without it the usual ones. Raises InvalidProblem."""
    if text is None:
        return TOKENS
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and len(part) < 12 for part in parts):
        raise InvalidProblem(f"--tokens {text[:80]!r} must be whole numbers, such as 1,16,2048")
    return tuple(int(part) for part in parts)


#: Fields of ReadOptions that layers of experts have, by their options here.
_EXPERT_OPTIONS = {"expert_parallel": "--ep", "hidden_size": "--hidden-size", "top_k": "--top-k"}


def expert_options(ep: int | None, hidden_size: int | None, top_k: int | None) -> dict[str, int | None]:
    """The options of layers of experts as fields of ReadOptions; None for one that was not given."""
    return {"expert_parallel": ep, "hidden_size": hidden_size, "top_k": top_k}


def read_input(
    file: Path, format_name: str | None, tp: int | None, tokens: str | None, dtype: str | None = None,
    layers: str | None = None, experts: Mapping[str, int | None] | None = None,
) -> Imported:  # fmt: skip
    """Reads a file of problems with the options that were given; `experts` are those of expert_options().
    Raises ReadError for a file that cannot be read, InvalidProblem for an option that this file's format has
    no use for."""
    told: dict[str, Any] = {name: value for name, value in (experts or {}).items() if value is not None}
    options = ReadOptions("", 1 if tp is None else tp, token_counts(tokens), dtype, layers or "fused", **told)
    path = input_path(file)
    read = read_file(path, format_name, with_folder(path, options))
    used = READERS[read.format].declares.options
    given = {
        "tensor_parallel": ("--tp", tp), "tokens": ("--tokens", tokens), "dtype": ("--dtype", dtype),
        "layers": ("--layers", layers),
        **{name: (_EXPERT_OPTIONS[name], value) for name, value in (experts or {}).items()},
    }  # fmt: skip
    for name, (option, value) in given.items():
        if value is not None and name not in used:
            raise InvalidProblem(
                f"{option} is for files that do not say it themselves, such as a model's config.json; "
                f"{file} is of format {read.format}: leave the option out"
            )
    return read


def workspace_limit(text: str | None) -> int | None:
    """--max-workspace as bytes. Raises InvalidProblem."""
    return None if text is None else read_bytes(text, "--max-workspace")
