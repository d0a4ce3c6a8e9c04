"""The work tiles of paged attention, one per program, as an int32 table that the host fills for each step.

A CUDA graph replays the same launches whatever the requests are, so the size of the table, the workspace and the grid
depend only on an `AttentionShape`. The query rows of a request form blocks of at most `block_queries`. A block walks
over the context that its rows see; a context so long that other programs would wait for it is divided into splits,
which are merged at the end (Flash-Decoding; Dao et al., 2023). A tile is a block and one split of its context. A step
is one list of tiles, the longest first, so a GPU is as busy with one long request as with many short ones.

Under a sliding window a block's context begins with the page of the first token that its first row sees; pages before
it are in no tile, so nothing of them is read.

Decodes whose page tables begin alike may read those pages once (cascade attention; Hydragen, Juravsky et al., 2024):
such requests form one block, whose shared tiles hold the rows of all of them and the prefix, and whose other tiles hold
one row and the rest of its context each. See `punica_kernels.sharing_walks`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from punica_kernels.attention_walks import Requests, block_walks, divide, row_walks, write_splits
from punica_kernels.integers import next_power_of_two
from punica_kernels.long_prompts import LONG_PROMPT_BLOCK_M, are_long_prompts
from punica_kernels.members import Indices
from punica_kernels.shared_prefixes import NO_GROUPS, PrefixGroups
from punica_kernels.sharing_walks import RowBlocks
from punica_kernels.tile_fields import ROW_WORDS, SHARING_TILE_WORDS, TILE_WORDS, RowField, WorkTileField

#: Rows of a program (BLOCK_M), a query row of one head each: the smallest tensor-core tile, and a prefill's.
_MIN_BLOCK_M, _PREFILL_BLOCK_M = 16, 64
#: Programs of equal work for each multiprocessor. Decodes wait for memory, so it takes several to keep it busy; of
#: prefills it runs two at once, of long prompts one. A program that must wait for a place takes as long again.
_DECODES_PER_SM, _PREFILLS_PER_SM, _LONG_PROMPTS_PER_SM = 3, 2, 1
#: Tokens of the shortest split: a shorter one costs more to merge than it saves.
_MIN_DECODE_SPLIT_TOKENS, _MIN_PREFILL_SPLIT_TOKENS = 128, 512

Words = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The capacity of a call."""

    max_requests: int
    #: Query rows of one request, at most.
    max_query_rows: int
    heads: int
    kv_heads: int
    #: Query rows of one program.
    block_queries: int
    #: Programs of equal work for each kv head.
    num_programs: int
    min_split_tokens: int
    #: Tokens that a row sees, itself the last of them; None sees the whole context.
    window: int | None = None
    #: Query rows of all requests together; None: as many as they can have.
    max_rows: int | None = None
    #: Tables may have shared prefixes. Requests have one query row each.
    shares_prefixes: bool = False

    @classmethod
    def of(
        cls,
        max_requests: int,
        max_query_rows: int,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        window: int | None = None,
        max_rows: int | None = None,
        shares_prefixes: bool = False,
    ) -> "AttentionShape":
        """The shape for such requests and layers of a model on this device.

        ``shares_prefixes``: decodes whose page tables begin alike read those pages once. It does nothing for prefills,
        nor where so many heads share keys and values that one query row fills a program.
        """
        group = next_power_of_two(heads // kv_heads)
        rows = next_power_of_two(max_query_rows) * group
        is_long = are_long_prompts(max_query_rows, head_dim, dtype, device)
        tallest = LONG_PROMPT_BLOCK_M if is_long else _PREFILL_BLOCK_M
        # A float32 product has no tensor core: a taller tile does not fit the registers.
        block_m = _MIN_BLOCK_M if dtype == torch.float32 else min(tallest, max(_MIN_BLOCK_M, rows))
        num_sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
        if max_query_rows == 1:
            num_programs, min_tokens = -(-num_sms * _DECODES_PER_SM // kv_heads), _MIN_DECODE_SPLIT_TOKENS
        else:
            per_sm = _LONG_PROMPTS_PER_SM if is_long else _PREFILLS_PER_SM
            num_programs, min_tokens = max(1, num_sms * per_sm // kv_heads), _MIN_PREFILL_SPLIT_TOKENS
        block_queries = max(1, block_m // group)
        limits = (max_requests, max_query_rows, heads, kv_heads, block_queries, num_programs, min_tokens)
        return cls(*limits, window, max_rows, shares_prefixes and max_query_rows == 1 < block_queries)

    @property
    def block_m(self) -> int:
        """Rows of a program, a query row of one head each: a power of two."""
        return max(_MIN_BLOCK_M, self.block_queries * self.block_group)

    @property
    def live_m(self) -> int:
        """Those of the BLOCK_M rows, the first ones, that requests can fill: a power of two."""
        if self.shares_prefixes:
            return self.block_group * self.block_queries
        return self.block_group * min(self.block_queries, next_power_of_two(self.max_query_rows))

    @property
    def block_group(self) -> int:
        """Query heads of one kv head, rounded up to a power of two."""
        return next_power_of_two(self.heads // self.kv_heads)

    @property
    def max_tiles(self) -> int:
        """Each request has at most one block that is not full. A split takes a full share of the programs' work, unless
        it is the last of its block.
        """
        num_blocks = self.max_requests * -(-self.max_query_rows // self.block_queries)
        if self.max_rows is not None:
            num_blocks = min(num_blocks, self.max_requests + self.max_rows // self.block_queries)
        return num_blocks + self._max_shared_walks + self.num_programs

    @property
    def max_splits(self) -> int:
        """Splits of all contexts that are split: each such context is more than one program's share. A block with a
        prefix has at least two splits, whatever their sizes.
        """
        return 2 * (self.num_programs + self._max_shared_walks)

    @property
    def _max_shared_walks(self) -> int:
        """Prefixes that two requests or more share."""
        return self.max_requests // 2 if self.shares_prefixes else 0

    @property
    def tile_words(self) -> int:
        """int32 words of a tile."""
        return SHARING_TILE_WORDS if self.shares_prefixes else TILE_WORDS

    @property
    def num_words(self) -> int:
        """int32 words of the table: the tiles, and the list of rows if it has one."""
        num_listed = self.max_requests if self.shares_prefixes else 0
        return self.max_tiles * self.tile_words + num_listed * ROW_WORDS

    def fill(
        self,
        words: Words,
        lengths: npt.ArrayLike,
        query_starts: npt.ArrayLike,
        page_starts: npt.ArrayLike,
        page_size: int,
        groups: PrefixGroups = NO_GROUPS,
    ) -> None:
        """Writes the tiles of N requests.

        Args:
            words: int32 [num_words] on the host, overwritten.
            lengths: [N] tokens in the cache, the query rows' own included. A request of length 0 has no tiles.
            query_starts: [N + 1] request i has the query rows query_starts[i] to query_starts[i + 1] - 1.
            page_starts: [N] or more: where the pages of each request begin in the step's.
            groups: of requests whose page tables begin alike; only a shape that shares prefixes reads them.

        Raises ValueError when the requests do not fit the shape.
        """
        if words.shape != (self.num_words,):
            raise ValueError(f"words must be [{self.num_words}], got {list(words.shape)}")
        tokens, starts, first_pages = (np.asarray(table, np.int64) for table in (lengths, query_starts, page_starts))
        num_rows = np.where(tokens > 0, starts[1:] - starts[:-1], 0)
        if (num_rows > tokens).any():
            raise ValueError("a request has more query rows than tokens")
        most_rows, sum_rows = int(num_rows.max(initial=0)), int(num_rows.sum())
        fits = most_rows <= self.max_query_rows and (self.max_rows is None or sum_rows <= self.max_rows)
        if len(tokens) > self.max_requests or not fits:
            raise ValueError(f"{len(tokens)} requests of at most {most_rows} rows do not fit {self}")
        words.fill(-1)
        requests = Requests(tokens, starts, num_rows, first_pages)
        if self.shares_prefixes:
            rows = RowBlocks.of(requests, groups, self.block_queries, self.window)
            walks = rows.walks(requests, page_size, self.window)
            num_splits, split_pages = self._splits(walks[:, WorkTileField.NUM_TOKENS], page_size)
            places = words[self.max_tiles * self.tile_words :].reshape(-1, ROW_WORDS)[: len(rows.requests)]
            places[:, RowField.ROW] = starts[rows.requests]
            places[:, RowField.NUM_SPLITS] = rows.write_splits(walks, num_splits)
        else:
            has_one_each = most_rows == 1 and sum_rows == len(tokens)
            walks = (
                row_walks(requests, page_size, self.window)
                if has_one_each
                else block_walks(requests, self.block_queries, page_size, self.window)
            )
            num_splits, split_pages = self._splits(walks[:, WorkTileField.NUM_TOKENS], page_size)
            write_splits(walks, num_splits)
        tiles = divide(walks, num_splits, split_pages, page_size)
        words[: tiles.size] = tiles.ravel()

    def _splits(self, num_tokens: Indices, page_size: int) -> tuple[Indices, Indices]:
        """The splits of walks over so many tokens, and the pages of a split but for a walk's last one."""
        num_pages = -(-num_tokens // page_size)
        split_tokens = max(-(-int(num_tokens.sum()) // self.num_programs), self.min_split_tokens)
        share_pages = -(-split_tokens // page_size)
        # A prompt's block that is a little longer than a share stays whole: its parts would wait for places.
        spare_pages = share_pages - 1 if self.max_query_rows == 1 else share_pages // 4
        split_pages = -(-num_pages // np.maximum((num_pages + spare_pages) // share_pages, 1))
        return -(-num_pages // split_pages), split_pages


@dataclass(frozen=True, slots=True)
class AttentionWorkspace:
    """Where programs leave the splits of a context. Calls that share a workspace must run one after the other."""

    #: float32, flat: `acc` of each split, kv head and row. Contents never matter before a call.
    acc: Tensor
    #: float32 [2, splits * kv heads * rows]: m, the highest score to base 2, and l, the sum of exponentials.
    m_and_l: Tensor
    #: int32 [splits * kv heads]: splits that have been written. Zero before and after each call.
    counts: Tensor

    @classmethod
    def of(cls, shapes: Sequence[AttentionShape], head_dim: int, device: torch.device) -> "AttentionWorkspace":
        """Memory for calls of any of these shapes."""
        num_splits = max((shape.max_splits * shape.kv_heads for shape in shapes), default=0)
        num_rows = max((shape.max_splits * shape.kv_heads * shape.block_m for shape in shapes), default=0)
        return cls(
            torch.empty(num_rows * head_dim, device=device),
            torch.empty(2, num_rows, device=device),
            torch.zeros(num_splits, dtype=torch.int32, device=device),
        )
