"""The kernels command: our own kernel families, and the resources of their compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import track
from rich.table import Table

from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.catalogue import Entry, catalogue
from backends.counted import counted
from backends.errors import InvalidProblem, StorageError
from backends.kernel_checks.check import LIMIT, Checked, Summary, check, known_archs, plan, summaries
from backends.packages.kept import keep as kept_in
from db.engine import reading
from service import report
from service.commands.common import FAILED, Json, err, out, print_json
from service.commands.space import space
from service.settings import Settings
from service.startup import open_database
from service.text_table import plain_table

kernels = typer.Typer(help="Our own kernel families.")


@kernels.callback(invoke_without_command=True)
def families(context: typer.Context, as_json: Json = False) -> None:
    """List our own kernel families: what each is, the vendors it is compiled for, input types, parameters,
    source, and why this machine cannot compile it where it cannot. Needs no GPU."""
    if context.invoked_subcommand is not None:
        return
    entries = catalogue()
    if as_json:
        print_json({"families": [entry.to_dict() for entry in entries]})
        return
    out.print(_families_table(entries), markup=False)
    reasons = [(vendor, entry.missing[vendor]) for entry in entries for vendor in entry.vendors]
    for vendor, why in dict.fromkeys(reasons):
        if why is not None:
            names = ", ".join(entry.name for entry in entries if entry.missing.get(vendor) == why)
            _print(f"not compiled here for {vendor}: {names}: {why}", "yellow")


@kernels.command(name="check")
def check_kernels(
    arch: Annotated[
        list[str], typer.Option(help=f"Architecture (repeat the option): {', '.join(GPU_TARGETS)}.")
    ],
    family: Annotated[list[str] | None, typer.Option(help="Only these families (repeat).")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Compiles of an architecture at most.")] = LIMIT,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Folder for every kernel that can be launched: its machine code, and a JSON file with its "
            "launches for a small problem."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also a row for every kernel.")] = False,
    as_json: Json = False,
) -> None:
    """Compile a sample of every family for an architecture, with no GPU, and show what the kernels take:
    registers, shared memory (LDS), spills and scratch, occupancy; and the matrix instructions that they
    have. Exit code 1: some do not compile."""
    known_archs(arch)  # a sample takes seconds: what is unknown is said first
    plans = [plan(name, family or (), limit) for name in dict.fromkeys(arch)]
    candidates = [one for each in plans for one in each.candidates]
    notes = [note for each in plans for note in each.notes]
    cache = BinaryCache(Settings().cache_dir / "kernels")
    compiling = check(candidates, cache)
    found = list(
        track(
            compiling, "compiling", len(candidates), console=err, transient=True,
            disable=as_json or not err.is_terminal,
        )
    )  # fmt: skip
    kept = None
    if keep is not None:
        launchable = [one.candidate for one in found if one.resources is not None and not one.unfit]
        kept = [str(path) for path in kept_in(keep, launchable, cache)]
    if as_json:
        rows = [asdict(one) for one in summaries(found)]
        samples = [one.to_dict() for one in found]
        print_json({"samples": samples, "families": rows, "notes": notes, "kept": kept})
    else:
        _show(found, notes, verbose)
        if kept is not None:
            _print(f"{keep}: {counted(len(kept), 'kernel')}")
    if any(one.resources is None for one in found):
        raise typer.Exit(FAILED)


@kernels.command(name="precompile")
def precompile_kernels(
    portfolio: Annotated[
        bool, typer.Option("--portfolio", help="The portfolio's members, which is what can be precompiled.")
    ] = False,
    file: Annotated[
        Path | None, typer.Option(help="A portfolio's file; default: the one that is shipped.")
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(
            help="Architecture, or cpu for this machine's processor (repeat the option); default: those of "
            "this machine's devices."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Compilers at a time; default: one a processor.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile a portfolio's members into the cache, with no GPU, so that tunings begin with compiled kernels.
    What is compiled already stays; run the same command again to go on. Exit code 1: some do not compile."""
    from service import portfolio as portfolios  # noqa: PLC0415  (other commands need no portfolio)
    from tuners.portfolio import file as files  # noqa: PLC0415
    from tuners.portfolio.precompile import precompile  # noqa: PLC0415

    if not portfolio:
        raise InvalidProblem("nothing to compile: give --portfolio")
    settings = Settings()
    chosen = files.chosen(file or settings.portfolio)
    items, notes = portfolios.items_for(chosen, portfolios.environments(arch or ()))
    compiling = precompile(items, BinaryCache(settings.cache_dir / "kernels"), jobs)
    found = list(
        track(
            compiling, "compiling", len(items), console=err, transient=True,
            disable=as_json or not err.is_terminal,
        )
    )  # fmt: skip
    failed = [(one.item.solution.id, one.error) for one in found if one.error is not None]
    cached = sum(one.cached for one in found)
    if as_json:
        counts = {"members": len(items), "cached": cached, "compiled": len(found) - cached - len(failed)}
        print_json({**counts, "failed": dict(failed), "notes": [*chosen.notes, *notes]})
    else:
        fresh = counted(len(found) - cached - len(failed), "is", "are")
        _print(f"{counted(len(items), 'kernel')}: {counted(cached, 'was', 'were')} compiled already, {fresh} "
               f"compiled now, {len(failed)} failed")  # fmt: skip
        for note in (*chosen.notes, *notes):
            _print(f"note: {note}", "yellow")
        for name, error in failed:
            _print(f"failed: {name}: {error}", "red")
    if failed:
        raise typer.Exit(FAILED)


