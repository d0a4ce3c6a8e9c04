"""Where the requests of a step lie in the KvCache, as the int32 tables that the attention kernels of a GPU read.

Plain numpy, on the host. A step is laid out in a StepShape: the prefill's rows first, padded in front to their number,
then one row for each decode, padded behind. Rows that pad write no keys and values and attend to nothing; nobody looks
at what they become.
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
    starts: Int32s
    indices: Int32s


@dataclass(frozen=True, slots=True)
class StepPages:
    """A step of one shape."""

    #: page * page_size + offset, where each row's key and value go; NO_SLOT for rows that pad: [rows].
    slots: Int32s
    #: The first row of the prefill that does not pad: from there on they are the last ones of its context.
    first_prefill_row: int
    #: One request, or none.
    prefill: PageRuns
    #: One request for each decode.
    decodes: PageRuns


def lay_out_pages(step: StepPlan, shape: StepShape, *, page_size: int) -> StepPages:
    """Reads the pages of the step's sequences, which must have room for the step's rows.

    ValueError: the step does not fit the shape.
    """
    num_prefill_tokens = step.prefill.num_tokens if step.prefill else 0
    if num_prefill_tokens > shape.num_prefill_rows or len(step.decodes) > shape.num_decode_rows:
        raise ValueError(f"a step of {num_prefill_tokens} prefill rows and {len(step.decodes)} decodes in {shape}")
    slots = np.full(shape.num_rows, NO_SLOT, dtype=np.int32)
    first_prefill_row = shape.num_prefill_rows - num_prefill_tokens
    prefill = _lay_out_prefill(step, page_size, slots[first_prefill_row : shape.num_prefill_rows])
    first_decode_row = shape.num_prefill_rows
    decodes = _lay_out_decodes(step, page_size, slots[first_decode_row : first_decode_row + len(step.decodes)])
    return StepPages(slots, first_prefill_row, prefill, decodes)


def page_runs(lengths: Sequence[int], pages: Sequence[Sequence[int]], page_size: int) -> PageRuns:
    """The tables of requests of these lengths; pages past a length are left out. ValueError: too few pages."""
    tokens = np.array(lengths, dtype=np.int32)
    counts = -(-tokens // page_size)
    used = (own[:count] for own, count in zip(pages, counts.tolist(), strict=True))
    indices = np.fromiter(chain.from_iterable(used), dtype=np.int32, count=int(counts.sum()))
    starts = np.zeros(len(tokens) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    return PageRuns(tokens, starts, indices)


def _lay_out_prefill(step: StepPlan, page_size: int, slots: Int32s) -> PageRuns:
    chunk = step.prefill
    if chunk is None:
        return page_runs([], [], page_size)
    runs = page_runs([chunk.end], [chunk.sequence.pages], page_size)
    positions = np.arange(chunk.start, chunk.end, dtype=np.int32)
    slots[:] = runs.indices[positions // page_size] * page_size + positions % page_size
    return runs


def _lay_out_decodes(step: StepPlan, page_size: int, slots: Int32s) -> PageRuns:
    lengths = [sequence.num_cached + 1 for sequence in step.decodes]
    runs = page_runs(lengths, [sequence.pages for sequence in step.decodes], page_size)
    last_pages = runs.indices[runs.starts[1:] - 1]
    slots[:] = last_pages * page_size + (runs.lengths - 1) % page_size
    return runs
