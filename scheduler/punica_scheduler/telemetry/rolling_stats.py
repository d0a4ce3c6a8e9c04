"""Rolling statistics of the newest half minute: rates, promises, time to first token, time between tokens.

Times are counted in buckets 10 % apart, in slices of some seconds; the oldest slice is dropped when a new one begins.
So a percentile is right to 10 % under any load, and an observation costs one look-up.
"""

from bisect import bisect_left
from collections import deque
from itertools import accumulate

from punica_scheduler.core.actions import RecordTokens
from punica_scheduler.core.scheduler import ClusterSample
from punica_serve.protocol import NO_PROMISES, Percentiles, PromiseCounts, RecentFigures

_NUM_SLICES = 6
_SLICE_NS = 5_000_000_000

#: Upper bounds: from half a millisecond to beyond two minutes.
_BOUNDS_NS = tuple(round(500_000 * 1.1**power) for power in range(132))
_SHARES = (0.5, 0.9, 0.99)


class RollingTimes:
    """Histograms of times, one for each of the newest slices."""

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
    """The upper bound of a bucket; the last one's for times beyond all bounds."""
    return _BOUNDS_NS[min(bucket, len(_BOUNDS_NS) - 1)] / 1e9


class RollingStats:
    """The whole cluster's. ``advance`` has to be called regularly."""

    def __init__(self) -> None:
        #: From a request's admission to its first token.
        self._first_token = RollingTimes()
        #: From one token of a request to its next: its GPU's time from report to report.
        self._inter_token = RollingTimes()
        #: Judged promises since the start.
        self.promises = NO_PROMISES
        #: At the beginning of each slice: the time, and the counters then.
        self._begins: deque[tuple[int, int, int, PromiseCounts]] = deque(maxlen=_NUM_SLICES)

    def observe(self, tokens: RecordTokens) -> None:
        for time_ns in tokens.first_token_ns:
            self._first_token.observe(time_ns)
        if tokens.num_continued:
            self._inter_token.observe(tokens.inter_token_ns, tokens.num_continued)

    def count_promises(self, promises: PromiseCounts) -> None:
        self.promises += promises

    def is_due(self, now_ns: int) -> bool:
        """Whether a new slice begins."""
        return not self._begins or now_ns >= self._begins[-1][0] + _SLICE_NS

    def advance(self, sample: ClusterSample, now_ns: int) -> None:
        """Begins a new slice when it is due."""
        if self.is_due(now_ns):
            if self._begins:
                self._first_token.begin_slice()
                self._inter_token.begin_slice()
            self._begins.append((now_ns, sample.num_arrived, sample.num_tokens, self.promises))

    def figures(self, sample: ClusterSample, now_ns: int) -> RecentFigures:
        if not self._begins or now_ns <= self._begins[0][0]:
            return RecentFigures()
        begin_ns, num_arrived, num_tokens, promises = self._begins[0]
        window_s = (now_ns - begin_ns) / 1e9
        return RecentFigures(
            window_s,
            (sample.num_arrived - num_arrived) / window_s,
            (sample.num_tokens - num_tokens) / window_s,
            self._first_token.percentiles(),
            self._inter_token.percentiles(),
            self.promises - promises,
        )
