"""The report as plain text, from the same JSON values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: Checks that are not failures are listed one by one up to this many, else counted by their detail.
LISTED = 24
#: Failures with the same name and outcome that are shown.
FAILURES = 3
#: Different details of such checks that are shown.
DETAILS = 12
_WIDTH = 110
_FACTS = ("solution", "problem", "parameters", "build", "case", "seed", "distribution", "error_over_bound")


def render(report: Mapping[str, Any]) -> str:
    """The text of Report.to_dict()."""
    return "\n".join(_lines(report)) + "\n"


def summary(report: Mapping[str, Any]) -> str:
    """The head of the text, and a line for the first few failures of every name and outcome."""
    lines = list(_head(report))
    for section in report["sections"]:
        failed = [check for check in section["checks"] if check["status"] == "fail"]
        lines += (line for line in _failures(failed) if line.startswith("FAILED"))
    return "\n".join(lines)


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield from _head(report)
    for section in report["sections"]:
        yield from _section(section)


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    program = report["program"]
    yield f"gemmtune self-test: {str(report['status']).upper()}{'' if report['complete'] else ', INCOMPLETE'}"
    yield ""
    rows = {
        "device": report["device_class"] or f"none matches {report['selector']!r}",
        "index": report["index"],
        "gemmtune": f"{program['version'] or 'unknown version'}, commit {program['commit'] or 'unknown'}, "
        f"Python {program['python']}",
        "started": report["started_at"],
        "time": f"{report['seconds']:.0f} of {report['budget_seconds']:g} s",
    }
    yield from (f"{name:<10} {value}" for name, value in rows.items() if value is not None)
    if report["interrupted"]:
        yield "interrupted: the sections below hold what was tested until then"
    yield from (f"note: {note}" for note in report["notes"])
    yield ""
    for section in report["sections"]:
        counts = section["counts"]
        counted = f"{counts['pass']} passed, {counts['fail']} failed, {counts['absent']} not tested"
        yield f"{section['status']:<7} {section['title']:<18} {counted} ({section['seconds']:.1f} s)"


def _section(section: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"== {section['title']}: {section['status']}{'' if section['complete'] else ' (incomplete)'}"
    yield ""
    yield from _figures(section["figures"])
    by_status: dict[str, list[Mapping[str, Any]]] = {"fail": [], "absent": [], "pass": []}
    for check in section["checks"]:
        by_status[check["status"]].append(check)
    yield from _failures(by_status["fail"])
    for status, word in (("absent", "not tested"), ("pass", "passed")):
        yield from _several(by_status[status], word)
    yield from (f"not covered: {what}" for what in section["not_covered"])


def _failures(checks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The first few of every name and outcome; the JSON report has all."""
    shown = Counter[tuple[str, str]]()
    for check in checks:
        key = check["name"], str(check.get("outcome"))
        shown[key] += 1
        if shown[key] <= FAILURES:
            yield from _failed(check)
    for (name, outcome), count in shown.items():
        if count > FAILURES:
            yield f"FAILED {name}: {outcome}: {count - FAILURES} more in the JSON report"


def _failed(check: Mapping[str, Any]) -> Iterator[str]:
    outcome = f" {check['outcome']}:" if check.get("outcome") else ""
    yield f"FAILED {check['name']}:{outcome} {check['detail']}"
    for name in _FACTS:
        if check.get(name) not in (None, {}, ""):
            value = check[name]
            yield f"    {name}: {value if isinstance(value, str) else json.dumps(value)}"
    for name in ("log", "traceback"):
        if check.get(name):
            yield f"    {name}:"
            yield from (f"      {line}" for line in str(check[name]).splitlines())


def _several(checks: Sequence[Mapping[str, Any]], word: str) -> Iterator[str]:
    """One line for a check, or for all with the same name if there are many."""
    if len(checks) <= LISTED:
        for check in checks:
            yield f"{word}: {check['name']}{': ' + check['detail'] if check['detail'] else ''}"
        return
    for name, count in Counter(check["name"] for check in checks).items():
        details = Counter(check["detail"] for check in checks if check["name"] == name and check["detail"])
        if word == "passed" or not details:
            yield f"{word}: {name}: {count}"
            continue
        for detail, times in details.most_common(DETAILS):
            yield f"{word}: {name}: {times} times: {detail}"


def _figures(figures: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Nested values as indented lines; mappings and lists that fit are one line."""
    for name, value in figures.items():
        if value in ({}, [], None):
            continue
        flat = f"{indent}{name}: {_plain(value)}"
        if isinstance(value, Mapping) and (
            len(flat) > _WIDTH or any(isinstance(one, Mapping) for one in value.values())
        ):
            yield f"{indent}{name}:"
            yield from _figures(value, indent + "    ")
        elif isinstance(value, list) and len(flat) > _WIDTH:
            yield f"{indent}{name}:"
            yield from (f"{indent}    {_plain(one)}" for one in value)
        else:
            yield flat
    if figures and not indent:
        yield ""


def _word(value: object) -> bool:
    return " " not in str(value)


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value.items())
    if isinstance(value, list):
        return " ".join(map(_plain, value)) if all(map(_word, value)) else "; ".join(map(_plain, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
