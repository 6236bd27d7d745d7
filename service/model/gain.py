"""What files are worth to a model: GEMM time of a forward pass, by its tokens, from stored verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.formats.core.export import ExportReport, ExportRow, Gain
from service.formats.model.config import Merge
from service.model.plan import ModelPlan


class ModelReport(ExportReport):
    """An export's report that also knows each written row: `ratios` is problem id -> baseline time over time
    (1 where the default stays), `workspace_bytes` the most that a written solution needs."""

    def __init__(self) -> None:
        super().__init__()
        self.ratios: dict[str, float] = {}
        self.workspace_bytes = 0

    def wrote(self, gain: Gain) -> None:
        """Counts a row that is written."""
        super().wrote(gain)
        if gain.ratio is not None:
            self.ratios[gain.problem.id] = gain.ratio
        self.workspace_bytes = max(self.workspace_bytes, gain.workspace_bytes)


@dataclass(frozen=True)
class TokenGain:
    """The GEMMs of one forward pass of `tokens` tokens on one device, each layer weighted by its calls: their
    time with the baselines, with what is written, and with the best that is known. Layers that no verdict
    knows (`unknown` of them) are in none of the times."""

    tokens: int
    problems: int
    unknown: int
    baseline_seconds: float
    seconds: float
    best_seconds: float

    @property
    def gain(self) -> float | None:
        """Baseline time over time with what is written; None where nothing is known."""
        return self.baseline_seconds / self.seconds if self.seconds else None

    @property
    def best_gain(self) -> float | None:
        """Baseline time over time with the best that is known."""
        return self.baseline_seconds / self.best_seconds if self.best_seconds else None

    @property
    def left(self) -> float | None:
        """Time with what is written over that with the best: the gain that the files leave on the table."""
        return self.seconds / self.best_seconds if self.best_seconds else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "gain": self.gain, "best_gain": self.best_gain, "left": self.left}


def gains_of(
    plan: ModelPlan, rows: Sequence[ExportRow], ratios: Mapping[str, float], *, merging: bool
) -> dict[str, list[TokenGain]]:
    """The gains of each way in which a program runs the plan's layers: "fused", "split" or, for a program
    that itself computes split layers as one GEMM where that is faster (`merging`), "merged"."""
    if not plan.ways:
        return {plan.layers: token_gains(plan, rows, ratios)}
    split = plan.ways["split"]
    if not merging:
        return {way: token_gains(one, rows, ratios) for way, one in plan.ways.items()}
    alone = token_gains(split, rows, ratios)
    return {"split": alone, "merged": _merged(alone, plan.merges, rows, ratios)}


#: Layers that the client's apply(fuse=True) merges, by the last part of their names (gemmtune/torch/fuse.py).
_MERGED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def _merged(
    alone: Sequence[TokenGain], merges: Sequence[Merge], rows: Sequence[ExportRow],
    ratios: Mapping[str, float],
) -> list[TokenGain]:  # fmt: skip
    """The gains where layers are merged as the client does it: where the merged GEMM has a row, unless all of
    the layers have rows that are as fast together. The time as it is remains that of the layers alone."""
    known = {row.problem.id: row for row in rows if row.baseline_seconds is not None}
    found = {one.tokens: one for one in alone}
    for merge in merges:
        if tuple(name.rpartition(".")[2] for name in merge.names) not in _MERGED:
            continue
        fused, parts = known.get(merge.fused.id), [known.get(part.id) for part in merge.parts]
        if fused is None or None in parts:
            continue
        after = sum(_seconds(part, ratios.get(part.problem.id, 1.0)) for part in parts if part is not None)
        best = sum(_seconds(part, _best(part)) for part in parts if part is not None)
        one = found[merge.tokens]
        ratio = ratios.get(merge.fused.id)
        if ratio is not None:
            merged = _seconds(fused, ratio)
            if merged < after or not all(part.id in ratios for part in merge.parts):
                one = replace(one, seconds=one.seconds + merge.calls * (merged - after))
        least = min(0.0, _seconds(fused, _best(fused)) - best)
        found[merge.tokens] = replace(one, best_seconds=one.best_seconds + merge.calls * least)
    return list(found.values())


def _seconds(row: ExportRow, ratio: float) -> float:
    """The time of one call that is `ratio` times as fast as the baseline."""
    return (row.baseline_seconds or 0.0) / ratio


def token_gains(plan: ModelPlan, rows: Sequence[ExportRow], ratios: Mapping[str, float]) -> list[TokenGain]:
    """One entry for each number of tokens of the plan. `ratios`: those of the written rows, by problem id."""
    known = {row.problem.id: row for row in rows if row.baseline_seconds is not None}
    found = []
    for tokens, items in plan.by_tokens().items():
        unknown, before, after, best = 0, 0.0, 0.0, 0.0
        for item in items:
            row = known.get(item.problem.id)
            if row is None or row.baseline_seconds is None:
                unknown += 1
                continue
            seconds = row.baseline_seconds * item.count
            ratio = ratios.get(item.problem.id, 1.0)
            before += seconds
            after += seconds / ratio
            best += seconds / max(ratio, _best(row))
        found.append(TokenGain(tokens, len(items), unknown, before, after, best))
    return found


def _best(row: ExportRow) -> float:
    """Baseline time over the best known time; 1 where nothing beat the baseline."""
    ratios = [1.0]
    judged = [(row.judgement, row.speedup)]
    judged += [(one.judgement, one.speedup) for one in row.targets.values()]
    ratios += [speedup[1] for judgement, speedup in judged if judgement == "WIN" and speedup is not None]
    return max(ratios)
