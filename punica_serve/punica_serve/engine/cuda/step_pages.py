"""The pages of a step's requests in the KvCache, as the int32 tables that the attention kernels of a GPU read.

Plain numpy, on the host. A step is laid out in a BatchBucket: the prefill's rows first, padded in front, then one row
for each decode, padded behind. Padding rows write no keys and values and attend to nothing; their results are not read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from punica_serve.engine.batching.step_planner import StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.step_input_buffer import Int32s

#: The slot of rows whose keys and values are not stored.
NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class PageRuns:
    """The pages of requests, one request after the other."""

    #: Tokens of each request: [requests].
    lengths: Int32s
    #: The index of each request's first page in ``indices``, then the number of pages: [requests + 1].
    starts: Int32s
    indices: Int32s


@dataclass(frozen=True, slots=True)
class StepPages:
    """A step laid out in a bucket."""

    #: page * page_size + offset of each row's key and value; NO_SLOT for padding: [rows].
    slot_mapping: Int32s
    #: The prefill's first row after the padding: from there on, rows are the last ones of its context.
    first_prefill_row: int
    #: One request, or none.
    prefill: PageRuns
    #: One request for each decode.
    decodes: PageRuns


def lay_out_pages(step: StepPlan, bucket: BatchBucket, *, page_size: int) -> StepPages:
    """Reads the pages of the step's sequences, which must have room for the step's rows.

    ValueError: the step does not fit the bucket.
    """
    num_prefill_tokens = step.prefill.num_tokens if step.prefill else 0
    if num_prefill_tokens > bucket.num_prefill_rows or len(step.decodes) > bucket.num_decode_rows:
        raise ValueError(f"a step of {num_prefill_tokens} prefill rows and {len(step.decodes)} decodes in {bucket}")
    slot_mapping = np.full(bucket.num_rows, NO_SLOT, dtype=np.int32)
    first_prefill_row = bucket.num_prefill_rows - num_prefill_tokens
    prefill = _lay_out_prefill(step, page_size, slot_mapping[first_prefill_row : bucket.num_prefill_rows])
    first_decode_row = bucket.num_prefill_rows
    decodes = _lay_out_decodes(step, page_size, slot_mapping[first_decode_row : first_decode_row + len(step.decodes)])
    return StepPages(slot_mapping, first_prefill_row, prefill, decodes)


def page_runs(lengths: Sequence[int], pages: Sequence[Sequence[int]], page_size: int) -> PageRuns:
    """The tables of requests of these lengths; pages past a length are left out. ValueError: too few pages."""
    tokens = np.array(lengths, dtype=np.int32)
    counts = -(-tokens // page_size)
    used = (own[:count] for own, count in zip(pages, counts.tolist(), strict=True))
    indices = np.fromiter(chain.from_iterable(used), dtype=np.int32, count=int(counts.sum()))
    starts = np.zeros(len(tokens) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    return PageRuns(tokens, starts, indices)


def _lay_out_prefill(step: StepPlan, page_size: int, slot_mapping: Int32s) -> PageRuns:
    chunk = step.prefill
    if chunk is None:
        return page_runs([], [], page_size)
    runs = page_runs([chunk.end], [chunk.sequence.pages], page_size)
    positions = np.arange(chunk.start, chunk.end, dtype=np.int32)
    slot_mapping[:] = runs.indices[positions // page_size] * page_size + positions % page_size
    return runs


def _lay_out_decodes(step: StepPlan, page_size: int, slot_mapping: Int32s) -> PageRuns:
    lengths = [sequence.num_cached + 1 for sequence in step.decodes]
    runs = page_runs(lengths, [sequence.pages for sequence in step.decodes], page_size)
    last_pages = runs.indices[runs.starts[1:] - 1]
    slot_mapping[:] = last_pages * page_size + (runs.lengths - 1) % page_size
    return runs
