"""The duration of a step, from a performance profile.

Times are linear between measured points, and extrapolated beyond the last. All rows of a step share its projections,
and only attention reads the context. So a step that mixes a prefill with decodes takes as long as a prefill of as many
rows plus the time for the decodes' context, and never less than its decodes alone.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from punica_serve.simulation.profile import PerformanceProfile


class _PiecewiseLinear:
    """A piecewise linear function through points, from a number to seconds."""

    def __init__(self, numbers: Sequence[int], ms: Sequence[float]) -> None:
        points = list(zip(numbers, ms, strict=True))
        if len(points) == 1:
            points.append((numbers[0] + 1, ms[0]))
        #: The start of each piece except the first.
        self._breaks = [number for number, _ in points[1:-1]]
        self._pieces: list[tuple[float, float]] = []
        for (x0, y0), (x1, y1) in pairwise(points):
            slope = (y1 - y0) / (x1 - x0)
            self._pieces.append(((y0 - slope * x0) / 1e3, slope / 1e3))

    def __call__(self, number: float) -> float:
        base, slope = self._pieces[bisect_right(self._breaks, number)] if self._breaks else self._pieces[0]
        return base + slope * number


class StepTimeModel:
    """Computes ``step_s`` from a profile. A call takes about a microsecond."""

    def __init__(self, profile: PerformanceProfile) -> None:
        self.profile = profile
        self._prefill = _PiecewiseLinear(profile.prefill.tokens, profile.prefill.ms)
        self._lora = _PiecewiseLinear(profile.lora.adapters, profile.lora.ms)
        self._overhead_s = profile.step_overhead_ms / 1e3
        #: For each measured context, times by batch size.
        self._by_batch = [_PiecewiseLinear(profile.decode.batch, ms) for ms in zip(*profile.decode.ms, strict=True)]
        #: Batch size -> its times by context, made at first use.
        self._decodes: dict[int, _PiecewiseLinear] = {}

    def step_s(self, num_prefill_tokens: int, num_decodes: int, num_context_tokens: int, num_adapters: int) -> float:
        """Seconds of a step; 0 for an empty one. ``num_context_tokens`` is the sum over all its decodes."""
        if not num_prefill_tokens and not num_decodes:
            return 0.0
        lora_s = self._lora(num_adapters) if num_adapters else 0.0
        return self._base_s(num_prefill_tokens, num_decodes, num_context_tokens) + lora_s + self._overhead_s

    def _base_s(self, num_prefill_tokens: int, num_decodes: int, num_context_tokens: int) -> float:
        if not num_decodes:
            return self._prefill(num_prefill_tokens)
        decode = self._decodes.get(num_decodes) or self._make_decode(num_decodes)
        decode_s = decode(num_context_tokens / num_decodes)
        if not num_prefill_tokens:
            return decode_s
        return max(decode_s, self._prefill(num_prefill_tokens + num_decodes) + decode_s - decode(0))

    def _make_decode(self, num_decodes: int) -> _PiecewiseLinear:
        """Times by context of one batch size, between those of the two measured sizes around it."""
        line = _PiecewiseLinear(
            self.profile.decode.context, [1e3 * by_batch(num_decodes) for by_batch in self._by_batch]
        )
        self._decodes[num_decodes] = line
        return line
