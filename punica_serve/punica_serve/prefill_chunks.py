"""How long the chunks of a prompt may be. Pure.

A step has a budget of tokens for prefills. Chunks also shrink with the context that they attend to, so that a long
prompt never makes the steps of the requests beside it dearer than a short one does.

A token of a prompt costs its products with the weights, and its attention to each token before it. Attention reaches
less of the arithmetic rate, so its operations weigh more.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

#: The cost of an operation of attention, in operations of dense products: prefill attention reached 0.29 of its
#: arithmetic bound on an H200, where the projections reach nearly all of theirs.
ATTENTION_WEIGHT = 3.3
#: No step with a prefill is dearer than one with a chunk of the whole budget behind so many tokens.
REFERENCE_CONTEXT = 2048
#: Chunks that the context shortens are multiples of this, of which GPUs' tiles are made.
_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class ChunkCosts:
    """Operations of one token of a prompt."""

    #: Those of its products with all weights.
    dense: float
    #: (window, operations for each token of context) of layers with that window; None sees the whole context.
    attention: Sequence[tuple[int | None, float]]

    def cost(self, start: int, num_tokens: float) -> float:
        """The cost of tokens [start, start + num_tokens) of a prompt, in operations of dense products."""
        mean_context = start + num_tokens / 2
        context = sum(each * min(mean_context, window or mean_context) for window, each in self.attention)
        return num_tokens * (self.dense + ATTENTION_WEIGHT * context)

    def allowance(self, budget_tokens: int) -> float:
        """The most that the prefills of one step may cost."""
        return self.cost(REFERENCE_CONTEXT, budget_tokens)

    def longest(self, start: int, num_tokens: int, allowance: float) -> int:
        """The longest chunk from ``start`` on, ``num_tokens`` at most, that costs no more than the allowance.

        One that must be shortened is a multiple of 16 tokens, and 16 at least.
        """
        if self.cost(start, num_tokens) <= allowance:
            return num_tokens
        fits, exceeds = 1, -(-num_tokens // _MULTIPLE)  # in multiples
        while fits + 1 < exceeds:
            middle = (fits + exceeds) // 2
            if self.cost(start, middle * _MULTIPLE) <= allowance:
                fits = middle
            else:
                exceeds = middle
        return min(num_tokens, fits * _MULTIPLE)


class PrefillBudget:
    """The time and the tokens that prefills of one step may take together."""

    __slots__ = ("_costs", "_starts", "allowance", "tokens")

    def __init__(self, tokens: int, costs: ChunkCosts | None = None) -> None:
        """Prompt tokens of a step. With ``costs``, chunks behind long contexts are shorter."""
        self.tokens = tokens
        self._costs = costs
        #: The most that they may cost; 0 where nothing does.
        self.allowance = costs.allowance(tokens) if costs else 0.0
        #: Where the chunks of a prompt begin that is prefilled alone, as far as anybody has asked.
        self._starts = [0]

    def cost(self, start: int, num_tokens: int) -> float:
        """The cost of a chunk of so many tokens behind ``start`` others."""
        return self._costs.cost(start, num_tokens) if self._costs else 0.0

    def equivalent_tokens(self, start: int, num_tokens: int, num_chunks: int = 1) -> float:
        """Tokens at a prompt's beginning that cost as much as a chunk behind ``start`` others: the mean of so many
        chunks of about equal cost, which have ``num_tokens`` together.
        """
        chunk = num_tokens / num_chunks
        if self._costs is None or (not start and num_chunks == 1):
            return chunk
        return chunk * self._costs.cost(start, num_tokens) / (num_chunks * self._costs.cost(0, chunk))

    def longest(self, start: int, num_tokens: int, allowance: float) -> int:
        """The longest chunk from ``start`` on, ``num_tokens`` at most, that costs no more than the allowance: the
        budget's own, or what others have left of it.
        """
        if self._costs is None or (allowance == self.allowance and start <= REFERENCE_CONTEXT):
            return num_tokens
        return self._costs.longest(start, num_tokens, allowance)

    def num_steps(self, start: int, num_tokens: int) -> int:
        """Steps that so many tokens behind ``start`` others take as the only prefill: exact if one is enough, or if the
        context shortens no chunk.
        """
        num_chunks = -(-num_tokens // self.tokens)
        if self._costs is None or start + (num_chunks - 1) * self.tokens <= REFERENCE_CONTEXT:
            return num_chunks
        return max(num_chunks, math.ceil(self._costs.cost(start, num_tokens) / self.allowance))

    def num_cut(self, start: int, num_tokens: int) -> int:
        """Chunks before the last one of so many tokens behind ``start`` others, as the only prefill."""
        num_chunks = self._place(start + num_tokens - 1) - self._place(start)
        return num_chunks if self.end_of(start, num_chunks) < start + num_tokens else num_chunks - 1

    def end_of(self, start: int, num_chunks: int) -> int:
        """Where the last of so many chunks ends that begin at ``start``, as the only prefill, none being cut short."""
        place = self._place(start)
        while place + num_chunks >= len(self._starts):
            self._extend()
        return start + self._starts[place + num_chunks] - self._starts[place]

    def _place(self, position: int) -> int:
        """The chunk in which a token stands."""
        while self._starts[-1] <= position:
            self._extend()
        return bisect_right(self._starts, position) - 1

    def _extend(self) -> None:
        start = self._starts[-1]
        self._starts.append(start + self.longest(start, self.tokens, self.allowance))


#: Nothing is known of chunks: every prompt is one.
WHOLE_PROMPTS = PrefillBudget(1 << 31)
