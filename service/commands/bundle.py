"""The command bundle: our own winners as one file, from this machine's database or from a service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import exp, fsum, log
from pathlib import Path
from typing import Annotated, Any

import typer

from backends.cache import BinaryCache
from backends.counted import counted
from backends.environment import resolve
from backends.errors import InvalidProblem
from backends.packages.bundle_file import BundleFile
from db.classes import classes
from db.engine import reading
from service import pretuned as tables
from service.bundle_download import PATH, fetch
from service.bundles import Selection, Workshop, build, target_of
from service.commands.common import (
    OK,
    Device,
    FormatName,
    Json,
    Layers,
    Server,
    compile_progress,
    input_code,
    input_path,
    out,
    print_json,
    tell,
    tell_rejected,
    token_counts,
)
from service.formats import ReadOptions, read_file
from service.formats.core.base import DEFAULTS, Imported
from service.formats.model.config import ModelConfig
from service.gated_products import gated_products
from service.prepacking import ids_packed_or_not
from service.remote import Remote, ServiceError
from service.settings import Settings
from service.startup import open_database
from tuners.policy import MeasurementPolicy


@dataclass(frozen=True)
class _Asked:
    """The options. `problems`: ids, None for all that the class has."""

    output: Path
    device: str | None
    target: str | None
    policy: str | None
    pretuned: str | None
    digest: str | None
    problems: frozenset[str] | None


@dataclass
class _Done:
    """The bundle that was written, and the report of the one that it was taken from, if it is known."""

    bundle: BundleFile
    report: dict[str, Any] | None
    asked: frozenset[str] | None
    rows: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = self.bundle.manifest["rows"]

    @property
    def gain(self) -> float:
        """The geometric mean of the rows' speed-ups."""
        return exp(fsum(log(row["verdict"]["speedup"][1]) for row in self.rows) / len(self.rows))

    def to_dict(self, output: Path) -> dict[str, Any]:
        """Plain JSON values."""
        manifest = self.bundle.manifest
        return {
            "output": str(output),
            "digest": self.bundle.digest,
            "bytes": output.stat().st_size,
            "device_class": manifest["device"]["class"],
            "policy_id": manifest["policy"]["id"],
            "requires": manifest["requires"],
            "rows": len(self.rows),
            "geometric_mean": self.gain,
            "asked": None if self.asked is None else len(self.asked),
            "report": self.report,
        }


