"""When a screening may stop sampling a candidate: it is shown to be slower, or its median is known.

The noise of a device is learnt while it screens: how far samples lie above their candidate's median. A sample
is then evidence with a confidence, whatever the distribution, instead of by a fixed factor.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from math import ceil
from statistics import median

from backends.traits import MeasurementTraits
from tuners.options import ScreeningOptions

#: Deviations that are kept; later candidates add no more.
_KEPT = 1024


class ScreeningNoise:
    """The noise of one task's screenings, on a device with these traits."""

    def __init__(self, options: ScreeningOptions, traits: MeasurementTraits) -> None:
        self._options, self._traits = options, traits
        #: Samples over the median of their candidate's others, in order.
        self._deviations: list[float] = []

    def add(self, samples: Sequence[float]) -> None:
        """Learns from the undisturbed samples of a candidate; fewer than three say nothing, and times of
        zero, which a clock that was tampered with gives, are no noise."""
        if len(samples) >= 3 and min(samples) > 0 and len(self._deviations) < _KEPT:
            for place, value in enumerate(samples):
                others = [*samples[:place], *samples[place + 1 :]]  # the median of all would be one of them
                insort(self._deviations, value / median(others))

    @property
    def known(self) -> bool:
        """Whether enough was learnt to judge by."""
        return len(self._deviations) >= self._options.noise_deviations

    def _quantile(self, share: float) -> float:
        return self._deviations[min(len(self._deviations) - 1, ceil(share * len(self._deviations)))]

    def factor(self, count: int) -> float:
        """A candidate all of whose `count` samples are slower than the fastest's median by more than this
        factor is slower.

        All of so many samples of one candidate lie above their median by a factor u with probability p^count,
        where p is the share of deviations above u. With u where that is 1 - drop_confidence, the least sample
        over u is a lower bound of the candidate's median. Screenings are not simultaneous: `speed_drift` says
        how much the device's own speed may differ between two. Until the noise is known, fixed factors hold.
        """
        options = self._options
        if not self.known:
            return options.prune_after_one if count < 3 else options.prune_after_three
        above = (1 - options.drop_confidence) ** (1 / count)
        return (1 + self._traits.speed_drift) * max(1.0, self._quantile(1 - above))

    def slower(self, samples: Sequence[float], best: float | None) -> bool:
        """Whether the samples show a candidate to be slower than one with the median `best`, in seconds."""
        return best is not None and bool(samples) and min(samples) > self.factor(len(samples)) * best

    def enough(self, samples: Sequence[float]) -> bool:
        """Whether the candidate needs no more samples: their median is known to within `precision`, or there
        are as many as the device takes at most. The standard error of a median of n values is 1.25 standard
        deviations over the root of n."""
        most, least = self._traits.screening_samples, self._options.min_samples
        if self.known:
            spread = (self._quantile(0.84) - self._quantile(0.16)) / 2
            most = min(most, max(least, ceil((1.25 * spread / self._options.precision) ** 2)))
        return len(samples) >= most
