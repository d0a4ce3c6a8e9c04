"""Piecewise linear functions through measured points."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from punica_serve.performance.batch_columns import Column


class PiecewiseLinear:
    """Maps a number to seconds: linear between the points, and beyond the last as before it."""

    def __init__(self, numbers: Sequence[int], ms: Sequence[float]) -> None:
        points = list(zip(numbers, ms, strict=True))
        if len(points) == 1:
            points.append((numbers[0] + 1, ms[0]))
        #: The start of each piece except the first.
        self._breaks = [number for number, _ in points[1:-1]]
        self._break_column = np.array(self._breaks, dtype=np.float64)
        self._pieces: list[tuple[float, float]] = []
        for (x0, y0), (x1, y1) in pairwise(points):
            slope = (y1 - y0) / (x1 - x0)
            self._pieces.append(((y0 - slope * x0) / 1e3, slope / 1e3))
        #: A row for each piece: seconds at 0, and for each number more.
        self.pieces = np.array(self._pieces)

    def __call__(self, number: float) -> float:
        base, slope = self._pieces[bisect_right(self._breaks, number)] if self._breaks else self._pieces[0]
        return base + slope * number

    def column(self, numbers: Column) -> Column:
        """The function of each number."""
        if not self._breaks:
            base, slope = self._pieces[0]
            return base + slope * numbers
        pieces = self.pieces[self._break_column.searchsorted(numbers, "right")]
        return pieces[:, 0] + pieces[:, 1] * numbers
