"""Sampling from the whole vocabulary, or from one that the ranks of a group divide.

Each rank draws its best token of each row; one exchange of 16 bytes a row decides. A threshold of top-k, top-p or min-p
depends on all logits of a row. So the ranks divide the rows with filters: each gets the other parts of its own rows,
samples these as one rank does, and tells the tokens. These are two more exchanges in a step with any such row, however
many there are. Their tokens are those of one rank with the same logits, bit by bit, ties and rounded sums included.
"""

from typing import Protocol

import torch
from torch import Tensor

from punica_kernels import sampling
from punica_kernels.part_sampling import draw, pick_drawn
from punica_kernels.sampling_rows import Filters, SamplingRows
from punica_serve.base_model.group_sizes import VOCABULARY_BLOCK
from punica_serve.base_model.rank import Rank
from punica_serve.models.collectives import Collectives


class Drawing(Protocol):
    """Both operations take the logits of ``vocabulary`` alone, and give global token ids, the same on all ranks."""

    vocabulary: range

    def sample(self, logits: Tensor, rows: SamplingRows, *, masked: bool = False, out: Tensor | None = None) -> Tensor:
        """See `punica_kernels.sampling.sample`. ``masked`` must be the same on all ranks."""
        ...

    def logprobs(self, logits: Tensor, token_ids: Tensor, top_n: int) -> tuple[Tensor, Tensor, Tensor]:
        """See `punica_kernels.sampling.token_logprobs`."""
        ...


class WholeDrawing:
    """One rank that has all logits."""

    def __init__(self, vocab_size: int) -> None:
        self.vocabulary = range(vocab_size)

    def sample(self, logits: Tensor, rows: SamplingRows, *, masked: bool = False, out: Tensor | None = None) -> Tensor:
        return sampling.sample(logits, rows, masked=masked, out=out)

    def logprobs(self, logits: Tensor, token_ids: Tensor, top_n: int) -> tuple[Tensor, Tensor, Tensor]:
        return sampling.token_logprobs(logits, token_ids, top_n)


class DividedDrawing:
    """A rank that has the logits of its part. All ranks call the same operations in the same order."""

    def __init__(self, vocab_size: int, collectives: Collectives) -> None:
        size = collectives.rank.size
        self._parts = [Rank(index, size).blocks(vocab_size, VOCABULARY_BLOCK) for index in range(size)]
        self._vocab_size = vocab_size
        self._collectives = collectives
        self.vocabulary = self._parts[collectives.rank.index]

    def sample(self, logits: Tensor, rows: SamplingRows, *, masked: bool = False, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        drawn = draw(logits, rows, self.vocabulary.start, masked=masked)
        pick_drawn(self._collectives.all_gather(drawn), rows.temperatures, out)
        if rows.filters is not None:
            out.index_copy_(0, rows.filters.rows, self._sample_filtered(logits, rows, rows.filters, masked))
        return out

    def logprobs(self, logits: Tensor, token_ids: Tensor, top_n: int) -> tuple[Tensor, Tensor, Tensor]:
        highest = logits.amax(1, keepdim=True)
        mass = (logits - highest).exp().sum(1, keepdim=True)
        chosen = self._logits_of(token_ids, logits)
        found = self._gather([highest, mass, chosen, *self._top(logits, min(top_n, self._vocab_size))])
        highest, mass, chosen, top, top_ids = found.split([1, 1, 1, *[(found.shape[2] - 3) // 2] * 2], dim=2)
        peak = highest.amax(0)
        log_total = (mass * (highest - peak).exp()).sum(0).log() + peak
        best, places = top.transpose(0, 1).flatten(1).topk(top.shape[2])
        best_ids = top_ids.transpose(0, 1).flatten(1).gather(1, places)
        return (chosen.amax(0) - log_total).squeeze(1), best_ids.long(), best - log_total

    def _sample_filtered(self, logits: Tensor, rows: SamplingRows, filters: Filters, masked: bool) -> Tensor:
        """int64 [F]: the tokens of the rows with filters, each from the rank whose row it is."""
        rank, num_rows = self._collectives.rank, len(filters.rows)
        share = -(-num_rows // rank.size)
        # The last row fills up the last shares, so that all are equal. All ranks that sample it find the same token.
        places = torch.arange(rank.size * share, device=logits.device).clamp_max_(num_rows - 1)
        whole = self._exchange_parts(logits.index_select(0, filters.rows.index_select(0, places)))
        places = places[rank.index * share : (rank.index + 1) * share]
        numbers, *limits = (
            each.index_select(0, places) for each in (filters.rows, filters.top_k, filters.top_p, filters.min_p)
        )
        temperatures, seeds, positions = (
            each.index_select(0, numbers) for each in (rows.temperatures, rows.seeds, rows.positions)
        )
        every = Filters(torch.arange(share, device=logits.device), *limits)
        tokens = sampling.sample(whole, SamplingRows(temperatures, seeds, positions, every), masked=masked)
        return self._collectives.all_gather(tokens).flatten()[:num_rows]

    def _exchange_parts(self, logits: Tensor) -> Tensor:
        """[size * share, tokens of this part], ordered by the rank that samples -> [share, vocab], its own rows."""
        missing = max(map(len, self._parts)) - logits.shape[1]
        padded = torch.nn.functional.pad(logits, (0, missing))
        size = self._collectives.rank.size
        received = self._collectives.all_to_all(padded.unflatten(0, (size, len(padded) // size)))
        return torch.cat([rows[:, : len(part)] for part, rows in zip(self._parts, received, strict=True)], dim=1)

    def _logits_of(self, token_ids: Tensor, logits: Tensor) -> Tensor:
        """[rows, 1]: the logit of each row's token; -inf if another rank has it."""
        columns = token_ids - self.vocabulary.start
        is_own = (columns >= 0) & (columns < logits.shape[1])
        own = logits.gather(1, columns.where(is_own, 0)[:, None])
        return own.where(is_own[:, None], -torch.inf)

    def _top(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The highest logits of this part and their tokens, float32 [rows, count] each, filled up with -inf."""
        values, columns = logits.topk(min(count, logits.shape[1]), dim=1)
        missing = count - values.shape[1]
        values = torch.nn.functional.pad(values, (0, missing), value=-torch.inf)
        return values, torch.nn.functional.pad(columns + self.vocabulary.start, (0, missing)).float()

    def _gather(self, columns: list[Tensor]) -> Tensor:
        """[ranks, rows, all columns]: float32, in which token ids below 2^24 are exact."""
        return self._collectives.all_gather(torch.cat(columns, dim=1))


def drawing_of(vocab_size: int, collectives: Collectives) -> Drawing:
    """The way in which a rank samples."""
    return WholeDrawing(vocab_size) if collectives.rank.size == 1 else DividedDrawing(vocab_size, collectives)
