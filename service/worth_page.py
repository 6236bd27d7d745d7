"""The report of what tuning is worth as one HTML file: it opens offline, loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import Any

from backends.counted import counted
from backends.wire import problem_from_wire
from service.report import problem_text, time_text
from service.svg import SERIES, Axis, Chart, bars, decades

Values = Mapping[str, Any]

_STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1a202c;--soft:#4a5568;--line:#cbd5e0;--card:#f7fafc;
--s0:#0b6e99;--s1:#c05621;--s2:#2f855a;--s3:#6b46c1;--s4:#b83280;--s5:#718096}
@media(prefers-color-scheme:dark){:root{
--back:#12161c;--text:#e6e9ee;--soft:#a3adba;--line:#38424f;--card:#1b222b;
--s0:#5ab4dc;--s1:#f0965a;--s2:#6cc391;--s3:#b19cf0;--s4:#ef87bd;--s5:#a3adba}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 16px 48px}h1{font-size:1.6em;margin:0 0 4px}
h2{font-size:1.15em;margin:36px 0 4px}p{margin:4px 0 12px;color:var(--soft)}code{overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:20px 0}
dl div{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:10px 12px}
dt{color:var(--soft);font-size:.85em}dd{margin:0;font-size:1.35em;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92em;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}.right{text-align:right}
svg{display:block;width:100%;height:auto;margin:8px 0}.label{fill:var(--soft);font-size:12px}
.grid{stroke:var(--line);fill:none;stroke-width:.7}.axis{stroke:var(--soft);fill:none}
.line{fill:none;stroke-width:2}.hollow{fill:none;stroke-opacity:.7}.mark{fill-opacity:.8}
"""
#: What a page of this kind may load: nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def worth_page(report: Values, at: str) -> str:
    """The page of a report with detail (service.worth.worth_report()); `at`: when it was asked for."""
    detail = report["detail"]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>What tuning is worth on {escape(report['device_class'])}</title>",
        f"<style>{_STYLE}{_series()}</style></head><body><main>",
        *_heading(report, at),
        *_figures(report),
    ]
    if report["problems"]["tuned"]:
        parts += [*_distribution(report), *_curve(detail), *_roofline(detail["roofline"]), *_gains(detail)]
    parts += [*_next(report), *_stale(report), *_environments(detail)]
    return "\n".join([*parts, "</main></body></html>", ""])


def _series() -> str:
    strokes = "".join(
        f".line.series{n},.hollow.series{n}{{stroke:var(--s{n})}}"
        f".bar.series{n},.mark.series{n},.key.series{n}{{fill:var(--s{n})}}"
        for n in range(SERIES)
    )
    return f"{strokes}\n"


def _heading(report: Values, at: str) -> Iterator[str]:
    yield "<h1>What tuning is worth</h1>"
    only = [f"{name} {report[name]}" for name in ("list", "family", "dtype") if report[name] is not None]
    words = [report["device_class"], f"policy {report['policy_id']}", *(f"only {text}" for text in only)]
    yield f"<p><code>{escape(', '.join(words))}</code></p>"
    yield f"<p>gemmtune {escape(version('gemmtune'))}, {escape(at)}</p>"


def _figures(report: Values) -> Iterator[str]:
    problems, seconds = report["problems"], report["seconds"]
    judged = ", ".join(f"{problems[name]} {name.upper()}" for name in ("win", "tie", "loss"))
    rows = [("problems tuned", str(problems["tuned"])), ("verdicts", judged)]
    rows += [("not tuned", str(problems["untuned"]))]
    if problems["tuned"]:
        rows += [
            ("geometric mean", f"{report['geometric_mean']:.3f}x"),
            ("all calls together", f"{seconds['speedup']:.3f}x"),
            ("saved of all calls", f"{_time(seconds['saved'])} of {_time(seconds['baseline'])}"),
        ]
    if seconds["tuned_share"] is not None:
        rows.append(("of the time is tuned", f"{seconds['tuned_share']:.1%}"))
    yield "<dl>"
    for name, value in rows:
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl>"
    if problems["uncounted"]:
        several = "problems have no count of calls and count"
        said = counted(problems["uncounted"], "problem has no count of calls and counts", several)
        yield f"<p>{said} as called once.</p>"


def _distribution(report: Values) -> Iterator[str]:
    yield "<h2>Speed-ups</h2>"
    named = ", ".join(f"{one['percent']}th {one['speedup']:.2f}x" for one in report["percentiles"])
    yield (
        "<p>Each tuned problem counts once. Where the default stays, the speed-up is 1. Percentiles: "
        f"{named}.</p>"
    )
    values = [
        ("default" if not place else f"{one['low']:g}x", float(one["problems"]))
        for place, one in enumerate(report["detail"]["distribution"])
    ]
    yield bars("Problems by speed-up", values, "problems", "speed-up from")


def _curve(detail: Values) -> Iterator[str]:
    curve = detail["curve"]
    yield "<h2>fast_p, and the regret of the default</h2>"
    yield (
        "<p>The share of problems with a speed-up of at least p. Read downwards it is the regret of the "
        "default: where the curve is at 30%, keeping the default costs 70% of the problems less than that "
        "factor. Weighted by time, a problem counts as much as all its calls take with the default.</p>"
    )
    last = curve[-1]["p"]
    ticks = [tick for tick in (1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100) if tick <= last]
    chart = Chart(
        "Share of problems with a speed-up of at least p",
        Axis(1.0, last, "p", ticks, "{:g}x".format, log=True),
        Axis(0.0, 1.0, "share", (0, 0.25, 0.5, 0.75, 1), "{:.0%}".format),
    )
    for series, (name, title) in enumerate((("share", "problems"), ("time_share", "weighted by time"))):
        chart.steps([(one["p"], one[name]) for one in curve], series, title)
    yield str(chart)


