"""Top-k, top-p and min-p over parts of the vocabulary, as ranks of a group have them, without gathering the logits.

All tokens stand in one order: by falling score, then by rising token id. A filter keeps them up to a threshold, which
the parts find together, as parallel sorting by regular sampling (Shi and Schaeffer, 1992) finds its bounds:

1. Each part sorts its tokens, and every `block`-th of them is a pivot. The parts exchange their pivots (`own_pivots`).
2. They add up the tokens and the mass that each of them has up to each pivot (`sums_at`).
3. The threshold lies between two pivots that follow each other, where no part has more than one block of tokens. The
   parts exchange these (`Interval.own_words`), and each finds the threshold among them (`find_cut`).

Step 3 is done for top_k, then for top_p, whose share is of the mass that top_k leaves. min_p needs the highest logit
alone. No shape depends on a value, and nothing waits for the device. All that parts exchange and compare are integers,
mass too: so all find the same threshold, whatever the order in which they add.
"""

from dataclasses import dataclass
from enum import IntEnum
from math import isqrt

import torch
from torch import Tensor
from torch.nn.functional import pad

from punica_kernels.sampling_rows import Filters

#: The mass of a row's most probable token. That of 2^24 tokens fits in 63 bits; each token loses less than one unit.
_MASS_OF_HIGHEST = float(1 << 38)
#: The key of -inf, which no other key is above.
_LAST_KEY = 0x7F800000


class Measure(IntEnum):
    """What a filter limits: the last dimension of all sums."""

    COUNT = 0
    MASS = 1


@dataclass(frozen=True, slots=True)
class SortedPart:
    """The tokens of a part of the vocabulary, W to each of F rows, in order."""

    #: int32 [F, W]: the bits of the negated score, ascending.
    keys: Tensor
    #: int64 [F, W]: the place of each in the part.
    columns: Tensor
    #: int64 [F, W]: key and token id in one, ascending.
    orders: Tensor
    #: int64 [F, W + 1]: the mass of the first 0, 1 and so on of them.
    masses: Tensor

    def own_pivots(self, block: int) -> Tensor:
        """The last of each block, int64 [F, W / block]."""
        return self.orders[:, block - 1 :: block].contiguous()

    def sums_at(self, pivots: Tensor) -> Tensor:
        """How many tokens of this part there are up to each pivot, and their mass: int64 [F, P, 2].

        pivots: int64 [F, P].
        """
        counts = torch.searchsorted(self.orders, pivots, right=True)
        return torch.stack([counts, self.masses.gather(1, counts)], dim=2)

    def keep(self, counts: Tensor) -> Tensor:
        """The scores of the first tokens, float32 [F, W], by their places in the part; -inf for all others.

        counts: int64 [F, 1].
        """
        ordinals = torch.arange(self.keys.shape[1], device=self.keys.device)
        scores = self.keys.view(torch.float32).neg().masked_fill_(ordinals >= counts, -torch.inf)
        return torch.empty_like(scores).scatter_(1, self.columns, scores)


