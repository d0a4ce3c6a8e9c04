"""The buckets that steps on a GPU are padded to: few, so that each can have a CUDA graph."""

from bisect import bisect_left
from dataclasses import dataclass

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.batching.step_plan import StepPlan

# A step between two sizes costs as much as the larger one. A few more rows cost a decode nothing, since it reads all
# weights anyway, and a prefill a quarter at most. 112 and 224, with decodes beside them, fill tiles of the library's
# products (docs/notes/performance.md).
_DECODE_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_PREFILL_ROWS = (
    *(16, 32, 48, 64, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768),
    *(1024, 1536, 2048, 3072, 4096),
)
# Where several prefills share a step, their rows add up to any number, and large batches capture more graphs.
_SHARED_PREFILL_ROWS = tuple(rows for rows in _PREFILL_ROWS if rows % 64 == 0 or rows in (32, 96))


@dataclass(frozen=True, slots=True)
class BatchBucket:
    """The capacity of a batch: the rows of all prefills first, then one for each decode."""

    num_prefill_rows: int
    num_decode_rows: int
    #: Requests that share the prefill rows.
    max_prefills: int = 1

    @property
    def num_prefills(self) -> int:
        """Requests that may be among the prefill rows."""
        return self.max_prefills if self.num_prefill_rows else 0

    @property
    def num_rows(self) -> int:
        return self.num_prefill_rows + self.num_decode_rows

    @property
    def first_sampled(self) -> int:
        """The first row that gets a token, where there is one prefill at most."""
        return max(self.num_prefill_rows - 1, 0)

    @property
    def num_sampled(self) -> int:
        """Rows that get a token: the last one of each prefill, then all decodes."""
        return self.num_prefills + self.num_decode_rows


# Few sizes beside a prefill, whose cost dominates.
_BESIDE_PREFILL = (31, 127)
#: So many of them, the largest.
_NUM_BESIDE = 2


class BatchBuckets:
    """The buckets of one engine."""

    def __init__(self, *, max_batch_size: int, prefill_budget_tokens: int, max_prefills: int = 1) -> None:
        self._max_prefills = max_prefills
        self._decode_rows = _up_to(max_batch_size, _DECODE_ROWS)
        prefill_rows = _PREFILL_ROWS if max_prefills == 1 else _SHARED_PREFILL_ROWS
        self._prefill_rows = _up_to(prefill_budget_tokens, prefill_rows)
        self._beside_prefill = _up_to(max_batch_size - 1, _BESIDE_PREFILL)[-_NUM_BESIDE:]

    @classmethod
    def of(cls, config: EngineConfig) -> "BatchBuckets":
        return cls(
            max_batch_size=config.max_batch_size,
            prefill_budget_tokens=config.prefill_budget_tokens,
            max_prefills=config.num_prefills,
        )

    @property
    def all(self) -> tuple[BatchBucket, ...]:
        """The largest first, so that later graphs reuse the memory of earlier ones."""
        mixed = [self._mixed(p, d) for p in reversed(self._prefill_rows) for d in reversed(self._beside_prefill)]
        return (*mixed, *(BatchBucket(0, rows) for rows in reversed(self._decode_rows)))

    def alone(self, max_prefill_rows: int) -> tuple[BatchBucket, ...]:
        """The buckets of prefills up to so many rows without decodes, the largest first."""
        largest = _next(self._prefill_rows, min(max_prefill_rows, self._prefill_rows[-1]))
        rows = (size for size in reversed(self._prefill_rows) if size <= largest)
        return tuple(self._mixed(size, self._beside_prefill[0]) for size in rows)

    def fit(self, plan: StepPlan) -> BatchBucket:
        """The smallest bucket that holds a step."""
        if not plan.prefills:
            return BatchBucket(0, _next(self._decode_rows, len(plan.decodes)))
        prefill_rows = _next(self._prefill_rows, plan.num_prefill_tokens)
        return self._mixed(prefill_rows, _next(self._beside_prefill, len(plan.decodes)))

    def _mixed(self, num_prefill_rows: int, num_decode_rows: int) -> BatchBucket:
        return BatchBucket(num_prefill_rows, num_decode_rows, min(self._max_prefills, num_prefill_rows))


def padded_rows(num_rows: int) -> int:
    """The prefill rows of the smallest usual bucket that holds so many; as many themselves beyond the largest."""
    return next((size for size in _PREFILL_ROWS if size >= num_rows), num_rows)


def _up_to(largest: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (*(size for size in sizes if size < largest), largest)


def _next(sizes: tuple[int, ...], count: int) -> int:
    return sizes[bisect_left(sizes, count)]
