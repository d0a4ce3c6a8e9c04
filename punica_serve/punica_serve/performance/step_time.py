"""The duration of a step, from a performance profile.

Times are linear between measured points, and extrapolated beyond the last. All rows of a step share its projections,
and only attention reads the context. So a step that mixes a prefill with decodes takes as long as a prefill of as many
rows plus the time for the decodes' context, and never less than its decodes alone.
"""

from collections.abc import Callable

from punica_serve.performance.lora_load import NO_LORA, LoraLoad
from punica_serve.performance.lora_times import HIGHEST_RANK_ROWS, MAX_FUSED_ROWS, DistinctLora, LoraTimes, PaddedLora
from punica_serve.performance.piecewise_linear import PiecewiseLinear
from punica_serve.performance.profile import PerformanceProfile

LoraSeconds = Callable[[LoraLoad], float]


class StepTimeModel:
    """Computes ``step_s`` from a profile. A call takes about a microsecond."""

    def __init__(self, profile: PerformanceProfile) -> None:
        self.profile = profile
        self.prefill = PiecewiseLinear(profile.prefill.tokens, profile.prefill.ms)
        self._lora_s = lora_seconds(profile.lora)
        self._overhead_s = profile.step_overhead_ms / 1e3
        #: For each measured context, times by batch size.
        self._by_batch = [PiecewiseLinear(profile.decode.batch, ms) for ms in zip(*profile.decode.ms, strict=True)]
        #: Batch size -> its times by context, made at first use.
        self._decodes: dict[int, PiecewiseLinear] = {}

    def step_s(
        self, num_prefill_tokens: float, num_decodes: int, num_context_tokens: float, lora: LoraLoad = NO_LORA
    ) -> float:
        """Seconds of a step; 0 for an empty one. ``num_context_tokens`` is the sum over all its decodes.

        ``num_prefill_tokens`` stand at the beginnings of their prompts: see ``PrefillBudget.equivalent_tokens``.
        """
        if not num_prefill_tokens and not num_decodes:
            return 0.0
        lora_s = self._lora_s(lora) if lora.num_rows else 0.0
        return self._base_s(num_prefill_tokens, num_decodes, num_context_tokens) + lora_s + self._overhead_s

    def decodes_of(self, num_decodes: int) -> PiecewiseLinear:
        """Steps of so many decodes without LoRA: seconds by their mean context."""
        return self._decodes.get(num_decodes) or self._make_decode(num_decodes)

    def _base_s(self, num_prefill_tokens: float, num_decodes: int, num_context_tokens: float) -> float:
        if not num_decodes:
            return self.prefill(num_prefill_tokens)
        decode = self.decodes_of(num_decodes)
        decode_s = decode(num_context_tokens / num_decodes)
        if not num_prefill_tokens:
            return decode_s
        return max(decode_s, self.prefill(num_prefill_tokens + num_decodes) + decode_s - decode(0))

    def _make_decode(self, num_decodes: int) -> PiecewiseLinear:
        """Times by context of one batch size, between those of the two measured sizes around it."""
        line = PiecewiseLinear(
            self.profile.decode.context, [1e3 * by_batch(num_decodes) for by_batch in self._by_batch]
        )
        self._decodes[num_decodes] = line
        return line


def lora_seconds(times: LoraTimes) -> LoraSeconds:
    """The function from a batch's LoRA load, which has at least one row, to seconds."""
    if isinstance(times, DistinctLora):
        return _distinct_seconds(times)
    rank_s = times.rank_ms / 1e3
    if isinstance(times, PaddedLora):
        return lambda load: rank_s * load.num_rows * load.max_rank
    return lambda load: rank_s * load.sum_ranks


def _distinct_seconds(times: DistinctLora) -> LoraSeconds:
    by_pages, row_s, rank_s = PiecewiseLinear(times.pages, times.ms), times.row_ms / 1e3, times.rank_ms / 1e3
    highest_s, large_s = times.highest_rank_ms / HIGHEST_RANK_ROWS / 1e3, times.large_batch_ms / 1e3

    def seconds(load: LoraLoad) -> float:
        highest = load.max_rank * min(load.num_rows, HIGHEST_RANK_ROWS)
        rows_s = row_s * load.num_rows + rank_s * load.sum_ranks + highest_s * highest
        return by_pages(load.num_pages) + rows_s + (large_s if load.num_rows > MAX_FUSED_ROWS else 0.0)

    return seconds
