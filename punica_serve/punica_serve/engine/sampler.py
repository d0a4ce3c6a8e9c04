"""Samples the next token of each row by its request's parameters.

The order is vLLM's: penalties, minimum length, temperature, then min_p, top_k and top_p. The noise depends on (seed,
position, token id) alone, so a request gets the same tokens on any device and in any batch. Nothing waits for the
device: the host knows the parameters of each row, and reads the tokens when their step has ended.
"""

from collections.abc import Sequence as Series
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from punica_kernels.sampling_rows import Filters, SamplingRows
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.ranks.drawing import drawing_of
from punica_serve.engine.token_history import TokenHistories, has_penalty
from punica_serve.engine.transfers import array_to_device, to_device, to_host
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from punica_serve.protocol import SamplingParams, TokenLogprobs

#: The type of temperatures on the device: a tiny one must not round to 0, nor a huge one to infinity.
_FLOAT32 = torch.finfo(torch.float32)


class SampledToken(NamedTuple):
    token_id: int
    #: None if the request does not ask for them.
    logprobs: TokenLogprobs | None


class _Logprobs(NamedTuple):
    """Log-probabilities of the rows that ask for them, on the host; see ``token_logprobs``."""

    #: By index of the sampled sequence: how many of the most likely tokens it asks for.
    asking: dict[int, int]
    chosen: Tensor
    top_ids: Tensor
    top: Tensor


class PendingTokens:
    """Sampled tokens on their way to the host."""

    def __init__(self, tokens: Tensor, rows: Series[int], logprobs: _Logprobs | None) -> None:
        self._tokens = tokens
        self._rows = rows
        self._logprobs = logprobs

    def read(self) -> list[SampledToken | None]:
        """One for each sequence, None where its logits were not finite. The step must have ended."""
        tokens = self._tokens.tolist()
        found = _read_logprobs(self._logprobs) if self._logprobs else {}
        sampled_tokens = ((tokens[row], found.get(number)) for number, row in enumerate(self._rows))
        return [SampledToken(token_id, logprobs) if token_id >= 0 else None for token_id, logprobs in sampled_tokens]


