"""What files are worth to a model: GEMM time of a forward pass, by its tokens, from stored verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.formats.core.export import ExportReport, ExportRow, Gain
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
