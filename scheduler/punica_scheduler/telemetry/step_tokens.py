"""Counts how many tokens each step computes."""

from bisect import bisect_left

from punica_serve.protocol import StepReport, TokenHistogram

#: Upper bounds of the buckets; vLLM's histogram of the same name has them too.
BOUNDS = (1, *(1 << power for power in range(3, 15)))


class StepTokens:
    """A histogram over the steps of all GPUs, since the scheduler started."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0

    def observe(self, report: StepReport) -> None:
        """Counts the step of a report. Its batch has one request at most that prefills; each other one decodes."""
        num_prefill = report.num_prefill_tokens
        num_tokens = report.batch_size + (num_prefill - 1 if num_prefill else 0)
        self._counts[bisect_left(BOUNDS, num_tokens)] += 1
        self._sum += num_tokens

    def snapshot(self) -> TokenHistogram:
        return TokenHistogram(BOUNDS, tuple(self._counts), self._sum)
