"""The reasons of verdicts, in words."""

from __future__ import annotations

from typing import Protocol

from tuners.intervals import Interval


class Margins(Protocol):
    """What a reason says of a final (decide.Final)."""

    @property
    def margin(self) -> float:
        """The rule's: the gain of a WIN without an incumbent."""

    @property
    def against_base(self) -> dict[str, Interval]:
        """Solution id -> its time over the baseline's."""

    def least_gain(self, name: str) -> float:
        """The gain over the baseline that makes the candidate a winner."""


def won(final: Margins, winner: str, tied: int, kept: float | None) -> str:
    """Why a winner won. `tied`: the candidates among which it was chosen. `kept`: where it keeps its place
    though another is faster by more than a tie, the share by which that one may be faster."""
    margin = f"the margin of {final.margin:.0%}"
    if final.against_base[winner].mid > 1 - final.margin:
        margin = f"{final.least_gain(winner):.1%}: it won before, by more than {margin}"
    chosen = f"; chosen among {tied} candidates that tie" if tied > 1 else ""
    if kept is not None:
        chosen = f"; it won before and stays, as no other winner is faster by more than {kept:.1%}"
    return f"faster in the paired test, by more than {margin}{chosen}"


def too_little(final: Margins, name: str) -> str:
    """Why a candidate that is shown to be faster does not win."""
    least = final.least_gain(name)
    if least > final.margin and final.against_base[name].mid <= 1 - final.margin:
        return f"faster, but by less than {least:.1%}, which replaces a default that stayed before"
    return f"faster, but by less than the margin of {final.margin:.0%}"


def too_few(rounds: int, needed: int) -> str:
    """Why nothing was decided."""
    return f"too few rounds fitted the budget to decide: {rounds} of {needed}"
