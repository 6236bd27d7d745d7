"""The report of what tuning is worth, and a comparison of environments, as text of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from backends.counted import counted
from backends.wire import problem_from_wire
from service.report import problem_text, time_text

COLUMNS = 80
#: How an estimate's basis is shown.
_BASES = {"kind": "same kind", "dtype": "same type", "any": "other types"}

Values = Mapping[str, Any]


def worth_text(report: Values) -> str:
    """The report (service.worth.worth_report()) as text."""
    return "\n".join([*_heading(report), *_speedups(report), *_next(report), *_stale(report)])


def diff_text(diff: Values, most: int) -> str:
    """A comparison (service.diff.compare()) as text: the `most` winners that are not kept and saved most."""
    lines = _wrapped(f"{diff['device_class']}, policy {diff['policy_id']}")
    lines += _wrapped(f"changed: {', '.join(diff['changes']) or 'nothing'}")
    counts = ", ".join(f"{count} {fate}" for fate, count in diff["counts"].items())
    lines += _wrapped(f"earlier winners: {counts}")
    others = [one for one in diff["items"] if one["fate"] != "kept"]
    others.sort(key=lambda one: one["before"]["seconds"] - one["before"]["baseline_seconds"])
    for one in others[:most]:
        before, after = one["before"], one["after"]
        then = "" if after is None else f", then {after['judgement']} {after['speedup']:.2f}x"
        problem = problem_text(problem_from_wire(one["problem"]))
        lines += _wrapped(f"{one['fate']:<8} {problem}: {before['speedup']:.2f}x{then}; {one['reason']}")
    if len(others) > most:
        lines.append(f"and {len(others) - most} more")
    return "\n".join(lines)


def _heading(report: Values) -> Iterator[str]:
    problems, seconds = report["problems"], report["seconds"]
    yield from _wrapped(f"{report['device_class']}, policy {report['policy_id']}")
    only = [f"{name} {report[name]}" for name in ("list", "family", "dtype") if report[name] is not None]
    yield from _wrapped(f"only {', '.join(only)}") if only else ()
    judged = ", ".join(f"{problems[name]} {name.upper()}" for name in ("win", "tie", "loss"))
    yield from _wrapped(
        f"{counted(problems['tuned'], 'problem')} tuned ({judged}), {problems['untuned']} not tuned"
    )
    if problems["uncounted"]:
        several = "have no count of calls and count"
        said = counted(problems["uncounted"], "has no count of calls and counts", several)
        yield from _wrapped(f"{said} as called once")
    if not problems["tuned"]:
        return
    yield from _wrapped(
        f"all calls: {_time(seconds['baseline'])} with the defaults, {_time(seconds['saved'])} saved "
        f"({seconds['speedup']:.3f}x)"
    )
    share = seconds["tuned_share"]
    if share is not None:
        yield from _wrapped(
            f"{share:.1%} of the time is tuned"
            + (f"; the rest is an estimate of {_time(seconds['untuned_estimate'])}" if share < 1 else "")
        )


def _speedups(report: Values) -> Iterator[str]:
    if not report["fast_p"]:
        return
    yield ""
    yield f"speed-ups of tuned problems, geometric mean {report['geometric_mean']:.3f}x"
    yield "  at least" + "".join(f"{one['p']:>9.2f}x" for one in report["fast_p"])
    yield "  share   " + "".join(f"{one['share']:>10.1%}" for one in report["fast_p"])
    yield "  percentile " + "".join(f"{one['percent']:>10}" for one in report["percentiles"])
    yield "  speed-up   " + "".join(f"{one['speedup']:>9.3f}x" for one in report["percentiles"])


def _next(report: Values) -> Iterator[str]:
    if not report["next"]:
        return
    yield ""
    yield from _wrapped("tune next (the saving of all calls is an estimate from the nearest tuned problems)")
    yield f"  {'saving':>8} {'speed-up':>8} {'calls':>8}  {'nearest':<17} problem"
    for one in report["next"]:
        estimate = one["estimate"]
        saving, speedup, near = "unknown", "", "nothing is tuned"
        if estimate is not None:
            saving, speedup = _time(one["saving_seconds"]), f"{estimate['speedup']:.2f}x"
            near = f"{estimate['distance']:.1f}, {_BASES[estimate['basis']]}"
        problem = problem_text(problem_from_wire(one["problem"]))
        line = f"  {saving:>8} {speedup:>8} {one['calls']:>8}  {near:<17} {problem}"
        yield line if len(line) <= COLUMNS else line[: COLUMNS - 3] + "..."
    more = report["problems"]["untuned"] - len(report["next"])
    if more:
        yield f"  and {more} more"


def _stale(report: Values) -> Iterator[str]:
    stale, count = report["stale"], report["problems"]["stale"]
    if not count:
        return
    yield ""
    saves = counted(count, "row, which saves", "rows, which save")
    yield from _wrapped(f"stale: {saves} {_time(stale['saved_seconds'])} of the above")
    for one in stale["reasons"]:
        yield from _wrapped(f"{one['problems']:>6}  {one['reason']}", "  ", " " * 10)


def _wrapped(text: str, first: str = "", rest: str = "  ") -> list[str]:
    return wrap(text, COLUMNS, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _time(seconds: float) -> str:
    return time_text(seconds) if seconds > 0 else "0 s"
