"""Draws the next token of each sampled row as its request asks for.

Order, as vLLM has it: penalties, minimum length, temperature, then min_p, top_k and top_p. The noise comes from (seed,
position, token id) alone, so a request draws the same tokens wherever and next to whomever it runs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from punica_kernels.sampling import Filters, SamplingRows, apply_penalties, sample, token_logprobs
from punica_serve.engine.sequence import Sequence
from punica_serve.protocol import SamplingParams, TokenLogprobs


class Draw(NamedTuple):
    token_id: int
    #: None where the request asks for none.
    logprobs: TokenLogprobs | None


class Sampler:
    """Sampling over one vocabulary with one set of end-of-sequence tokens."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids

    def draw(self, logits: Tensor, rows: tuple[Sequence, ...]) -> list[Draw | None]:
        """The next token of each row, from float32 logits [len(rows), vocab]; None where they are not all finite."""
        params = [sequence.sampling for sequence in rows]
        adjusted = self._forbid_early_ends(self._penalize(logits, rows), rows)
        how = SamplingRows(
            temperatures=_tensor([p.temperature for p in params], logits),
            seeds=_tensor([_as_int64(p.seed or 0) for p in params], logits, torch.int64),
            positions=_tensor([sequence.position for sequence in rows], logits, torch.int64),
            filters=_filters(params, logits),
        )
        tokens = sample(adjusted, how, masked=True)
        logprobs = _logprobs(logits, tokens.clamp(min=0), params)
        finite = logits.isfinite().all(-1).tolist()
        drawn = zip(tokens.tolist(), logprobs, finite, strict=True)
        return [Draw(token_id, logprob) if is_finite else None for token_id, logprob, is_finite in drawn]

    def is_end(self, sequence: Sequence, token_id: int) -> bool:
        """Whether the token ends the sequence."""
        return token_id in sequence.sampling.end_ids(self._eos_token_ids)

    def _penalize(self, logits: Tensor, rows: tuple[Sequence, ...]) -> Tensor:
        """A copy where any row has a penalty; rows without are unchanged."""
        chosen = [number for number, sequence in enumerate(rows) if _has_penalty(sequence.sampling)]
        if not chosen:
            return logits
        params = [rows[number].sampling for number in chosen]
        prompts = torch.stack([self._counts(list(rows[number].request.prompt_ids), logits) for number in chosen])
        outputs = torch.stack([self._counts(rows[number].generated_ids, logits) for number in chosen])
        penalized = logits[chosen]
        apply_penalties(
            penalized,
            prompts > 0,
            outputs,
            repetition=_tensor([p.repetition_penalty for p in params], logits),
            presence=_tensor([p.presence_penalty for p in params], logits),
            frequency=_tensor([p.frequency_penalty for p in params], logits),
        )
        return logits.index_copy(0, torch.tensor(chosen, device=logits.device), penalized)

    def _forbid_early_ends(self, logits: Tensor, rows: tuple[Sequence, ...]) -> Tensor:
        """A copy where any row is below its min_tokens: there every token that would end it is impossible."""
        young = [number for number, sequence in enumerate(rows) if sequence.position < sequence.sampling.min_tokens]
        if not young:
            return logits
        logits = logits.clone()
        for number in young:
            logits[number, list(rows[number].sampling.end_ids(self._eos_token_ids))] = -torch.inf
        return logits

    def _counts(self, token_ids: list[int], like: Tensor) -> Tensor:
        """How often each token occurs: int64 [vocab]."""
        return torch.bincount(torch.tensor(token_ids, dtype=torch.int64), minlength=self._vocab_size).to(like.device)


def _tensor(values: list[float] | list[int], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device)


def _filters(params: list[SamplingParams], like: Tensor) -> Filters | None:
    rows = [number for number, p in enumerate(params) if p.temperature > 0 and _has_filter(p)]
    if not rows:
        return None
    chosen = [params[number] for number in rows]
    return Filters(
        rows=_tensor(rows, like, torch.int64),
        top_k=_tensor([p.top_k for p in chosen], like, torch.int64),
        top_p=_tensor([p.top_p for p in chosen], like),
        min_p=_tensor([p.min_p for p in chosen], like),
    )


def _has_filter(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _has_penalty(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _as_int64(seed: int) -> int:
    """The same 64 bits as torch's signed integers hold them."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _logprobs(logits: Tensor, tokens: Tensor, params: list[SamplingParams]) -> list[TokenLogprobs | None]:
    """Of the model's own logits, before penalties, for the rows that ask."""
    found: list[TokenLogprobs | None] = [None] * len(params)
    asking = [number for number, p in enumerate(params) if p.logprobs is not None]
    if not asking:
        return found
    top_n = max(params[number].logprobs or 0 for number in asking)
    chosen, top_ids, top_logprobs = token_logprobs(logits[asking], tokens[asking], top_n)
    for row, number in enumerate(asking):
        count = params[number].logprobs or 0
        found[number] = TokenLogprobs(
            float(chosen[row]), tuple(top_ids[row, :count].tolist()), tuple(top_logprobs[row, :count].tolist())
        )
    return found
