"""Sampling from the whole vocabulary, or from one that the ranks of a group divide, without gathering its logits.

Each rank draws its best token of each row; one exchange of 16 bytes a row decides. A step with top-k, top-p or min-p in
any row takes five more exchanges, whatever the number of rows: four find what the filters keep (`divided_filters`), and
one decides again.
"""

from typing import Protocol

import torch
from torch import Tensor

from punica_kernels import sampling
from punica_kernels.part_sampling import draw, pick_drawn
from punica_kernels.sampling_rows import Filters, SamplingRows, scale_logits
from punica_serve.base_model.group_sizes import VOCABULARY_BLOCK
from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.divided_filters import DividedFilters
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
        parts = [Rank(index, size).blocks(vocab_size, VOCABULARY_BLOCK) for index in range(size)]
        self._vocab_size = vocab_size
        self._collectives = collectives
        self._filters = DividedFilters(parts, collectives)
        self.vocabulary = parts[collectives.rank.index]

    def sample(self, logits: Tensor, rows: SamplingRows, *, masked: bool = False, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        drawn = self._draw(logits, rows, masked=masked)
        pick_drawn(drawn, rows.temperatures, out)
        if rows.filters is not None:
            filtered = self._sample_filtered(logits, rows, rows.filters, drawn[:, :, 0].amax(0))
            is_valid = out.index_select(0, rows.filters.rows) >= 0
            out.index_copy_(0, rows.filters.rows, filtered.where(is_valid, -1))
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

    def _draw(self, logits: Tensor, rows: SamplingRows, *, masked: bool) -> Tensor:
        """The best token of each row of all ranks, float32 [ranks, R, 4]."""
        return self._collectives.all_gather(draw(logits, rows, self.vocabulary.start, masked=masked))

    def _sample_filtered(self, logits: Tensor, rows: SamplingRows, filters: Filters, highest: Tensor) -> Tensor:
        """int64 [F]: the tokens of the rows with filters. highest: float32 [R], of the whole vocabulary."""
        temperatures, seeds, positions, peaks = (
            each.index_select(0, filters.rows) for each in (rows.temperatures, rows.seeds, rows.positions, highest)
        )
        scores = scale_logits(logits.index_select(0, filters.rows), temperatures, peaks)
        scaled = SamplingRows(torch.ones_like(temperatures), seeds, positions)
        drawn = self._draw(self._filters.keep(scores, filters), scaled, masked=True)
        out = torch.empty_like(filters.rows)
        pick_drawn(drawn, scaled.temperatures, out)
        return out

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
