"""The leaderboard command: each tuned problem with its default, its best and its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest
from math import exp, fsum, log
from pathlib import Path
from typing import Annotated, Any

import typer

from backends.counted import counted
from backends.environment import DeviceClass
from backends.errors import InvalidProblem
from backends.wire import problem_from_wire
from db.classes import classes
from db.engine import reading
from db.leaderboard import Board
from db.worth import Scope
from service import report
from service.commands.common import (
    Device,
    FormatName,
    Json,
    Layers,
    Server,
    Tokens,
    Tp,
    out,
    print_json,
    read_input,
    tell_rejected,
)
from service.formats.core.export import ExportRow
from service.formats.core.row_text import problem_wire
from service.leaderboard import ranked
from service.model.rows import HereRows, ThereRows
from service.remote import Remote, class_of
from service.settings import Settings
from service.startup import open_database
from service.text_table import plain_table
from tuners.policy import MeasurementPolicy

#: What a board is ordered by, and whether the largest comes first.
_SORTS = {"saved": True, "speedup": True, "seconds": False, "decided": True}
#: Rows of a page of a service: what services send by default.
_PAGE = 100
_JUDGEMENTS = ("WIN", "TIE", "LOSS")


def leaderboard(
    file: Annotated[
        Path | None,
        typer.Argument(help="Only the problems of this file, with its call counts; - reads standard input."),
    ] = None,
    format_name: FormatName = None,
    tp: Tp = None,
    tokens: Tokens = None,
    layers: Layers = None,
    dtype: Annotated[
        str | None, typer.Option(help="Only problems with A of this type; of a model: its type.")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Only problems that this family won.")] = None,
    judgement: Annotated[str | None, typer.Option(help="Only WIN, TIE or LOSS.")] = None,
    sort: Annotated[str, typer.Option(help=f"By {', '.join(_SORTS)}.")] = "saved",
    limit: Annotated[int, typer.Option(min=1, help="Problems that are listed.")] = 20,
    device: Device = None,
    policy: Annotated[
        str | None, typer.Option(help="A measurement policy's id; default: that of a tuning without options.")
    ] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List tuned problems with their default, their best known way, the ratio and the verdict: those that
    save most of all calls first."""
    if sort not in _SORTS:
        raise InvalidProblem(f"--sort {sort[:40]!r} must be one of {', '.join(_SORTS)}")
    if judgement is not None and judgement.upper() not in _JUDGEMENTS:
        raise InvalidProblem(f"--judgement {judgement[:40]!r} must be one of {', '.join(_JUDGEMENTS)}")
    counts = None
    if file is not None:
        read = read_input(file, format_name, tp, tokens, dtype if tp or tokens or layers else None, layers)
        tell_rejected(len(read.rejected) + read.rejected_more, file)
        counts = {item.problem.id: item.count for item in read.problems}
    settings = Settings()
    asked = _Asked(
        device or settings.chosen_device, policy, dtype, family, judgement and judgement.upper(), sort, limit
    )
    answer = _here(settings, asked, counts) if server is None else _there(server, asked, counts)
    if as_json:
        print_json(answer)
    else:
        _show(answer)


@dataclass(frozen=True)
class _Asked:
    """The options of the command."""

    selector: str | None
    policy: str | None
    dtype: str | None
    family: str | None
    judgement: str | None
    sort: str
    limit: int


def _here(settings: Settings, asked: _Asked, counts: dict[str, int] | None) -> dict[str, Any]:
    """Of this machine's database."""
    engine = open_database(settings)
    with reading(engine) as connection:
        found = classes(connection).resolve(asked.selector)
        policy_id = asked.policy or MeasurementPolicy.of(found.vendor).id
        if counts is None:
            board = Board(
                Scope(str(found), policy_id, None, asked.family, asked.dtype),
                asked.judgement,
            )
            return ranked(connection, board, asked.sort, _SORTS[asked.sort], None, asked.limit)
    return _of_file(HereRows(engine).rows(found, policy_id, counts), found, policy_id, asked)


def _there(server: str, asked: _Asked, counts: dict[str, int] | None) -> dict[str, Any]:
    """Of a service, whose pages are joined."""
    with Remote(server) as remote:
        if counts is not None:
            found = class_of(asked.selector, remote.get("/v1/devices")["classes"])
            policy_id = asked.policy or MeasurementPolicy.of(found.vendor).id
            return _of_file(ThereRows(remote).rows(found, policy_id, counts), found, policy_id, asked)
        query = {
            "device": asked.selector, "policy": asked.policy, "dtype": asked.dtype, "family": asked.family,
            "judgement": asked.judgement, "sort": asked.sort,
        }  # fmt: skip
        answer: dict[str, Any] = remote.get("/v1/leaderboard", **query, limit=min(asked.limit, _PAGE))
        items, cursor = answer["items"], answer["next_cursor"]
        while cursor is not None and len(items) < asked.limit:
            page = min(asked.limit - len(items), _PAGE)
            more = remote.get("/v1/leaderboard", **query, limit=page, cursor=cursor)
            items, cursor = items + more["items"], more["next_cursor"]
        return {**answer, "items": items, "next_cursor": cursor}


