"""The pages of a step's requests in the KvCache, as the int32 tables that the attention kernels of a GPU read.

Plain numpy, on the host. A step is laid out in a BatchBucket: the prefills' rows first, padded in front, then one row
for each decode, padded behind. Padding rows write no keys and values and attend to nothing; their results are not read.
Where pages are given back behind sliding windows, a table begins with the first page that its request still holds, and
counts the tokens from there on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from punica_kernels.members import Indices
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.page_arrays import NO_PAGES, PageArrays
from punica_serve.engine.cuda.step_input_buffer import Int32s
from punica_serve.paging.page_rule import first_kept_page

#: The slot of rows whose keys and values are not stored.
NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class PageRuns:
    """Where the pages of requests are among the step's, one request after the other."""

    #: Tokens of each request, from its first page there on: [requests].
    lengths: Int32s
    #: The index of each request's first page, then of the page after the last: [requests + 1].
    starts: Int32s

    def split(self, num_requests: int) -> tuple["PageRuns", "PageRuns"]:
        """The first requests, and the others."""
        return (
            PageRuns(self.lengths[:num_requests], self.starts[: num_requests + 1]),
            PageRuns(self.lengths[num_requests:], self.starts[num_requests:]),
        )


@dataclass(frozen=True, slots=True)
class StepPages:
    """A step laid out in a bucket."""

    #: page * page_size + offset of each row's key and value; NO_SLOT for padding: [rows].
    slot_mapping: Int32s
    #: [prefills + 1] The first row of each prefill, then the row after the last. Rows are the last ones of a context.
    prefill_rows: Indices
    #: The pages of the decodes, then of the prefills.
    kv_pages: Int32s
    #: One request for each decode.
    decodes: PageRuns
    #: One request for each prefill.
    prefill: PageRuns


def lay_out_pages(
    step: StepPlan, bucket: BatchBucket, arrays: PageArrays, *, page_size: int, window: int | None = None
) -> StepPages:
    """Reads the pages of the step's sequences, which must have room for the step's rows.

    ``arrays``: as the step before has left them, if any. ``window``: pages behind it were given back; see `PageRule`.
    ValueError: the step does not fit the bucket, or a sequence has too few pages.
    """
    _check_fits(step, bucket)
    rows = prefill_rows(step, bucket)
    runs, kv_pages = _page_runs(step, arrays, page_size, window)
    decodes, prefill = runs.split(len(step.decodes))
    slot_mapping = np.full(bucket.num_rows, NO_SLOT, dtype=np.int32)
    first_decode_row = bucket.num_prefill_rows
    prefill_slots, decode_slots = slot_mapping[rows[0] : first_decode_row], slot_mapping[first_decode_row:]
    last_pages = kv_pages[decodes.starts[1:] - 1]
    decode_slots[: len(last_pages)] = last_pages * page_size + (decodes.lengths - 1) % page_size
    _map_prefills(prefill_slots, step.prefills, prefill, kv_pages, page_size)
    return StepPages(slot_mapping, rows, kv_pages, decodes, prefill)


def prefill_rows(step: StepPlan, bucket: BatchBucket) -> Indices:
    """[prefills + 1] The first row of each prefill, then the row after the last."""
    lengths = [chunk.num_tokens for chunk in step.prefills]
    return np.cumsum([bucket.num_prefill_rows - sum(lengths), *lengths], dtype=np.int64)


def _check_fits(step: StepPlan, bucket: BatchBucket) -> None:
    num_prefills, num_rows = len(step.prefills), step.num_prefill_tokens
    fits = num_rows <= bucket.num_prefill_rows and num_prefills <= bucket.num_prefills
    if not fits or len(step.decodes) > bucket.num_decode_rows:
        what = f"{num_prefills} prefills of {num_rows} prefill rows and {len(step.decodes)} decodes"
        raise ValueError(f"a step of {what} in {bucket}")


def _page_runs(step: StepPlan, arrays: PageArrays, page_size: int, window: int | None) -> tuple[PageRuns, Int32s]:
    """The decodes' tables, then the prefills', and their pages; those past a length or behind a window are left out."""
    chunks = step.prefills
    num_cached = [sequence.num_cached for sequence in step.decodes] + [chunk.start for chunk in chunks]
    tables = [sequence.pages for sequence in step.decodes] + [chunk.sequence.pages for chunk in chunks]
    lengths = np.array(num_cached, dtype=np.int32) + 1
    lengths[len(step.decodes) :] = [chunk.end for chunk in chunks]
    counts = -(-lengths // page_size)
    pages = arrays.of(tables, counts.tolist())
    if window is not None:
        firsts = [first_kept_page(number, page_size, window) for number in num_cached]
        pages = [array[first:] for array, first in zip(pages, firsts, strict=True)]
        behind = np.array(firsts, dtype=np.int32)
        counts, lengths = counts - behind, lengths - behind * page_size
    starts = np.zeros(len(pages) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    kv_pages = np.concatenate([NO_PAGES, *pages])  # numpy refuses to join nothing
    return PageRuns(lengths, starts), kv_pages


def _map_prefills(
    slots: Int32s, chunks: Sequence[PrefillChunk], runs: PageRuns, kv_pages: Int32s, page_size: int
) -> None:
    """Writes the slots of the chunks' rows, each the last ones of its context."""
    row = 0
    for chunk, length, first_page in zip(chunks, runs.lengths.tolist(), runs.starts[:-1].tolist(), strict=True):
        places = np.arange(length - chunk.num_tokens, length, dtype=np.int32)
        pages = kv_pages[first_page + places // page_size]
        slots[row : row + chunk.num_tokens] = pages * page_size + places % page_size
        row += chunk.num_tokens