def bundle(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file, such as llama.gtb.")],
    device: Device = None,
    problems: Annotated[
        Path | None, typer.Option(help="Only the problems of this file, of any format that tune reads.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Only the problems of a model's config.json, its weights packed or not."),
    ] = None,
    format_name: FormatName = None,
    tp: Annotated[int, typer.Option("--tp", help="Of the model: devices that share each layer.")] = 1,
    tokens: Annotated[
        str | None, typer.Option(help="Of the model: rows of activations, such as 1,16,2048.")
    ] = None,
    layers: Layers = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of the model's weights and activations, where not its own.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Architecture that binaries are for; default: the device's.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Measurement policy's id; default: the device's.")
    ] = None,
    pretuned: Annotated[
        str | None,
        typer.Option(help="From a pre-tuned table, a shipped one or a file; no database and no device."),
    ] = None,
    server: Server = None,
    digest: Annotated[
        str | None,
        typer.Option(help="Of a service: the only digest that is accepted, of its whole bundle."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the kernels of our own that won on a device class, with their launches and verdicts, as one file
    that gemmtune's client loads.

    A bundle is code: a program that loads it runs it. Its digest, which is printed, stands for every byte of
    it. A service on another machine is asked by https alone, or for the bundle of a --digest."""
    settings = Settings()
    options = ReadOptions("", tp, token_counts(tokens), dtype, layers or "fused")
    read = _inputs(problems, format_name, model, options)
    ids = {one.problem.id for found in read for one in found.problems}
    if model is not None:  # how a program packs its weights and activates its experts is its own matter
        ids |= ids_packed_or_not(read[-1])
        ids |= {one.problem.id for one in gated_products(read[-1].problems)}
    if read and not ids:
        raise InvalidProblem(f"no problem in {problems or model}")
    asked = _Asked(output, device, target, policy, pretuned, digest, frozenset(ids) if read else None)
    if digest is not None and server is None:
        raise InvalidProblem("--digest is of a service's bundle: give --server too")
    if asked.pretuned is not None:
        done = _from_table(settings, asked, asked.pretuned, server)
    else:
        done = _here(settings, asked) if server is None else _there(server, settings, asked)
    if as_json:
        print_json(done.to_dict(output))
    else:
        _show(done, output)
    raise typer.Exit(max((input_code(found) for found in read), default=OK))


def _inputs(
    problems: Path | None, format_name: str | None, model: Path | None, options: ReadOptions
) -> list[Imported]:
    """The problems that were asked for, file by file."""
    found = []
    for file, name, told in ((problems, format_name, DEFAULTS), (model, ModelConfig.name, options)):
        if file is not None:
            found.append(read_file(input_path(file), name, told))
            tell_rejected(len(found[-1].rejected) + found[-1].rejected_more, file)
    return found


def _here(settings: Settings, asked: _Asked) -> _Done:
    """From this machine's database."""
    engine = open_database(settings)
    with reading(engine) as connection:
        found = classes(connection).resolve(asked.device or settings.chosen_device)
    policy = asked.policy or MeasurementPolicy.of(found.vendor).id
    chosen = Selection(found, policy, target_of(found, asked.target), asked.problems)
    with _workshop(settings) as workshop:
        built = build(engine, chosen, settings.max_bundle_rows, asked.output, workshop)
    return _Done(BundleFile(built.path), built.report, asked.problems)


def _from_table(settings: Settings, asked: _Asked, name: str, server: str | None) -> _Done:
    """From a pre-tuned table."""
    if server is not None:
        raise InvalidProblem("--pretuned and --server both name the rows: give one (GEMMTUNE_SERVER is one)")
    table = tables.read_table(tables.named(name))
    for line in table.rejected:
        tell(line, "yellow")
    tell_rejected(len(table.rejected), name)
    if asked.device is not None:
        resolve(asked.device, [table.device])
    with _workshop(settings) as workshop:
        built = tables.build_bundle(
            table, asked.output, workshop, settings.max_bundle_rows, target=asked.target,
            policy=asked.policy, problem_ids=asked.problems,
        )  # fmt: skip
    return _Done(BundleFile(built.path), built.report, asked.problems)


@contextmanager
def _workshop(settings: Settings) -> Iterator[Workshop]:
    """How rows are compiled here, shown on a terminal."""
    cache = BinaryCache(settings.cache_dir / "kernels")
    with compile_progress("reading the rows") as progress:
        yield Workshop(cache, settings.max_compiles, progress=progress)


def _there(server: str, settings: Settings, asked: _Asked) -> _Done:
    """From a service: the class's bundle, of which the asked problems' rows are taken here."""
    with Remote(server) as remote, compile_progress("reading the rows") as progress:
        digest = fetch(
            remote, asked.output, progress, asked.problems, device=asked.device or settings.chosen_device,
            target=asked.target, policy=asked.policy, digest=asked.digest,
        )  # fmt: skip
        try:
            report = remote.get(f"{PATH}/report", digest=digest)
        except ServiceError:  # it has built many others since: the bundle itself is right
            report = None
    return _Done(BundleFile(asked.output), report, asked.problems)


def _show(done: _Done, output: Path) -> None:
    rows, manifest = len(done.rows), done.bundle.manifest
    out.print(
        f"{output}: {counted(rows, 'row')} of {manifest['device']['class']}, "
        f"geometric mean {done.gain:.3f}x, "
        f"{counted(len(manifest['binaries']), 'binary', 'binaries')}, {output.stat().st_size} bytes",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    out.print(f"digest {done.bundle.digest}", markup=False, highlight=False, soft_wrap=True)
    if done.asked is not None:
        have = "has" if rows == 1 else "have"
        tell(f"{rows} of the {counted(len(done.asked), 'problem')} asked for {have} a row")
    if done.report is None:
        return
    for reason, omitted in done.report["omitted"].items():
        tell(f"{omitted['count']} left out: {reason}", "yellow")
    for count, what in (
        (done.report["tune_again"], "of them were measured before kernels of our own were judged"),
        (done.report["one_seed"], "written on the evidence of one seed"),
    ):
        if count:
            tell(f"{count} {what}: tune again (tune --force)", "yellow")


def add_to(app: typer.Typer) -> None:
    """Adds this command."""
    app.command()(bundle)
