"""The pages of a step's requests in the KvCache, as the int32 tables that the attention kernels of a GPU read.

Plain numpy, on the host. A step is laid out in a BatchBucket: the prefills' rows first, padded in front, then one row
for each decode, padded behind. Padding rows write no keys and values and attend to nothing; their results are not read.
Where pages are given back behind sliding windows, a table begins with the first page that its request still holds, and
counts the tokens from there on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from punica_kernels.members import Indices
from punica_serve.engine.batching.sequence import Sequence as RequestSequence
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.step_input_buffer import Int32s
from punica_serve.paging.page_rule import first_kept_page

#: The slot of rows whose keys and values are not stored.
NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class PageRuns:
    """The pages of requests, one request after the other."""

    #: Tokens of each request, from its first page here on: [requests].
    lengths: Int32s
    #: The index of each request's first page in ``indices``, then the number of pages: [requests + 1].
    starts: Int32s
    indices: Int32s


@dataclass(frozen=True, slots=True)
class StepPages:
    """A step laid out in a bucket."""

    #: page * page_size + offset of each row's key and value; NO_SLOT for padding: [rows].
    slot_mapping: Int32s
    #: [prefills + 1] The first row of each prefill, then the row after the last. Rows are the last ones of a context.
    prefill_rows: Indices
    #: One request for each prefill.
    prefill: PageRuns
    #: One request for each decode.
    decodes: PageRuns


def lay_out_pages(step: StepPlan, bucket: BatchBucket, *, page_size: int, window: int | None = None) -> StepPages:
    """Reads the pages of the step's sequences, which must have room for the step's rows.

    ``window``: pages behind it were given back; see `PageRule`.
    ValueError: the step does not fit the bucket.
    """
    _check_fits(step, bucket)
    slot_mapping = np.full(bucket.num_rows, NO_SLOT, dtype=np.int32)
    rows = prefill_rows(step, bucket)
    prefill = _lay_out_prefills(step, page_size, window, slot_mapping[rows[0] : bucket.num_prefill_rows])
    first_decode_row = bucket.num_prefill_rows
    decode_slots = slot_mapping[first_decode_row : first_decode_row + len(step.decodes)]
    decodes = _lay_out_decodes(step, page_size, window, decode_slots)
    return StepPages(slot_mapping, rows, prefill, decodes)


def prefill_rows(step: StepPlan, bucket: BatchBucket) -> Indices:
    """[prefills + 1] The first row of each prefill, then the row after the last."""
    lengths = [chunk.num_tokens for chunk in step.prefills]
    return np.cumsum([bucket.num_prefill_rows - sum(lengths), *lengths], dtype=np.int64)


def page_runs(lengths: Sequence[int], pages: Sequence[Sequence[int]], page_size: int) -> PageRuns:
    """The tables of requests of these lengths; pages past a length are left out. ValueError: too few pages."""
    tokens = np.array(lengths, dtype=np.int32)
    counts = -(-tokens // page_size)
    used = (own[:count] for own, count in zip(pages, counts.tolist(), strict=True))
    indices = np.fromiter(chain.from_iterable(used), dtype=np.int32, count=int(counts.sum()))
    starts = np.zeros(len(tokens) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    return PageRuns(tokens, starts, indices)


def _check_fits(step: StepPlan, bucket: BatchBucket) -> None:
    num_prefills, num_rows = len(step.prefills), step.num_prefill_tokens
    fits = num_rows <= bucket.num_prefill_rows and num_prefills <= bucket.num_prefills
    if not fits or len(step.decodes) > bucket.num_decode_rows:
        what = f"{num_prefills} prefills of {num_rows} prefill rows and {len(step.decodes)} decodes"
        raise ValueError(f"a step of {what} in {bucket}")


def _lay_out_prefills(step: StepPlan, page_size: int, window: int | None, slot_mapping: Int32s) -> PageRuns:
    chunks = step.prefills
    firsts = [first_kept_page(chunk.start, page_size, window) for chunk in chunks]
    runs = _kept_runs([chunk.end for chunk in chunks], [chunk.sequence for chunk in chunks], firsts, page_size)
    row = 0
    for chunk, first_kept, first_page in zip(chunks, firsts, runs.starts[:-1].tolist(), strict=True):
        positions = np.arange(chunk.start, chunk.end, dtype=np.int32)
        pages = runs.indices[first_page + positions // page_size - first_kept]
        slot_mapping[row : row + chunk.num_tokens] = pages * page_size + positions % page_size
        row += chunk.num_tokens
    return runs


def _lay_out_decodes(step: StepPlan, page_size: int, window: int | None, slot_mapping: Int32s) -> PageRuns:
    firsts = [first_kept_page(sequence.num_cached, page_size, window) for sequence in step.decodes]
    runs = _kept_runs([sequence.num_cached + 1 for sequence in step.decodes], step.decodes, firsts, page_size)
    last_pages = runs.indices[runs.starts[1:] - 1]
    slot_mapping[:] = last_pages * page_size + (runs.lengths - 1) % page_size
    return runs


def _kept_runs(
    lengths: Sequence[int], sequences: Sequence[RequestSequence], firsts: Sequence[int], page_size: int
) -> PageRuns:
    """The tables of sequences of these lengths, without the pages before the first ones."""
    kept = [length - first * page_size for length, first in zip(lengths, firsts, strict=True)]
    pages = [each.pages[first:] if first else each.pages for each, first in zip(sequences, firsts, strict=True)]
    return page_runs(kept, pages, page_size)
