"""Ranks that divide a vocabulary filter it as one rank does, in a few small exchanges."""

import pytest
import torch
from torch import Tensor

from filter_cases import random_filters, random_logits, without_near_ties
from punica_kernels.sampling import filter_logits
from punica_kernels.sampling_rows import Filters, scale_logits
from punica_serve.base_model.group_sizes import VOCABULARY_BLOCK
from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.divided_filters import DividedFilters
from punica_serve.models.collectives import Collectives
from thread_ranks import run_ranks


class CountedCollectives(Collectives):
    """Counts the exchanges, and the bytes that they bring to this rank.

    Those of a sum are its halves, first parts to add up and then sums, without this rank's own share of each.
    """

    def __init__(self, collectives: Collectives) -> None:
        self.rank = collectives.rank
        self.num_exchanges = self.num_bytes = 0
        self._collectives = collectives

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._collectives.empty(shape, dtype, device)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self._count(2 * tensor.nbytes // self.rank.size)
        return self._collectives.all_reduce(tensor)

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._count(tensor.nbytes)
        return self._collectives.all_gather(tensor)

    def _count(self, num_bytes: int) -> None:
        self.num_exchanges += 1
        self.num_bytes += (self.rank.size - 1) * num_bytes


def divide(vocab_size: int, size: int) -> list[range]:
    return [Rank(index, size).blocks(vocab_size, VOCABULARY_BLOCK) for index in range(size)]


def keep(size: int, scores: Tensor, filters: Filters) -> tuple[Tensor, list[CountedCollectives]]:
    parts = divide(scores.shape[1], size)

    def run(collectives: Collectives) -> tuple[Tensor, CountedCollectives]:
        counted = CountedCollectives(collectives)
        own = parts[collectives.rank.index]
        return DividedFilters(parts, counted).keep(scores[:, own.start : own.stop], filters), counted

    found, counted = zip(*run_ranks(size, run), strict=True)
    return torch.cat(found, dim=1), list(counted)


@pytest.mark.parametrize(("size", "vocab_size"), [(2, 99), (3, 97), (5, 40), (8, 1003)])
def test_ranks_keep_what_one_rank_keeps(size: int, vocab_size: int) -> None:
    rng = torch.Generator().manual_seed(size)
    scores = scale_logits(random_logits(rng, 60, vocab_size), torch.full((60,), 0.8))
    filters = without_near_ties(scores, random_filters(rng, torch.arange(60), vocab_size))
    expected = scores.clone()
    filter_logits(expected, filters.top_k, filters.top_p, filters.min_p)
    found, _ = keep(size, scores, filters)
    is_row = scores.amax(1) == 0
    assert torch.equal(found[is_row], expected[is_row])


# docs/notes/tensor-parallel.md has these bytes, and the 16 of the draw before and behind.
@pytest.mark.parametrize(("size", "num_bytes"), [(2, 12_856), (4, 27_288), (8, 45_108)])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_exchanges_are_as_many_and_as_small_whatever_the_rows(size: int, num_bytes: int, num_rows: int) -> None:
    scores = scale_logits(torch.randn(num_rows, 128_256), torch.ones(num_rows))
    filters = random_filters(torch.Generator().manual_seed(0), torch.arange(num_rows), 128_256)
    _, counted = keep(size, scores, filters)
    for each in counted:
        assert each.num_exchanges == 4
        assert each.num_bytes == num_rows * num_bytes