@kernels.command(name="binary")
def kernel_binary(
    solution: Annotated[str, typer.Argument(help="A solution's id.")],
    problem: Annotated[
        str | None, typer.Option(help="A problem's id; needed unless the solution is best for one.")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(help=f"Needed unless it was measured on one architecture: {', '.join(GPU_TARGETS)}."),
    ] = None,
    units: Annotated[
        int | None, typer.Option(min=1, help="Multiprocessors, where a launch depends on them.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: named after both.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a solution's compiled kernel, with a description of its launches, as a zip (launch.json and the
    binaries), for programs that have nothing of ours. Needs no GPU."""
    from service.binaries import Binaries, choose  # noqa: PLC0415  (the web framework's faults)

    settings = Settings()
    with reading(open_database(settings)) as connection:
        chosen = choose(connection, solution, problem, arch, units)
    data = Binaries(settings).package(chosen)
    path = output or Path(chosen.name)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    if as_json:
        print_json({"file": str(path), "bytes": len(data), "arch": chosen.arch, "problem": chosen.problem.id})
    else:
        _print(f"{path}: {len(data)} bytes, {chosen.arch}, for {chosen.problem.id}")


def _show(found: Sequence[Checked], notes: Sequence[str], verbose: bool) -> None:
    for vendor in ("cuda", "hip"):
        of = [one for one in found if GPU_TARGETS[one.candidate.arch].vendor == vendor]
        if of and verbose:
            out.print(_kernels_table(of, vendor), markup=False)
        if of:
            out.print(_summaries_table(summaries(of), vendor), markup=False)
    for note in notes:
        _print(f"note: {note}", "yellow")
    for one in found:
        what = f"{one.candidate.arch} {one.candidate.solution.id}"
        what += f" of {report.problem_text(one.candidate.problem)}"
        if one.unfit:
            _print(f"cannot be launched: {what}: {one.unfit}", "yellow")
        if one.note:
            _print(f"note: {what}: {one.note}", "yellow")
        if one.error:
            _print(f"failed: {what}: {one.error}", "red")
            if verbose:
                _print(one.log)


def _print(text: str, style: str | None = None) -> None:
    """Prints lines of any length unchanged."""
    out.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


#: Columns of a console from which a family is one line.
_WIDE = 120


def _families_table(entries: Sequence[Entry]) -> Table:
    """One row per family; `space` counts the combinations of its parameters' values, legal or not. Where the
    console is narrow, what a family runs on is below its name."""
    if out.width < _WIDE:
        table = plain_table("family", "what it is", title="Kernel families")
        for entry in entries:
            space = "" if entry.space is None else f", {entry.space:,} combinations"
            facts = (" ".join(entry.vendors), " ".join(entry.input_types))
            counted = f"{len(entry.parameters)} parameters{space}"
            name = "\n".join((entry.name, *facts, counted))
            table.add_row(name, "\n".join([entry.description, *entry.files]))
            table.add_section()
        return table
    table = plain_table(
        "family", "what it is", "vendors", "input types", "parameters", "space", "source",
        title="Kernel families", right=("parameters", "space"),
    )  # fmt: skip
    table.columns[0].no_wrap = True
    for entry in entries:
        space = "" if entry.space is None else f"{entry.space:,}"
        table.add_row(
            entry.name, entry.description, " ".join(entry.vendors), " ".join(entry.input_types),
            str(len(entry.parameters)), space, "\n".join(entry.files),
        )  # fmt: skip
    return table


#: Vendor -> headings of registers, shared memory and spills.
_REGISTERS: Mapping[str, tuple[str, ...]] = {"cuda": ("registers",), "hip": ("VGPRs", "AGPRs", "SGPRs")}
_SHARED: Mapping[str, str] = {"cuda": "shared memory", "hip": "LDS"}
_SPILLS: Mapping[str, tuple[str, ...]] = {"cuda": ("spills",), "hip": ("spills", "scratch")}
_WAVES: Mapping[str, str] = {"cuda": "warps per SM partition", "hip": "waves per SIMD"}


def _summaries_table(rows: Sequence[Summary], vendor: str) -> Table:
    """One row per family and architecture of a vendor."""
    table = Table(title="Compiled kernels", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("arch", "family"):
        table.add_column(name, no_wrap=True)
    names = ("compiled", "failed", *_REGISTERS[vendor], f"{_SHARED[vendor]}, bytes", "spilling")
    for name in (*names, *(f"worst {name}, bytes" for name in _SPILLS[vendor]), _WAVES[vendor]):
        table.add_column(name, justify="right")
    table.add_column("matrix instructions", overflow="fold")
    for row in rows:
        registers, spills = [row.registers], [row.worst_spill_bytes]
        if vendor == "hip":
            registers += [row.accumulation_registers, row.scalar_registers]
            spills += [row.worst_scratch_bytes]
        table.add_row(
            row.arch, row.family, str(row.compiled), str(row.failed), *map(_range, registers),
            _range(row.shared_bytes), str(row.spilling), *map(_number, spills),
            _range(row.waves_per_simd), _names(row.matrix_instructions),
        )  # fmt: skip
    table.caption = f"registers, {_SHARED[vendor]} and {_WAVES[vendor]}: least/median/most"
    if vendor == "hip":
        table.caption += "; VGPRs include AGPRs"
    return table


def _kernels_table(found: Sequence[Checked], vendor: str) -> Table:
    """One row per kernel of a vendor."""
    table = Table(title="Kernels", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("arch", no_wrap=True)
    for name in ("problem (row-major m x n x k)", "solution"):
        table.add_column(name, overflow="fold")
    heads = ("threads", *_REGISTERS[vendor], _SHARED[vendor], *_SPILLS[vendor], _WAVES[vendor])
    for name in heads:
        table.add_column(name, justify="right")
    table.add_column("matrix instructions", overflow="fold")
    for one in found:
        what = one.candidate
        table.add_row(
            what.arch, report.problem_text(what.problem), what.solution.id, str(what.threads),
            *_figures(one, vendor), _counts(one.matrix_instructions),
        )  # fmt: skip
    return table


def _figures(one: Checked, vendor: str) -> list[str]:
    """Registers to occupancy of one kernel; a kernel that does not compile has none."""
    taken, resident = one.resources, one.occupancy
    if taken is None:
        return ["failed"]
    registers, spills = [taken.registers], [taken.spill_bytes]
    if vendor == "hip":
        registers += [taken.accumulation_registers, taken.scalar_registers]
        spills += [taken.scratch_bytes]
    waves = "unknown" if resident is None else f"{resident.waves:.10g} ({resident.limit})"
    return [*map(_number, registers), str(taken.shared_bytes), *map(_number, spills), waves]


def _counts(counted: Mapping[str, int] | None) -> str:
    """Matrix instructions with how often a kernel has each."""
    return _names(None if counted is None else [f"{count} {name}" for name, count in counted.items()])


def _names(names: Sequence[str] | None) -> str:
    return "not counted" if names is None else " ".join(names) or "none"


def _range(values: tuple[float, float, float] | None) -> str:
    return "" if values is None else "/".join(f"{value:.10g}" for value in values)


def _number(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    kernels.command(name="space")(space)
    app.add_typer(kernels, name="kernels")
