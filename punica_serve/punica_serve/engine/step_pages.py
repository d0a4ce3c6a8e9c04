"""Where the requests of a step lie in the KvCache, as the int32 tables that the attention kernels of a GPU read.

Plain numpy, on the host. A step is laid out in a StepShape: the prefill's rows first, padded in front to their number,
then one row for each decode, padded behind. Rows that pad write no keys and values; those of decodes read one token of
the null page and those of a prefill nothing, and nobody looks at what they become.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from punica_serve.engine.planner import StepPlan
from punica_serve.engine.step_shape import StepShape
from punica_serve.engine.step_words import Int32s

#: The slot of rows whose keys and values go nowhere.
NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class PageRuns:
    """The pages of requests, one request after the other."""

    #: Tokens of each request: [requests].
    lengths: Int32s
    #: Where each request's pages begin in ``indices``, and their number at the end: [requests + 1].
    indptr: Int32s
    indices: Int32s
    #: Tokens in the last page of each request, at least 1: [requests].
    last_page_lengths: Int32s

    @classmethod
    def of(cls, lengths: Int32s, num_pages: Int32s, indices: Int32s, page_size: int) -> "PageRuns":
        """Requests of these lengths, which have so many pages each in ``indices``."""
        indptr = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(num_pages, out=indptr[1:])
        return cls(lengths, indptr, indices, lengths - (num_pages - 1) * np.int32(page_size))


@dataclass(frozen=True, slots=True)
class StepPages:
    """A step of one shape."""

    #: page * page_size + offset, where each row's key and value go; NO_SLOT for rows that pad: [rows].
    slots: Int32s
    #: The first row of the prefill that does not pad: from there on they are the last ones of its context.
    first_prefill_row: int
    #: One request, if the shape has prefill rows.
    prefill: PageRuns | None
    #: One request for each decode row, if the shape has any.
    decodes: PageRuns | None


def lay_out_pages(step: StepPlan, shape: StepShape, *, page_size: int, null_page: int) -> StepPages:
    """Reads the pages of the step's sequences, which must have room for the step's rows.

    A step without a prefill, in a shape with rows for one, gets one of padding that takes them all. ValueError: the
    step does not fit the shape.
    """
    num_prefill_tokens = step.prefill.num_tokens if step.prefill else 0
    if num_prefill_tokens > shape.num_prefill_rows or len(step.decodes) > shape.num_decode_rows:
        raise ValueError(f"a step of {num_prefill_tokens} prefill rows and {len(step.decodes)} decodes in {shape}")
    slots = np.full(shape.num_rows, NO_SLOT, dtype=np.int32)
    first_prefill_row, prefill = _lay_out_prefill(step, page_size, null_page, slots[: shape.num_prefill_rows])
    decodes = _lay_out_decodes(step, page_size, null_page, slots[shape.num_prefill_rows :])
    return StepPages(slots, first_prefill_row, prefill, decodes)


def page_runs(lengths: Sequence[int], pages: Sequence[Sequence[int]], page_size: int) -> PageRuns:
    """The tables of requests of these lengths; pages past a length are left out. ValueError: too few pages."""
    tokens = np.array(lengths, dtype=np.int32)
    counts = -(-tokens // page_size)
    used = (own[:count] for own, count in zip(pages, counts.tolist(), strict=True))
    indices = np.fromiter(chain.from_iterable(used), dtype=np.int32, count=int(counts.sum()))
    return PageRuns.of(tokens, counts, indices, page_size)


def _lay_out_prefill(step: StepPlan, page_size: int, null_page: int, slots: Int32s) -> tuple[int, PageRuns | None]:
    chunk, num_rows = step.prefill, len(slots)
    if chunk is None:
        return 0, _padding(num_rows, page_size, null_page) if num_rows else None
    runs = page_runs([chunk.end], [chunk.sequence.pages], page_size)
    positions = np.arange(chunk.start, chunk.end, dtype=np.int32)
    first_row = num_rows - len(positions)
    slots[first_row:] = runs.indices[positions // page_size] * page_size + positions % page_size
    return first_row, runs


def _padding(num_tokens: int, page_size: int, null_page: int) -> PageRuns:
    """A request of this length that owns nothing."""
    return page_runs([num_tokens], [[null_page] * -(-num_tokens // page_size)], page_size)


def _lay_out_decodes(step: StepPlan, page_size: int, null_page: int, slots: Int32s) -> PageRuns | None:
    num_own, num_padding = len(step.decodes), len(slots) - len(step.decodes)
    if not len(slots):
        return None
    lengths = [sequence.num_cached + 1 for sequence in step.decodes] + [1] * num_padding
    pages = [sequence.pages for sequence in step.decodes] + [[null_page]] * num_padding
    runs = page_runs(lengths, pages, page_size)
    last_pages = runs.indices[runs.indptr[1:] - 1]
    slots[:num_own] = (last_pages * page_size + runs.last_page_lengths - 1)[:num_own]
    return runs
