"""What the newest half minute was like: rates, and how long first tokens and next tokens took.

Times are counted in buckets a tenth apart, in slices of some seconds; the oldest slice goes when a new one begins. So a
percentile is right to a tenth, whatever the load, and an observation costs one look-up.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from itertools import accumulate

from punica_serve.protocol import Percentiles, RecentFigures

_NUM_SLICES = 6
_SLICE_NS = 5_000_000_000

#: Upper bounds: from half a millisecond to beyond two minutes.
_BOUNDS_NS = tuple(round(500_000 * 1.1**power) for power in range(132))
_SHARES = (0.5, 0.9, 0.99)


class RecentTimes:
    """How often times fell into which bucket, in the newest slices."""

    def __init__(self) -> None:
        self._newest = _no_times()
        self._slices = deque([self._newest], maxlen=_NUM_SLICES)

    def observe(self, time_ns: int, times: int = 1) -> None:
        self._newest[bisect_left(_BOUNDS_NS, time_ns)] += times

    def begin_slice(self) -> None:
        self._newest = _no_times()
        self._slices.append(self._newest)

    def percentiles(self) -> Percentiles | None:
        """None while nothing was observed."""
        sums = list(accumulate(map(sum, zip(*self._slices, strict=True))))
        if not (total := sums[-1]):
            return None
        return Percentiles(*(_bound_s(bisect_left(sums, share * total)) for share in _SHARES))


def _no_times() -> list[int]:
    return [0] * (len(_BOUNDS_NS) + 1)


def _bound_s(bucket: int) -> float:
    """Times beyond all bounds are told as the last of them."""
    return _BOUNDS_NS[min(bucket, len(_BOUNDS_NS) - 1)] / 1e9


class Recent:
    """Of the whole cluster. ``let_pass`` has to be called again and again."""

    def __init__(self) -> None:
        #: From a request's admission to its first token.
        self.first_token = RecentTimes()
        #: From a token of a request to its next: its GPU's time from report to report.
        self.inter_token = RecentTimes()
        #: At the beginning of each slice: the time, and the counters of then.
        self._begins: deque[tuple[int, int, int]] = deque(maxlen=_NUM_SLICES)

    def let_pass(self, counters: Mapping[str, int], now_ns: int) -> None:
        """Begins a new slice when it is time."""
        if not self._begins or now_ns >= self._begins[-1][0] + _SLICE_NS:
            if self._begins:
                self.first_token.begin_slice()
                self.inter_token.begin_slice()
            self._begins.append((now_ns, counters["arrived"], counters["tokens"]))

    def figures(self, counters: Mapping[str, int], now_ns: int) -> RecentFigures:
        if not self._begins or now_ns <= self._begins[0][0]:
            return RecentFigures()
        begin_ns, arrived, tokens = self._begins[0]
        window_s = (now_ns - begin_ns) / 1e9
        return RecentFigures(
            window_s,
            (counters["arrived"] - arrived) / window_s,
            (counters["tokens"] - tokens) / window_s,
            self.first_token.percentiles(),
            self.inter_token.percentiles(),
        )