def _of_file(rows: Iterable[ExportRow], device: DeviceClass, policy_id: str, asked: _Asked) -> dict[str, Any]:
    """Aggregates of a file's problems, and the first rows in their order."""
    judged = Counter[str]()
    ratios: list[float] = []

    def kept() -> Iterable[ExportRow]:
        for row in rows:
            if asked.dtype not in (None, row.problem.dtype_b):
                continue
            if asked.family not in (None, row.solution.family) or asked.judgement not in (
                None,
                row.judgement,
            ):
                continue
            judged[row.judgement] += 1
            ratios.append(_ratio(row))
            yield row

    sign = 1 if _SORTS[asked.sort] else -1

    def place(row: ExportRow) -> Any:
        if asked.sort == "decided":
            return row.decided_at or ""
        return sign * {"saved": _saved, "speedup": _ratio, "seconds": _seconds}[asked.sort](row)

    items = nlargest(asked.limit, kept(), key=place)
    return {
        "device_class": str(device),
        "policy_id": policy_id,
        "sort": asked.sort,
        "problems": {"all": len(ratios), **{name.lower(): judged[name] for name in _JUDGEMENTS}},
        "geometric_mean": exp(fsum(map(log, ratios)) / len(ratios)) if ratios else None,
        "items": [_item(row) for row in items],
    }


def _seconds(row: ExportRow) -> float:
    return row.seconds or 0.0


def _ratio(row: ExportRow) -> float:
    """Baseline time over the winner's; 1 where the default stays."""
    return row.speedup[1] or 1.0 if row.judgement == "WIN" and row.speedup is not None else 1.0


def _saved(row: ExportRow) -> float:
    """Seconds that the winner saves of all counted calls; of one where none is counted."""
    return max(row.count, 1) * (row.baseline_seconds or 0.0) * (1 - 1 / _ratio(row))


def _item(row: ExportRow) -> dict[str, Any]:
    low, mid, high = row.speedup or (None, None, None)
    return {
        "problem_id": row.problem.id,
        "problem": problem_wire(row.problem),
        "calls": row.count or None,
        "judgement": row.judgement,
        "winner_id": row.solution.id,
        "family": row.solution.family,
        "seconds": row.seconds,
        "baseline_name": row.baseline_name,
        "baseline_seconds": row.baseline_seconds,
        "speedup": {"low": low, "mid": mid, "high": high},
        "saved_seconds": _saved(row),
        "session_id": row.session,
        "environment_id": row.environment.id,
        "decided_at": row.decided_at,
    }


def _show(answer: dict[str, Any]) -> None:
    problems = answer["problems"]
    if not problems["all"]:
        out.print(f"nothing was measured on {answer['device_class']} for this", markup=False)
        return
    table = plain_table(
        "problem (row-major m x n x k)", "calls", "default", "best", "ratio", "verdict",
        right=("calls", "ratio"),
    )  # fmt: skip
    for row in answer["items"]:
        ratio = row["speedup"]["mid"] if row["judgement"] == "WIN" else 1.0
        table.add_row(
            report.problem_text(problem_from_wire(row["problem"])), str(row["calls"] or ""),
            f"{report.time_text(row['baseline_seconds'])}\n{row['baseline_name']}",
            f"{report.time_text(row['seconds'])}\n{report.winner_text(row['winner_id'])}",
            f"{ratio or 1.0:.2f}x", row["judgement"],
        )  # fmt: skip
    out.print(table, markup=False)
    judged = ", ".join(f"{problems[name.lower()]} {name}" for name in _JUDGEMENTS)
    listed = len(answer["items"])
    first = f"; the first {listed} are listed" if listed < problems["all"] else ""
    out.print(
        f"{counted(problems['all'], 'problem')} on {answer['device_class']}: {judged}, geometric mean "
        f"{answer['geometric_mean']:.3f}x{first}",
        markup=False, highlight=False,
    )  # fmt: skip


def add_to(app: typer.Typer) -> None:
    """Adds this command."""
    app.command()(leaderboard)
