"""The verdicts of export targets for sessions that ended before targets were judged, from their finals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from backends.export_targets import targets_of
from backends.outcome import Status
from db.targets import StoredFinal
from tuners.decide import DecisionRule, Final, Judgement, Verdict, judge_targets, tie_order

_RULE = frozenset(field.name for field in fields(DecisionRule))


def derive_targets(stored: StoredFinal) -> Mapping[str, Mapping[str, Any]]:
    """The targets' verdicts as plain values, by the session's own rule. Left out are targets whose candidate
    has too few rounds to decide. Only the winner was proven."""
    verdict = Verdict.from_dict(stored.verdict)
    times, partly = {}, {}
    for one in stored.outcomes:
        if one.status == Status.OK and len(one.samples) == verdict.rounds:
            times[one.solution_id] = one.samples
        elif one.samples:  # eliminated as slower than the leader, after its last sample
            partly[one.solution_id] = dict(enumerate(one.samples[: verdict.rounds]))
    rule = _rule(stored.rule)
    if rule is None or verdict.baseline not in times:
        return {}
    members = {
        target.name: frozenset(
            one.solution_id for one in stored.outcomes if target.names_of(one.family, one.workspace_bytes)
        )
        for target in targets_of(stored.vendor)
    }
    preference = {
        one.solution_id: tie_order(one.workspace_bytes, one.deterministic, one.family)
        for one in stored.outcomes
    }
    final = Final(times, verdict.baseline, rule, preference, tuple(partly), partly)
    found = judge_targets(final, verdict, members)
    return {
        name: replace(one, proven=one.judgement is Judgement.WIN and one.solution == verdict.winner).to_dict()
        for name, one in found.items()
        if one.rounds >= final.needed
    }


def _rule(values: Mapping[str, Any]) -> DecisionRule | None:
    """The rule of a session; None if an imported journal names none that this gemmtune could decide by."""
    try:
        return DecisionRule(**{name: value for name, value in values.items() if name in _RULE})
    except (TypeError, ValueError):
        return None
