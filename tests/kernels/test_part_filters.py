"""Filters over parts of a vocabulary keep what they keep of the whole."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from device_waits import waits_are_errors
from examples import examples
from filter_cases import random_filters, random_logits, without_near_ties
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
from punica_kernels.sampling import filter_logits
from punica_kernels.sampling_rows import Filters, scale_logits

INF = math.inf


def find_cuts(
    parts: list[SortedPart], pivots: Tensor, sums: Tensor, block: int, measure: Measure, target: Tensor
) -> list[Cut]:
    intervals = [find_interval(part, pivots, sums, measure, target) for part in parts]
    words = torch.stack([interval.own_words(part, block) for interval, part in zip(intervals, parts, strict=True)])
    cuts = [find_cut(interval, words, index, measure, target) for index, interval in enumerate(intervals)]
    for cut in cuts:
        assert torch.equal(cut.sums, cuts[0].sums)
        assert torch.equal(cut.sums[:, Measure.COUNT, None], torch.stack([each.kept for each in cuts]).sum(0))
    return cuts


def keep_in_parts(scores: Tensor, filters: Filters, bounds: list[int], block: int) -> Tensor:
    """What all parts keep, one after another; `bounds`: where each begins, and where the last ends."""
    ranges = list(pairwise(bounds))
    width = -(-max(end - start for start, end in ranges) // block) * block
    parts = [sort_part(scores[:, start:end], filters.min_p, start, width) for start, end in ranges]
    pivots = merge_pivots(torch.stack([part.own_pivots(block) for part in parts]))
    sums = torch.stack([part.sums_at(pivots) for part in parts]).sum(0)
    top_k = find_cuts(parts, pivots, sums, block, Measure.COUNT, top_k_target(filters, bounds[-1]))
    top_p = find_cuts(parts, pivots, sums, block, Measure.MASS, top_p_target(filters, top_k[0]))
    left = []
    for part, by_count, by_mass, (start, end) in zip(parts, top_k, top_p, ranges, strict=True):
        kept = by_mass.kept.where(filters.top_p[:, None] < 1, by_count.kept)
        left.append(part.keep(kept)[:, : end - start])
    return torch.cat(left, dim=1)


def keep_in_whole(scores: Tensor, filters: Filters) -> Tensor:
    left = scores.clone()
    filter_logits(left, filters.top_k, filters.top_p, filters.min_p)
    return left


def filters_of(*rows: tuple[int, float, float]) -> Filters:
    top_k, top_p, min_p = zip(*rows, strict=True)
    return Filters(torch.arange(len(rows)), torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p))


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_parts_keep_what_the_whole_keeps(data: st.DataObject) -> None:
    vocab_size = data.draw(st.integers(1, 300))
    inner = data.draw(st.lists(st.integers(0, vocab_size), max_size=7))
    block = data.draw(st.sampled_from([1, 2, 3, 8, 27, 400]))
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 9999)))
    logits = random_logits(rng, 12, vocab_size)
    logits[:, data.draw(st.integers(0, vocab_size - 1))] = 0.0
    scores = scale_logits(logits, torch.tensor([0.3, 1.0, 2.0] * 4))
    filters = without_near_ties(scores, random_filters(rng, torch.arange(12), vocab_size))
    found = keep_in_parts(scores, filters, [0, *sorted(inner), vocab_size], block)
    assert torch.equal(found, keep_in_whole(scores, filters))


def test_of_equal_scores_the_first_tokens_stay_across_parts() -> None:
    scores = torch.full((4, 64), -1.0)
    scores[:, 50] = 0.0
    scores[3] = 0.0
    # The highest has e times the mass of each other.
    filters = filters_of((20, 1.0, 0.0), (0, 0.5, 0.0), (20, 0.5, 0.0), (0, 0.5, 0.0))
    kept = keep_in_parts(scores, filters, [0, 16, 40, 64], 4) > -INF
    others = [*range(50), *range(51, 64)]
    for row, num_others in enumerate((19, 31, 9)):
        assert kept[row].nonzero().squeeze(1).tolist() == sorted([50, *others[:num_others]])
    assert kept[3].nonzero().squeeze(1).tolist() == list(range(32))


def test_neighbouring_floats_are_told_apart() -> None:
    below = torch.tensor(-1.0).view(torch.int32) + torch.arange(40, dtype=torch.int32)
    scores = torch.cat([torch.zeros(1), below.view(torch.float32)]).flip(0).repeat(3, 1)
    filters = filters_of((8, 1.0, 0.0), (0, 0.5, 0.0), (0, 0.52, 0.0))
    kept = keep_in_parts(scores, filters, [0, 9, 41], 5) > -INF
    for row, num_kept in enumerate((8, 20, 21)):
        assert kept[row].tolist() == [False] * (41 - num_kept) + [True] * num_kept


def test_a_top_p_of_one_keeps_tokens_without_mass() -> None:
    scores = torch.tensor([[0.0, -200.0, -90.0, -300.0]])
    assert torch.equal(keep_in_parts(scores, filters_of((0, 1.0, 0.0)), [0, 2, 4], 1), scores)
    kept = keep_in_parts(scores, filters_of((3, 1.0, 0.0)), [0, 2, 4], 1)
    assert (kept > -INF).tolist() == [[True, True, True, False]]


def test_the_order_of_negative_zero_is_that_of_zero() -> None:
    scores = torch.tensor([[-1.0, 0.0, -0.0, 0.0]])
    kept = keep_in_parts(scores, filters_of((2, 1.0, 0.0)), [0, 2, 4], 2)
    assert (kept > -INF).tolist() == [[False, True, True, False]]


@pytest.mark.parametrize("bad", [math.nan, INF, -INF])
def test_a_row_that_is_not_finite_changes_no_other(bad: float) -> None:
    scores = scale_logits(torch.randn(3, 40), torch.ones(3))
    filters = without_near_ties(scores, filters_of((4, 1.0, 0.0), (3, 0.8, 0.01), (0, 0.5, 0.0)))
    expected = keep_in_whole(scores, filters)
    scores[1] = bad
    found = keep_in_parts(scores, filters, [0, 24, 40], 6)
    assert torch.equal(found[::2], expected[::2])
    assert not found[1].isnan().any()


def test_a_row_is_filtered_alike_in_any_number_of_parts_and_rows() -> None:
    """Bit by bit, even where sums nearly are top_p, since all of them are of integers."""
    scores = scale_logits(torch.zeros(5, 96), torch.ones(5))
    filters = filters_of(*[(0, number / 96, 0.0) for number in (1, 7, 48, 55, 95)])
    whole = keep_in_parts(scores, filters, [0, 96], 7)
    for bounds in ([0, 48, 96], [0, 8, 8, 70, 96]):
        assert torch.equal(keep_in_parts(scores, filters, bounds, 5), whole)
    one = Filters(filters.rows[:1], *(each[3:4] for each in (filters.top_k, filters.top_p, filters.min_p)))
    assert torch.equal(keep_in_parts(scores[3:4], one, [0, 48, 96], 5), whole[3:4])


def test_no_rows() -> None:
    empty = torch.empty(0)
    assert keep_in_parts(
        torch.empty(0, 24), Filters(empty.long(), empty.long(), empty, empty), [0, 8, 24], 3
    ).shape == (
        0,
        24,
    )


@pytest.mark.parametrize("width", [1, 8, 4000, 64128])
def test_blocks_take_the_fewest_bytes(width: int) -> None:
    def num_bytes(block: int) -> float:
        return 40 * width / block + 16 * block

    best = min(range(1, width + 1), key=num_bytes)
    assert num_bytes(block_size(width)) <= 1.05 * num_bytes(best)


def on_gpu(filters: Filters) -> Filters:
    return Filters(*(each.cuda() for each in (filters.rows, filters.top_k, filters.top_p, filters.min_p)))


@pytest.mark.gpu
@pytest.mark.parametrize("vocab_size", [32_000, 128_256])
def test_parts_on_a_gpu_keep_what_the_whole_keeps(vocab_size: int) -> None:
    rng = torch.Generator().manual_seed(0)
    logits = random_logits(rng, 40, vocab_size)
    logits[:, 9] = 0.0
    scores = scale_logits(logits, torch.linspace(0.3, 3, 40))
    filters = without_near_ties(scores, random_filters(rng, torch.arange(40), vocab_size))
    bounds = [0, 8, vocab_size // 2, vocab_size]
    found = keep_in_parts(scores.cuda(), on_gpu(filters), bounds, block_size(vocab_size // 2))
    stays, expected = found.cpu() > -INF, keep_in_whole(scores, filters) > -INF
    # Sums of so many probabilities in float32 are less exact than a whole near tie.
    assert ((stays != expected).sum(1) <= 1 + expected.sum(1) // 1000).all()
    again = keep_in_parts(scores.cuda(), on_gpu(filters), bounds, 99)
    assert torch.equal(found, again)


@pytest.mark.gpu
def test_a_cuda_graph_filters_other_rows_than_it_was_captured_with() -> None:
    """And nothing waits for the device."""
    rng, scores = torch.Generator().manual_seed(0), torch.zeros(8, 32_000, device="cuda")
    filters = on_gpu(random_filters(rng, torch.arange(8), 32_000))

    def keep() -> list[Tensor]:
        part = sort_part(scores, filters.min_p, 0, 32_000)
        pivots = merge_pivots(part.own_pivots(200)[None])
        sums, cuts = part.sums_at(pivots), []
        target = top_k_target(filters, 32_000)
        for measure in Measure:
            interval = find_interval(part, pivots, sums, measure, target)
            cuts.append(find_cut(interval, interval.own_words(part, 200)[None], 0, measure, target))
            target = top_p_target(filters, cuts[0])
        return [part.keep(cut.kept) for cut in cuts]

    keep()
    with waits_are_errors():
        keep()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = keep()
    for _ in range(3):
        scores.copy_(scale_logits(torch.randn(8, 32_000) * 3, torch.ones(8)))
        other = random_filters(rng, torch.arange(8), 32_000)
        for name in ("top_k", "top_p", "min_p"):
            getattr(filters, name).copy_(getattr(other, name))
        graph.replay()
        for mine, eager in zip(found, keep(), strict=True):
            assert torch.equal(mine, eager)
