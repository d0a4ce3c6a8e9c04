"""What each program of paged attention reads, as int32 words of a fixed layout that the host fills for each step.

A CUDA graph replays the same launches whatever the requests are, so the table's size, the workspace and the grid depend
only on an `AttentionShape`. Query rows of one request form blocks, at most `block_rows` each. A block walks over the
context that its last row sees; where contexts are so long that others would wait for them, in several parts, which are
merged. So the work of a step is one list of spans, a block and a part of its context each, the longest first, and a GPU
is as busy with one long request as with many short ones (Flash-Decoding; Dao et al., 2023).

Unused entries are -1.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

#: Words of a span: its first query row and their number; its first page, as an index into the step's pages; its
#: tokens, and the last of them that the first row sees, negative where it sees none; its part of the block's context
#: (-1 if that is not divided), the block's first part, and the number of parts.
SPAN_WORDS = 8
#: Lanes of a program, a query row of one head each: the least that a tensor core's tile has, and those of a prefill.
_LEAST_LANES, _PREFILL_LANES = 16, 64
#: Programs for each multiprocessor that are to have equal work: a decode's wait for memory, so it takes several to keep
#: it busy; those of a prefill compute, and have more to merge.
_DECODES_PER_SM, _PREFILLS_PER_SM = 3, 1
#: Shorter parts cost more to merge than they save.
_MIN_DECODE_TOKENS, _MIN_PREFILL_TOKENS = 128, 256

Words = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a call can hold."""

    max_requests: int
    #: Of one request.
    max_query_rows: int
    heads: int
    kv_heads: int
    #: Query rows that one program takes.
    block_rows: int
    #: For each kv head, so many programs are to have equal work.
    num_programs: int
    #: Shorter parts are not made.
    min_part_tokens: int

    @classmethod
    def of(
        cls,
        max_requests: int,
        max_query_rows: int,
        *,
        heads: int,
        kv_heads: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "AttentionShape":
        """The shape for such requests and this model on this device."""
        group = _next_power_of_two(heads // kv_heads)
        rows = _next_power_of_two(max_query_rows) * group
        # A float32 product has no tensor core: a taller tile does not fit the registers.
        lanes = _LEAST_LANES if dtype == torch.float32 else min(_PREFILL_LANES, max(_LEAST_LANES, rows))
        num_sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
        is_decode = max_query_rows == 1
        num_programs = -(-num_sms * (_DECODES_PER_SM if is_decode else _PREFILLS_PER_SM) // kv_heads)
        min_tokens = _MIN_DECODE_TOKENS if is_decode else _MIN_PREFILL_TOKENS
        return cls(max_requests, max_query_rows, heads, kv_heads, max(1, lanes // group), num_programs, min_tokens)

    @property
    def lanes(self) -> int:
        """Of a program: a power of two."""
        return max(_LEAST_LANES, self.block_rows * self.block_group)

    @property
    def live_lanes(self) -> int:
        """The first lanes, which have a row and head where the requests have that many: a power of two."""
        return self.block_group * min(self.block_rows, _next_power_of_two(self.max_query_rows))

    @property
    def block_group(self) -> int:
        """Query heads of one kv head, rounded up to a power of two."""
        return _next_power_of_two(self.heads // self.kv_heads)

    @property
    def max_spans(self) -> int:
        """A part takes its share of all programs or is its block's last."""
        return self.max_requests * -(-self.max_query_rows // self.block_rows) + self.num_programs

    @property
    def max_parts(self) -> int:
        """Of divided blocks, which have more than one program's share each."""
        return 2 * self.num_programs

    @property
    def num_words(self) -> int:
        """int32 words of the table."""
        return self.max_spans * SPAN_WORDS

    def fill(
        self,
        words: Words,
        lengths: npt.ArrayLike,
        query_starts: npt.ArrayLike,
        page_starts: npt.ArrayLike,
        page_size: int,
    ) -> None:
        """Writes the spans of N requests.

        Args:
            words: int32 [num_words] on the host, overwritten.
            lengths: [N] tokens in the cache, the query rows' own included. A request of length 0 has no spans.
            query_starts: [N + 1] request i has the query rows query_starts[i] to query_starts[i + 1] - 1.
            page_starts: [N] or more: where the pages of each request begin in the step's.

        Raises ValueError when the requests do not fit the shape.
        """
        if words.shape != (self.num_words,):
            raise ValueError(f"words must be [{self.num_words}], got {list(words.shape)}")
        tokens, starts, first_pages = (np.asarray(table, np.int64) for table in (lengths, query_starts, page_starts))
        num_rows = np.where(tokens > 0, np.diff(starts), 0)
        if (num_rows > tokens).any():
            raise ValueError("a request has more query rows than tokens")
        if len(tokens) > self.max_requests or (num_rows > self.max_query_rows).any():
            raise ValueError(f"{len(tokens)} requests of at most {num_rows.max(initial=0)} rows do not fit {self}")
        spans = self._spans(tokens, starts, num_rows, first_pages, page_size)
        words.fill(-1)
        words[: spans.size] = spans.ravel()

    def _spans(
        self, tokens: Indices, starts: Indices, num_rows: Indices, first_pages: Indices, page_size: int
    ) -> Indices:
        """[spans, SPAN_WORDS]"""
        request, nth = _enumerate(-(-num_rows // self.block_rows))
        first_row = nth * self.block_rows
        rows = np.minimum(num_rows[request] - first_row, self.block_rows)
        first_seen = tokens[request] - num_rows[request] + first_row
        num_seen = first_seen + rows
        num_pages = -(-num_seen // page_size)
        part_tokens = max(-(-int(num_seen.sum()) // self.num_programs), self.min_part_tokens)
        part_pages = -(-num_pages // -(-num_pages // -(-part_tokens // page_size)))
        num_parts = -(-num_pages // part_pages)
        block, part = _enumerate(num_parts)
        start = (part * part_pages[block]) * page_size
        is_divided = num_parts[block] > 1
        place = np.where(is_divided, np.cumsum(is_divided) - 1, -1)
        columns = (
            (starts[request] + first_row)[block],
            rows[block],
            first_pages[request[block]] + part * part_pages[block],
            np.minimum(num_seen[block] - start, part_pages[block] * page_size),
            first_seen[block] - start,
            place,
            place - part,
            num_parts[block],
        )
        spans = np.stack(columns, axis=1)
        return spans[np.argsort(-spans[:, 3], kind="stable")]


def _enumerate(counts: Indices) -> tuple[Indices, Indices]:
    """For owners with so many members each: every member's owner, and its number among the owner's."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


def _next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
