"""The command kernels space: how large the spaces of a problem's families are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.errors import InvalidProblem
from backends.registry import find_device
from backends.wire import problem_from_wire, problem_to_wire
from service import report
from service.commands.common import Index, Json, OwnDevice, out, print_json
from service.commands.grouping import Groups, Routing
from service.commands.grouping import routing as routing_of
from service.commands.weights import (
    DtypeB,
    DtypeD,
    Prepacked,
    ScaleA,
    ScaleB,
    ScaleD,
    ScaleDtype,
    ZeroB,
    scaling_of,
)
from service.settings import Settings
from tuners.space_sizes import SECONDS, SpaceSize, on_arch, on_device


def space(
    m: Annotated[int, typer.Option(help="Rows of the row-major output.")],
    n: Annotated[int, typer.Option(help="Columns of the row-major output.")],
    k: Annotated[int, typer.Option(help="Length of the dot products.")],
    dtype: Annotated[str, typer.Option(help="fp32, bf16, fp16, fp64, int8, ...")] = "fp32",
    dtype_b: DtypeB = None,
    scale_a: ScaleA = None,
    scale_b: ScaleB = None,
    scale_d: ScaleD = None,
    scale_dtype: ScaleDtype = None,
    zero_b: ZeroB = None,
    prepacked: Prepacked = False,
    groups: Groups = None,
    routing: Routing = None,
    dtype_c: Annotated[str | None, typer.Option(help="Output type, where it differs.")] = None,
    dtype_d: DtypeD = None,
    compute: Annotated[
        str | None, typer.Option(help="Compute type, where it differs from the default.")
    ] = None,
    trans_a: Annotated[bool, typer.Option("--trans-a", help="A is stored transposed.")] = False,
    trans_b: Annotated[bool, typer.Option("--trans-b", help="B is stored transposed (F.linear).")] = False,
    batch: Annotated[int | None, typer.Option(help="Strided batch.")] = None,
    lda: Annotated[int | None, typer.Option(help="Leading dimension of A, elements.")] = None,
    ldb: Annotated[int | None, typer.Option(help="Leading dimension of B, elements.")] = None,
    ldc: Annotated[int | None, typer.Option(help="Leading dimension of the output, elements.")] = None,
    beta: Annotated[float | None, typer.Option(help="Scales C, which is added.")] = None,
    epilogue: Annotated[
        str | None, typer.Option(help="none, bias, relu, gelu, silu, bias_relu, ..., swiglu")
    ] = None,
    device: OwnDevice = None,
    index: Index = None,
    arch: Annotated[
        str | None,
        typer.Option(
            help=f"Our own kernels for an architecture, without a device: {', '.join(GPU_TARGETS)}."
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="For counting the legal members of each space.")
    ] = SECONDS,
    as_json: Json = False,
) -> None:
    """Show how large the space of every family is for a problem: the combinations of its parameters, how many
    of them are legal, and how many are listed as candidates that a search tries first."""
    given = {
        "m": m, "n": n, "k": k, "dtype": dtype, "dtype_b": dtype_b, "dtype_c": dtype_c, "dtype_d": dtype_d,
        "compute": compute,
        "batch": batch, "trans_a": trans_a or None, "trans_b": trans_b or None, "lda": lda, "ldb": ldb,
        "ldc": ldc, "beta": beta, "epilogue": epilogue,
        "scaling": scaling_of(scale_a, scale_b, scale_d, scale_dtype, zero_b), "groups": groups,
        "routing": routing_of(routing), "prepacked": prepacked or None,
    }  # fmt: skip
    problem = problem_from_wire({name: value for name, value in given.items() if value is not None})
    notes: Sequence[str] = ()
    if arch is not None:
        if device is not None or index is not None:
            raise InvalidProblem("--arch is without a device: leave --device and --index out", "arch")
        if arch not in GPU_TARGETS:
            raise InvalidProblem(f"architecture {arch!r} is unknown; known: {', '.join(GPU_TARGETS)}", "arch")
        where, found = arch, on_arch(problem, arch, seconds)
    else:
        settings = Settings()
        here = find_device(device or settings.device, index)
        where = str(here.environment.device_class)
        found, notes = on_device(problem, here, BinaryCache(settings.cache_dir / "kernels"), seconds)
    if as_json:
        rows = [one.to_dict() for one in found]
        print_json({"problem": problem_to_wire(problem), "on": where, "families": rows, "notes": notes})
        return
    out.print(f"Spaces of {report.problem_text(problem)} on {where}", markup=False, highlight=False)
    out.print(_table(found), markup=False)
    for note in notes:
        out.print(f"note: {note}", style="dim", markup=False)


def _table(rows: Sequence[SpaceSize]) -> Table:
    """A row for each family, and their sums."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_footer=True)
    counted = [row.legal for row in rows if row.legal is not None]
    legal = f"{'' if len(counted) == len(rows) else 'over '}{sum(counted):,}"
    table.add_column("family", "all", no_wrap=True)
    table.add_column("combinations", f"{sum(row.combinations for row in rows):,}", justify="right")
    table.add_column("legal", legal, justify="right")
    table.add_column("listed", f"{sum(row.listed for row in rows):,}", justify="right")
    for row in rows:
        number = "not counted" if row.legal is None else f"{row.legal:,}"
        table.add_row(row.family, f"{row.combinations:,}", number, f"{row.listed:,}")
    return table
