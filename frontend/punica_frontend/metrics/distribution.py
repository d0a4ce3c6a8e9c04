"""How often values fell where."""

from bisect import bisect_left
from collections.abc import Sequence


class Distribution:
    """How often values fell into which bucket."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds`` ascend; a value belongs to the first bucket whose bound it does not exceed."""
        self.bounds = tuple(bounds)
        #: One more than bounds: the last bucket has none.
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times