class Sampler:
    """Sampling over one vocabulary, or a rank's part of it, with one set of end-of-sequence tokens."""

    def __init__(
        self,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        *,
        max_rows: int,
        device: torch.device,
        collectives: Collectives = SINGLE_RANK,
    ) -> None:
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._drawing = drawing_of(vocab_size, collectives)
        self._histories = TokenHistories(self._drawing.vocabulary, max_rows, device)
        #: Int64 [max_rows]: the newest step's tokens, by row of its logits; -1 where these are not finite.
        self.sampled_ids = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._zeros = torch.zeros_like(self.sampled_ids)
        self._no_temperatures = torch.zeros(max_rows, device=device)
        self._rows = torch.arange(max_rows, device=device)

    def launch(self, logits: Tensor, sequences: Series[Sequence], rows: Series[int]) -> PendingTokens:
        """Samples for ``sequences``, whose logits are in ``rows``; other rows are sampled greedily and not read.

        logits: [any number of rows, vocab], of any dtype; of a rank, the logits of its own part of the vocabulary.
        """
        pairs = list(zip(sequences, rows, strict=True))
        adjusted, masked, histories = self._adjust(logits, pairs)
        out = self.sampled_ids[: len(logits)]
        tokens = self._drawing.sample(adjusted, self._how(len(logits), pairs), masked=masked, out=out)
        if histories is not None:
            places, numbers = histories
            self._histories.count(places, tokens[numbers])
        return PendingTokens(to_host(tokens), rows, self._logprobs(logits, tokens, pairs))

    def warm_up(self, logits: Tensor) -> None:
        """Compiles the kernels of all sampling parameters, and reserves the memory for rows that use all of them.

        The values of the logits don't matter.
        """
        num_rows = len(logits)
        for likely in (logits, logits.float()):
            zeros = self._zeros[:num_rows]
            every = Filters(self._rows[:num_rows], zeros + 1, zeros.float() + 0.5, zeros.float())
            for filters in (None, every):
                for masked in (False, True):
                    self._drawing.sample(likely, SamplingRows(zeros.float() + 1, zeros, zeros, filters), masked=masked)
        # The copies that a step makes: of all rows, of those with penalties, then of those with log-probabilities.
        adjusted = logits.to(torch.float32, copy=True)
        self._histories.penalize(adjusted.clone(), self._rows[:num_rows], [SamplingParams()] * num_rows)
        self._drawing.logprobs(logits.to(torch.float32, copy=True), self._zeros[:num_rows], 1)
        del adjusted  # not before

    def is_end(self, sequence: Sequence, token_id: int) -> bool:
        """Whether the token ends the sequence."""
        return sequence.sampling.ends_with(token_id, self._eos_token_ids)

    def _adjust(
        self, logits: Tensor, pairs: Series[tuple[Sequence, int]]
    ) -> tuple[Tensor, bool, tuple[Tensor, Tensor] | None]:
        """Applies penalties and minimum lengths. Returns the logits, copied if changed; whether some were set to -inf;
        and the rows of the histories and of the logits with penalties.
        """
        penalized = [(sequence, row) for sequence, row in pairs if has_penalty(sequence.sampling)]
        ends = [
            (row, token_id)
            for sequence, row in pairs
            if sequence.position < sequence.sampling.min_tokens
            for token_id in sequence.sampling.end_ids(self._eos_token_ids)
        ]
        if not penalized:
            self._histories.forget()
        if not penalized and not ends:
            return logits, False, None
        adjusted = logits.to(torch.float32, copy=True)
        own = self._drawing.vocabulary
        histories = None
        if penalized:
            places = self._histories.follow([sequence for sequence, _ in penalized])
            numbers = self._int64([row for _, row in penalized])
            histories = (places, numbers)
            chosen = adjusted[numbers]
            self._histories.penalize(chosen, places, [sequence.sampling for sequence, _ in penalized])
            adjusted[numbers] = chosen
        if own_ends := [(row, end - own.start) for row, end in ends if end in own]:
            adjusted[self._int64([row for row, _ in own_ends]), self._int64([end for _, end in own_ends])] = -torch.inf
        return adjusted, bool(ends), histories

    def _how(self, num_rows: int, pairs: Series[tuple[Sequence, int]]) -> SamplingRows:
        drawn = [(row, s.position, s.sampling) for s, row in pairs if s.sampling.temperature > 0]
        if not drawn:
            zeros = self._zeros[:num_rows]
            return SamplingRows(self._no_temperatures[:num_rows], zeros, zeros)
        filtered = sorted(((row, params) for row, _, params in drawn if _has_filter(params)), key=itemgetter(0))
        return SamplingRows(*self._noise(num_rows, drawn), self._filters(filtered))

    def _noise(self, num_rows: int, drawn: Series[tuple[int, int, SamplingParams]]) -> tuple[Tensor, Tensor, Tensor]:
        """Temperatures, seeds and positions, in one copy; an even number each, so that all start as kernels want it."""
        table = np.zeros((3, num_rows + num_rows % 2), dtype=np.int64)
        seeds, positions, temperatures = table[0], table[1], table[2].view(np.float32)
        rows = [row for row, _, _ in drawn]
        seeds[rows] = [_as_int64(params.seed or 0) for _, _, params in drawn]
        positions[rows] = [position for _, position, _ in drawn]
        temperatures[rows] = np.clip([params.temperature for *_, params in drawn], _FLOAT32.tiny, _FLOAT32.max)
        on_device = array_to_device(table, self._device)
        return on_device[2].view(torch.float32)[:num_rows], on_device[0, :num_rows], on_device[1, :num_rows]

    def _filters(self, rows: Series[tuple[int, SamplingParams]]) -> Filters | None:
        if not rows:
            return None
        return Filters(
            rows=self._int64([row for row, _ in rows]),
            top_k=self._int64([params.top_k for _, params in rows]),
            top_p=self._float32([params.top_p for _, params in rows]),
            min_p=self._float32([params.min_p for _, params in rows]),
        )

    def _logprobs(self, logits: Tensor, tokens: Tensor, pairs: Series[tuple[Sequence, int]]) -> _Logprobs | None:
        """Log-probabilities of the model's own logits, before penalties."""
        counts = [sequence.sampling.logprobs for sequence, _ in pairs]
        asking = {number: count for number, count in enumerate(counts) if count is not None}
        if not asking:
            return None
        chosen = self._int64([pairs[number][1] for number in asking])
        found = self._drawing.logprobs(logits[chosen].float(), tokens[chosen].clamp_min(0), max(asking.values()))
        return _Logprobs(asking, *map(to_host, found))

    def _int64(self, values: Series[int]) -> Tensor:
        return to_device(values, torch.int64, self._device)

    def _float32(self, values: Series[float]) -> Tensor:
        return to_device(values, torch.float32, self._device)


def _read_logprobs(logprobs: _Logprobs) -> dict[int, TokenLogprobs]:
    chosen, top_ids, top = logprobs.chosen.tolist(), logprobs.top_ids.tolist(), logprobs.top.tolist()
    return {
        number: TokenLogprobs(chosen[row], tuple(top_ids[row][:count]), tuple(top[row][:count]))
        for row, (number, count) in enumerate(logprobs.asking.items())
    }


def _has_filter(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _as_int64(seed: int) -> int:
    """The same 64 bits as torch's signed integers hold them."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