def _roofline(found: Values) -> Iterator[str]:
    rows, memory = found["problems"], found["bytes_per_second"]
    if not rows:
        return
    yield "<h2>Roofline</h2>"
    mean = sum(one["share"] for one in rows) / len(rows)
    yield (
        f"<p>The {len(rows)} tuned problems that take most time, with their winners (filled) and their "
        f"defaults (hollow). The mean share of the roofline is {mean:.0%}. The ceilings are measured, not a "
        "data sheet's.</p>"
    )
    rates = [one["flops_per_second"] for one in rows] + [one["baseline_flops_per_second"] for one in rows]
    ceilings: Mapping[str, float] = found["flops_per_second"]
    x = _range([one["intensity"] for one in rows])
    y = _range([*rates, *ceilings.values()])
    chart = Chart(
        "Operations per second of winners and defaults by arithmetic intensity",
        Axis(*x, "operations per byte", decades(*x), "{:g}".format, log=True),
        Axis(*y, "operations per second", decades(*y), _si, log=True),
        height=380.0,
        legend_below=True,
    )
    if memory:
        first, last = max(x[0], y[0] / memory), min(x[1], y[1] / memory)
        if first < last:
            chart.line([(first, first * memory), (last, last * memory)], 5, f"memory, {_si(memory)}B/s")
    for dtype, rate in ceilings.items():
        start = max(x[0], rate / memory) if memory else x[0]
        if start < x[1]:
            chart.line([(start, rate), (x[1], rate)], 5, f"{dtype}, {_si(rate)}FLOP/s")
    for series, name, title, hollow in (
        (1, "baseline_flops_per_second", "default", True), (0, "flops_per_second", "winner", False),
    ):  # fmt: skip
        marks = [
            (one["intensity"], one[name], f"{one['problem_id']}: {title}, {_si(one[name])}FLOP/s")
            for one in rows
        ]
        chart.points(marks, series, title, hollow)
    yield str(chart)


def _range(values: Iterable[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis, with room on either side."""
    found = [value for value in values if value > 0]
    return min(found) / 1.5, max(found) * 1.5


def _gains(detail: Values) -> Iterator[str]:
    if not detail["gains"]:
        return
    yield "<h2>Largest gains</h2>"
    rows = [
        (
            _problem(one["problem"]), f"{one['calls']:,}",
            f"{one['baseline_name']}, {_time(one['baseline_seconds'])}",
            f"{one['family']}, {_time(one['seconds'])}", f"{one['speedup']:.2f}x",
            _time(one["saved_seconds"]),
        )
        for one in detail["gains"]
    ]  # fmt: skip
    heads = ("problem (row-major m x n x k)", "calls", "default", "winner", "speed-up", "saved of all calls")
    yield _table(heads, rows, right=(1, 4, 5))


def _next(report: Values) -> Iterator[str]:
    if not report["next"]:
        return
    yield "<h2>Tune next</h2>"
    yield "<p>Problems without a verdict. The saving is an estimate from the nearest tuned problems.</p>"
    rows = []
    for one in report["next"]:
        estimate = one["estimate"]
        said = (
            ("unknown", "")
            if estimate is None
            else (_time(one["saving_seconds"]), f"{estimate['speedup']:.2f}x")
        )
        rows.append((_problem(one["problem"]), f"{one['calls']:,}", *said))
    yield _table(("problem (row-major m x n x k)", "calls", "saving", "speed-up"), rows, right=(1, 2, 3))


def _stale(report: Values) -> Iterator[str]:
    stale, count = report["stale"], report["problems"]["stale"]
    if not count:
        return
    yield "<h2>Stale</h2>"
    yield (
        f"<p>{counted(count, 'verdict was', 'verdicts were')} measured with what is no longer there; "
        f"this saves {_time(stale['saved_seconds'])} of the above.</p>"
    )
    yield _table(
        ("what has changed", "problems"),
        [(one["reason"], str(one["problems"])) for one in stale["reasons"]],
        right=(1,),
    )


def _environments(detail: Values) -> Iterator[str]:
    if not detail["environments"]:
        return
    yield "<h2>Environment</h2>"
    rows = []
    for one in detail["environments"]:
        content = one["environment"]
        libraries = ", ".join(
            f"{name} {build}" for name, build in sorted(content.get("libraries", {}).items())
        )
        driver = ", ".join(
            filter(None, (content.get("driver"), content.get("runtime"), content.get("partition")))
        )
        known = "yes" if one["present"] else "no"
        rows.append(
            (
                one["environment_id"],
                content.get("product", ""),
                driver,
                libraries,
                known,
                str(one["problems"]),
            )
        )
    heads = ("environment", "device", "driver, runtime", "libraries", "present", "problems")
    yield _table(heads, rows, right=(5,))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: tuple[int, ...] = ()) -> str:
    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=right' if place in right else ''}>{escape(text)}</{tag}>"
            for place, text in enumerate(texts)
        )

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', heads)}</tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def _problem(wire: Values) -> str:
    return problem_text(problem_from_wire(dict(wire)))


def _time(seconds: float) -> str:
    return time_text(seconds) if seconds > 0 else "0 s"


def _si(value: float) -> str:
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g} "
