"""The page tables of a GPU's attention."""

import numpy as np
import pytest

from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.page_arrays import PageArrays
from punica_serve.engine.cuda.step_pages import PageRuns, StepPages, lay_out_pages
from punica_serve.protocol import Request, SamplingParams


def _sequence(num_tokens: int, num_cached: int, pages: list[int]) -> Sequence:
    sequence = Sequence.of(Request("r", 0, (1,) * num_tokens, SamplingParams()), 64)
    sequence.num_cached, sequence.pages = num_cached, pages
    return sequence


def _lay_out(step: StepPlan, bucket: BatchBucket) -> StepPages:
    return lay_out_pages(step, bucket, PageArrays(), page_size=4)


def _numbers(pages: StepPages, runs: PageRuns) -> tuple[list[int], list[int], list[int]]:
    """Lengths, starts among the step's pages, and pages."""
    tables = (runs.lengths, runs.starts, pages.kv_pages[runs.starts[0] : runs.starts[-1]])
    assert all(table.dtype == np.int32 for table in tables)
    lengths, starts, numbers = (table.tolist() for table in tables)
    return lengths, starts, numbers


def test_a_request_has_the_pages_of_its_length_and_those_past_it_are_left_out() -> None:
    contexts = [(1, [7]), (4, [6, 1]), (5, [5, 4]), (8, [3, 2, 0])]
    step = StepPlan((), tuple(_sequence(length, length - 1, pages) for length, pages in contexts))
    pages = _lay_out(step, BatchBucket(0, 4))
    assert _numbers(pages, pages.decodes) == ([1, 4, 5, 8], [0, 1, 2, 4, 6], [7, 6, 5, 4, 3, 2])


def test_a_request_without_a_page_for_its_last_token_is_refused() -> None:
    with pytest.raises(ValueError, match="2 pages"):
        _lay_out(StepPlan((), (_sequence(5, 4, [7]),)), BatchBucket(0, 1))


def test_decodes_write_behind_what_is_cached_and_rows_that_pad_nowhere() -> None:
    step = StepPlan((), (_sequence(6, 5, [3, 8]), _sequence(5, 4, [2, 0]), _sequence(4, 3, [6])))
    pages = _lay_out(step, BatchBucket(0, 5))
    assert pages.slot_mapping.tolist() == [8 * 4 + 1, 0 * 4 + 0, 6 * 4 + 3, -1, -1]
    assert _numbers(pages, pages.decodes) == ([6, 5, 4], [0, 2, 4, 5], [3, 8, 2, 0, 6])
    assert _numbers(pages, pages.prefill) == ([], [5], [])


def test_a_chunk_sees_the_context_before_it_and_writes_only_itself() -> None:
    step = StepPlan((PrefillChunk(_sequence(20, 3, [5, 9, 1, 0, 2, 4]), 3, 9, is_last=False),), (_sequence(2, 1, [7]),))
    pages = _lay_out(step, BatchBucket(8, 2))
    assert pages.prefill_rows.tolist() == [2, 8]
    assert pages.slot_mapping.tolist() == [-1, -1, 5 * 4 + 3, 36, 37, 38, 39, 4, 29, -1]
    assert _numbers(pages, pages.prefill) == ([9], [1, 4], [5, 9, 1])
    assert _numbers(pages, pages.decodes) == ([2], [0, 1], [7])


def test_prefills_lie_behind_each_other_and_behind_the_padding() -> None:
    chunks = (
        PrefillChunk(_sequence(5, 3, [5, 9]), 3, 5, is_last=True),
        PrefillChunk(_sequence(9, 0, [1, 2, 3]), 0, 5, is_last=False),
    )
    pages = _lay_out(StepPlan(chunks, ()), BatchBucket(8, 1, max_prefills=2))
    assert pages.prefill_rows.tolist() == [1, 3, 8]
    assert pages.slot_mapping.tolist() == [-1, 5 * 4 + 3, 9 * 4, 4, 5, 6, 7, 8, -1]
    assert _numbers(pages, pages.prefill) == ([5, 5], [0, 2, 4], [5, 9, 1, 2])
    with pytest.raises(ValueError, match="2 prefills of 7 prefill rows"):
        _lay_out(StepPlan(chunks, ()), BatchBucket(8, 1))


def test_pages_behind_the_window_are_in_no_table() -> None:
    """The rows at 9 and at 13 see tokens from 5 and from 9 on: the first page is gone, and the first two."""
    chunk = PrefillChunk(_sequence(20, 9, [-9, 9, 1, 0, 2]), 9, 18, is_last=False)
    step = StepPlan((chunk,), (_sequence(14, 13, [-9, -9, 5, 7]), _sequence(3, 2, [6])))
    pages = lay_out_pages(step, BatchBucket(9, 2), PageArrays(), page_size=4, window=5)
    assert _numbers(pages, pages.prefill) == ([14], [3, 7], [9, 1, 0, 2])
    assert _numbers(pages, pages.decodes) == ([6, 3], [0, 2, 3], [5, 7, 6])
    assert pages.slot_mapping.tolist() == [5, 6, 7, 0, 1, 2, 3, 8, 9, 29, 26]


def test_an_empty_step_is_padding_that_attends_to_nothing() -> None:
    pages = _lay_out(StepPlan((), ()), BatchBucket(6, 1))
    assert pages.slot_mapping.tolist() == [-1] * 7
    assert _numbers(pages, pages.prefill) == _numbers(pages, pages.decodes) == ([], [0], [])


def test_a_step_that_does_not_fit_is_refused() -> None:
    sequence = _sequence(9, 0, [0, 1, 2])
    with pytest.raises(ValueError, match="9 prefill rows"):
        _lay_out(StepPlan((PrefillChunk(sequence, 0, 9, is_last=True),), ()), BatchBucket(8, 1))
    with pytest.raises(ValueError, match="1 decodes"):
        _lay_out(StepPlan((), (sequence,)), BatchBucket(8, 0))
