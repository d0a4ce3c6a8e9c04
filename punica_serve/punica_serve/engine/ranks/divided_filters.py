"""Top-k, top-p and min-p over a vocabulary that the ranks of a group divide, in four exchanges."""

from collections.abc import Sequence

from torch import Tensor

from punica_kernels.part_filters import (
    Cut,
    Measure,
    SortedPart,
    block_size,
    find_cut,
    find_interval,
    merge_pivots,
    sort_part,
    top_k_target,
    top_p_target,
)
from punica_kernels.sampling_rows import Filters
from punica_serve.models.collectives import Collectives


class DividedFilters:
    """A rank's end of the filters; see `punica_kernels.part_filters`. All ranks filter the same rows."""

    def __init__(self, parts: Sequence[range], collectives: Collectives) -> None:
        """``parts``: the tokens of each rank."""
        widest = max(map(len, parts))
        self._block = block_size(widest)
        #: The same on all ranks, as exchanges need it.
        self._width = -(-widest // self._block) * self._block
        self._first_token = parts[collectives.rank.index].start
        self._vocab_size = parts[-1].stop
        self._collectives = collectives

    def keep(self, scores: Tensor, filters: Filters) -> Tensor:
        """The scores of this rank's tokens, and -inf for those that `filter_logits` removes from the whole row.

        The cut may differ from its own where probabilities add up to `top_p` except for their last bits.

        scores: float32 [F, tokens of this rank], relative to the row's highest: see `scale_logits`.
        """
        part = sort_part(scores, filters.min_p, self._first_token, self._width)
        pivots = merge_pivots(self._collectives.all_gather(part.own_pivots(self._block)))
        sums = self._collectives.all_reduce(part.sums_at(pivots))
        top_k = self._cut(part, pivots, sums, Measure.COUNT, top_k_target(filters, self._vocab_size))
        top_p = self._cut(part, pivots, sums, Measure.MASS, top_p_target(filters, top_k))
        # A top_p of 1 keeps tokens without mass, too.
        kept = top_p.kept.where(filters.top_p[:, None] < 1, top_k.kept)
        return part.keep(kept)[:, : scores.shape[1]]

    def _cut(self, part: SortedPart, pivots: Tensor, sums: Tensor, measure: Measure, target: Tensor) -> Cut:
        interval = find_interval(part, pivots, sums, measure, target)
        words = self._collectives.all_gather(interval.own_words(part, self._block))
        return find_cut(interval, words, self._collectives.rank.index, measure, target)
