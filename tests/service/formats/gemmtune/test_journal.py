"""Journals of bare nodes: what the tuner writes is what is imported."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem, from_linear
from service.formats import READERS, Entry, Imported, ImportedSession, Rejected, read_file, read_stream
from tests.service.formats.made import BASELINE, CPU, H200, LINEAR, PACKED, POLICY, outcomes
from tuners.decide import Judgement, Verdict
from tuners.intervals import Interval
from tuners.journal import Journal
from tuners.session_store import Result, session_key

OTHER = from_linear(2, 64, 64, "fp32")
OUTCOME = Outcome(PACKED, Phase.SCREEN, Status.OK, (1e-5, 2e-5), {"checks": 3})
VERDICT = Verdict(
    Judgement.WIN, BASELINE.id, "torch", PACKED.id, 1e-5, 2e-5, Interval(1.5, 2.0, float("inf")),
    (PACKED.id,), 12, "faster",
)  # fmt: skip


def start(of: GemmProblem, /, **changed: Any) -> dict[str, Any]:
    return {
        "problem": of.to_dict(), "problem_id": of.id,
        "environment": CPU.to_dict(), "environment_id": CPU.id,
        "policy": POLICY.to_dict(), "policy_id": POLICY.id,
        "budget": {"seconds": 2.0}, "search": {"strategy": "exhaustive", "seed": 0}, "rule": {"margin": 0.02},
        **changed,
    }  # fmt: skip


def result(
    problem: GemmProblem, verdict: Verdict | None = VERDICT, error: str | None = None
) -> dict[str, Any]:
    made = Result(problem, verdict, error, 0.5, "memory", {"replayed": 0}, ("a note",))
    return json.loads(json.dumps(made.to_dict()))  # type: ignore[no-any-return]


def line(kind: str, values: Any, session: object = "s1", **changed: Any) -> str:
    return json.dumps({"type": kind, "version": 1, "session": session, kind: values, **changed})


def read(*lines: str, end: str = "\n") -> Imported:
    return read_stream(io.BytesIO((end.join(lines) + end).encode()), "journal.jsonl", "journal")


def test_a_journal_as_the_tuner_writes_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "results.jsonl")
    keys = [session_key(p, CPU, POLICY, 0) for p in (LINEAR, OTHER)]
    journal.write("start", keys[0], start(LINEAR))
    journal.write("outcome", keys[0], OUTCOME.to_dict())
    journal.write("result", keys[0], result(LINEAR), sync=True)
    journal.write("start", keys[1], start(OTHER))
    journal.write("outcome", keys[1], OUTCOME.to_dict())
    journal.close()
    imported = read_file(tmp_path / "results.jsonl")
    assert (imported.format, imported.rejected, imported.lines) == ("journal", [], 5)
    assert [(p.problem, p.count, p.keys) for p in imported.problems] == [(LINEAR, 1, ()), (OTHER, 1, ())]
    first, second = imported.sessions
    assert (first.key, first.line, first.problem) == (keys[0], 1, LINEAR)
    assert (first.environment, first.policy) == (CPU, POLICY)
    assert first.start == start(LINEAR)
    assert list(first.outcomes) == [OUTCOME]
    assert first.result == result(LINEAR)
    assert Result.from_dict(first.result).verdict == VERDICT
    assert (second.key, second.line, second.result) == (keys[1], 4, None)


def test_a_session_goes_on_further_down() -> None:
    again = start(LINEAR, budget={"seconds": 9.0})
    imported = read(
        line("start", start(LINEAR)),
        line("outcome", OUTCOME.to_dict()),
        line("result", result(LINEAR)),
        line("start", start(OTHER), "s2"),
        line("start", again),
        line("outcome", OUTCOME.to_dict()),
    )
    assert imported.rejected == []
    assert [(s.key, len(s.outcomes), s.result) for s in imported.sessions] == [
        ("s1", 2, None),
        ("s2", 0, None),
    ]
    assert imported.sessions[0].start["budget"] == {"seconds": 9.0}
    assert [p.count for p in imported.problems] == [1, 1]


def test_a_torn_last_line_is_one_rejected_line() -> None:
    whole = line("start", start(LINEAR)) + "\n" + line("outcome", OUTCOME.to_dict())
    imported = read_stream(io.BytesIO(whole[:-10].encode()), "torn")
    assert imported.format == "journal"
    assert [(r.line, r.reason[:8]) for r in imported.rejected] == [(2, "no JSON:")]
    assert len(imported.sessions) == 1


def test_a_verdict_with_targets() -> None:
    plain = _verdict(targets={"bundle": _target()})
    imported = read(line("start", start(LINEAR)), line("outcome", OUTCOME.to_dict()), line("result", plain))
    assert imported.rejected == []
    assert imported.sessions[0].result == plain


def test_a_result_without_a_verdict() -> None:
    imported = read(line("start", start(LINEAR)), line("result", result(LINEAR, None, "no baseline")))
    assert imported.rejected == []
    assert imported.sessions[0].result == result(LINEAR, None, "no baseline")


def _outcome(**changed: Any) -> dict[str, Any]:
    return {**OUTCOME.to_dict(), **changed}


def _result(**changed: Any) -> dict[str, Any]:
    return {**result(LINEAR), **changed}


def _verdict(**changed: Any) -> dict[str, Any]:
    return _result(verdict={**result(LINEAR)["verdict"], **changed})


def _tried(**changed: Any) -> dict[str, Any]:
    return {"name": "torch", "solution": "t", "seconds": None, "fate": "failed", "reason": "", **changed}


def _target(**changed: Any) -> dict[str, Any]:
    plain = result(LINEAR)["verdict"]
    same = ("judgement", "seconds", "baseline_seconds", "speedup", "rounds", "reason")
    return {**{name: plain[name] for name in same}, "solution": plain["winner"], "proven": True, **changed}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5", "no line of a journal: its type must be one of start, outcome, result"),
        ('{"type":"end"}', "no line of a journal"),
        ('{"m":1,"n":2,"k":3}', "no line of a journal"),
        (line("outcome", OUTCOME.to_dict(), version=2), "version 2 of the journal's form; this"),
        (line("outcome", OUTCOME.to_dict(), version=True), "version True of the journal's form"),
        (line("outcome", OUTCOME.to_dict(), session=5), "session must be a key, not 5"),
        (line("outcome", OUTCOME.to_dict(), session=""), "session must be a key"),
        (line("outcome", OUTCOME.to_dict(), session="x" * 500), "session must be a key"),
        (line("outcome", OUTCOME.to_dict(), session="s9"), "session s9 has no start before this line"),
        (line("outcome", None), "outcome is missing, or no object"),
        (line("outcome", {}), "outcome: 'solution' is missing"),
        (line("outcome", _outcome(solution=5)), "outcome: "),
        (line("outcome", _outcome(phase="warm")), "outcome: 'warm' is not a valid Phase"),
        (line("outcome", _outcome(status="fine")), "outcome: 'fine' is not a valid Status"),
        (line("outcome", _outcome(samples=[0])), "outcome: samples must be seconds above 0"),
        (line("outcome", _outcome(samples=["1"])), "outcome: samples must be seconds above 0"),
        (line("outcome", _outcome(samples=5)), "outcome: "),
        (line("outcome", _outcome(evidence=5)), "outcome: "),
        (line("outcome", _outcome(evidence={"packing": 5})), "must be a mapping, not int"),
        (line("outcome", _outcome(evidence={"packing": {}})), "outcome: PackingCost"),
        (
            line("outcome", _outcome(evidence={"packing": {"layout": "x", "bytes": "8", "us": 1}})),
            "outcome: a packed copy's bytes must be an integer",
        ),
        (line("outcome", _outcome(solution={**PACKED.to_dict(), "id": "x"})), "id 'x' does not match"),
        (line("outcome", OUTCOME.to_dict()).replace("1e-05", "NaN"), "NaN is no JSON number"),
        (line("result", {}), "result: 'verdict' is missing"),
        (line("result", _result(verdict=5)), "result: "),
        (line("result", _result(verdict=None)), "result: it has neither a verdict nor an error"),
        (line("result", _result(problem_id="x")), "result: it is of another problem than its session"),
        (line("result", result(OTHER)), "result: it is of another problem than its session"),
        (line("result", _verdict(judgement="DRAW")), "result: 'DRAW' is not a valid Judgement"),
        (line("result", _verdict(seconds=None)), "the verdict's seconds and speed-up must"),
        (line("result", _verdict(seconds="fast")), "must be numbers above 0"),
        (line("result", _verdict(speedup={"low": 1, "mid": 0, "high": 2})), "must be numbers above 0"),
        (line("result", _verdict(speedup={"low": "x", "mid": 1, "high": 2})), "must be numbers above 0"),
        (line("result", _verdict(winner=5)), "the verdict's ids must be texts"),
        (line("result", _verdict(tie_set=[5])), "the verdict's ids must be texts"),
        (line("result", _verdict(targets={"bundle": _target(solution=5)})), "ids must be texts"),
        (line("result", _verdict(targets={"bundle": _target(seconds=0)})), "must be numbers above 0"),
        (line("result", _verdict(targets={"bundle": _target(rounds="x")})), "must be integers"),
        (line("result", _verdict(tied="x")), "rounds and tied must be integers"),
        (line("result", _verdict(tied=0)), "rounds and tied must be integers"),
        (line("result", _verdict(fastest=5)), "the verdict's ids must be texts"),
        (line("result", _verdict(baselines=[5])), "result: "),
        (line("result", _verdict(baselines=[_tried(fate="lucky")])), "'lucky' is not a valid Fate"),
        (line("result", _verdict(baselines=[_tried(reason=5)])), "the verdict's ids must be texts"),
        (line("result", _verdict(baselines=[_tried(seconds=0)])), "a default's seconds must be"),
        (line("result", _verdict(baselines=[_tried(seconds="1")])), "a default's seconds must be"),
        (line("result", _verdict(confirmation=5)), "result: "),
        (line("result", _verdict(confirmation={"agrees": False})), "'speedup' is missing"),
        (
            line("result", _verdict(confirmation={"agrees": True, "reason": "", "speedup": None})),
            "if it disagrees, none",
        ),
        (line("result", _verdict(packing=5)), "result: "),
        (line("result", _verdict(packing={"layout": "x", "bytes": 8})), "missing 1 required positional"),
        (line("result", _verdict(packing={"layout": 5, "bytes": 8, "us": 1})), "layout must be a text"),
        (line("result", _verdict(packing={"layout": "x", "bytes": 0, "us": 1})), "bytes must be an integer"),
        (line("result", _verdict(packing={"layout": "x", "bytes": 8, "us": "1"})), "number of microseconds"),
        (line("result", _verdict(targets={"bundle": _target(proven=1)})), "must be true or false"),
        (line("result", _verdict(targets={"bundle": _target(judgement="?")})), "result: "),
        (line("result", _verdict(targets=[])), "result: "),
        (line("result", _verdict(more=5)), "result: "),
        (line("start", start(LINEAR, problem=5), "s2"), "start: problem is missing, or no object"),
        (line("start", start(LINEAR, rule=None), "s2"), "start: rule is missing"),
        (line("start", start(LINEAR, options=[]), "s2"), "start: options must be an object"),
        (line("start", start(LINEAR, problem_id="x"), "s2"), "problem_id 'x' does not belong to its content"),
        (line("start", start(LINEAR, environment_id="x"), "s2"), "environment_id 'x' does not belong"),
        (line("start", start(LINEAR, policy_id=None), "s2"), "policy_id None does not belong"),
        (line("start", start(LINEAR, environment=H200.to_dict()), "s2"), "environment_id"),
        (line("start", start(LINEAR, policy={"mode": "x"}), "s2"), "policy: mode 'x' is unknown"),
        (line("start", start(LINEAR, problem={**LINEAR.to_dict(), "m": 0}), "s2"), "m must be between 1"),
        (line("start", start(OTHER)), "session s1 was started on line 1 for something else"),
    ],
)  # fmt: skip
def test_bad_lines_have_a_reason(text: str, why: str) -> None:
    imported = read(line("start", start(LINEAR)), text, line("outcome", OUTCOME.to_dict()))
    assert [r.line for r in imported.rejected] == [2]
    assert why in imported.rejected[0].reason
    assert [(s.key, len(s.outcomes), s.result) for s in imported.sessions] == [("s1", 1, None)]


VALUES: list[Any] = [None, True, 0, -1, 1.5, "", "x", [], [1], {}, {"a": 1}, [[]], "\ud800"]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_value_in_any_part_is_read_or_rejected(value: object) -> None:
    good = [("start", start(LINEAR)), ("outcome", OUTCOME.to_dict()), ("result", result(LINEAR))]
    first = line("start", start(LINEAR))
    for kind, values in good:
        tried = [{**values, name: value} for name in values]
        for name, part in values.items():
            if isinstance(part, dict):
                tried += [{**values, name: {**part, inner: value}} for inner in part]
        for wrong in tried:
            imported = read(first, line(kind, wrong))
            assert len(imported.rejected) <= 1
            assert len(imported.sessions) == 1


def test_detection() -> None:
    reader = READERS["journal"]
    assert reader.detect(line("start", start(LINEAR)).encode())
    assert reader.detect(b"\xef\xbb\xbf\r\n" + line("outcome", OUTCOME.to_dict()).encode() + b"\r\n")
    assert not reader.detect(b'{"m":1,"n":2,"k":3,"dtype":"fp32"}')
    found = outcomes(reader, reader.example)
    assert [type(part) for part in found] == [Entry, ImportedSession]
    assert not any(isinstance(part, Rejected) for part in found)
