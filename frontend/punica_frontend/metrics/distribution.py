"""Histograms."""

from bisect import bisect_left
from collections.abc import Sequence


class Distribution:
    """Counts values by bucket."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds`` ascend. A value belongs to the first bucket whose bound is not below it."""
        self.bounds = tuple(bounds)
        #: One more than bounds: the last bucket is unbounded.
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times