@dataclass(frozen=True, slots=True)
class Interval:
    """The tokens above one pivot, up to the next: at most a block of each part."""

    #: int64 [F, 1]: the next pivot.
    end: Tensor
    #: int64 [F, 1]: how many tokens of this part come before.
    start: Tensor
    #: int64 [F, 2]: how many tokens of all parts come before, and their mass.
    before: Tensor

    def own_words(self, part: SortedPart, block: int) -> Tensor:
        """Keys and masses of this part's tokens, int32 [F, block, 2], for `find_cut`; -inf without mass fills up."""
        width = part.keys.shape[1]
        places = self.start + torch.arange(block, device=part.keys.device)
        is_token, places = places < width, places.clamp_max(width - 1)
        is_token &= part.orders.gather(1, places) <= self.end
        keys = part.keys.gather(1, places).where(is_token, _LAST_KEY)
        masses = (part.masses.gather(1, places + 1) - part.masses.gather(1, places)).where(is_token, 0)
        # A mass has 24 bits that count, as the float32 has from which it came.
        return torch.stack([keys, masses.float().view(torch.int32)], dim=2)


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a filter ends."""

    #: int64 [F, 1]: how many tokens of this part it keeps.
    kept: Tensor
    #: int64 [F, 2]: how many tokens of all parts it keeps, and their mass.
    sums: Tensor


def block_size(width: int) -> int:
    """How many tokens stand between two pivots of a part of `width` tokens.

    Such blocks take the fewest bytes. Of n parts, each gets (n - 1) W / B pivots of 8 bytes from the others. The sums
    at all n W / B pivots have 16 bytes each, of which adding them up takes (n - 1) / n twice. Two thresholds take 8
    bytes for each of (n - 1) B tokens. That is (n - 1) (40 W / B + 16 B) bytes a row, the least at B^2 = 5 W / 2.
    """
    return max(1, isqrt(5 * width // 2))


def sort_part(scores: Tensor, min_p: Tensor, first_token: int, width: int) -> SortedPart:
    """The tokens of a part that min_p keeps, in order, filled up with -inf to `width` tokens.

    scores: float32 [F, tokens], relative to the highest of all parts: see `scale_logits`; min_p: float32 [F]; width:
    whole blocks, as many as the widest part takes.
    """
    # NaN and +inf have no place among the keys. They count as -inf, since a row that has any gives no token.
    is_possible = (scores <= 0) & (scores >= min_p.log()[:, None])
    scores = pad(scores.where(is_possible, -torch.inf), (0, width - scores.shape[1]), value=-torch.inf)
    # 0 - score, never -0, has bits that rise as scores fall.
    keys, columns = (0.0 - scores).view(torch.int32).sort(dim=1, stable=True)
    orders = (keys.long() << 32) + columns + first_token
    masses = (keys.view(torch.float32).neg().exp_() * _MASS_OF_HIGHEST).long().cumsum(1)
    return SortedPart(keys, columns, orders, pad(masses, (1, 0)))


def merge_pivots(pivots: Tensor) -> Tensor:
    """One that is before all tokens, then the pivots of all parts [parts, F, P] in order: int64 [F, 1 + parts * P]."""
    return pad(pivots.transpose(0, 1).flatten(1).sort(dim=1).values, (1, 0), value=-1)


def find_interval(part: SortedPart, pivots: Tensor, sums: Tensor, measure: Measure, target: Tensor) -> Interval:
    """The interval in which the sum reaches the target.

    pivots: int64 [F, P], of `merge_pivots`; sums: int64 [F, P, 2], of all parts; target: int64 [F, 1], above 0.
    """
    end = _first_that_reaches(sums, measure, target)
    start = torch.searchsorted(part.orders, pivots.gather(1, end - 1), right=True)
    return Interval(pivots.gather(1, end), start, _sums_of(sums, end - 1))


def find_cut(interval: Interval, words: Tensor, index: int, measure: Measure, target: Tensor) -> Cut:
    """The fewest tokens with which the sum reaches the target; it must do so within the interval.

    words: int32 [parts, F, block, 2], by first token; index: which of them are this part's.
    """
    _, _, block, _ = words.shape
    keys, masses = words.transpose(0, 1).flatten(1, 2).unbind(2)
    # Of equal keys, those of an earlier part come first, and in a part they are in order.
    places = keys.sort(dim=1, stable=True).indices
    masses = masses.view(torch.float32).long().gather(1, places).cumsum(1)
    counts = torch.arange(1, masses.shape[1] + 1, device=words.device)
    sums = torch.stack([counts.expand_as(masses), masses], dim=2) + interval.before[:, None]
    last = _first_that_reaches(sums, measure, target)
    own = ((places // block == index) & (counts <= last + 1)).sum(1, keepdim=True)
    return Cut(interval.start + own, _sums_of(sums, last))


def top_k_target(filters: Filters, vocab_size: int) -> Tensor:
    """How many tokens top_k keeps, int64 [F, 1]."""
    return filters.top_k.where(filters.top_k > 0, vocab_size).clamp_max(vocab_size)[:, None]


def top_p_target(filters: Filters, kept: Cut) -> Tensor:
    """How much of the mass that top_k leaves top_p keeps, int64 [F, 1]: the most probable token in any case."""
    share = filters.top_p.double() * kept.sums[:, Measure.MASS]
    return share.ceil_().long().clamp_min_(1)[:, None]


def _first_that_reaches(sums: Tensor, measure: Measure, target: Tensor) -> Tensor:
    """int64 [F, 1]: the place of the first sum that is the target or more; of the last in a row that gives no token."""
    return torch.searchsorted(sums[:, :, measure].contiguous(), target).clamp_max(sums.shape[1] - 1)


def _sums_of(sums: Tensor, place: Tensor) -> Tensor:
    """The sums at a place [F, 1] of each row, [F, 2]."""
    return sums.gather(1, place[:, :, None].expand(-1, -1, 2)).squeeze(1)
