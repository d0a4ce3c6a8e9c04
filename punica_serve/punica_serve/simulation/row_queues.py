"""The requests of a simulated GPU, by what they do: wait, start or decode. Pages and adapters go with them."""

from bisect import insort

from punica_serve.batching_rules import give_pages, may_admit
from punica_serve.errors.invariants import require
from punica_serve.performance.profile import AdapterLoad
from punica_serve.protocol import GpuInfo
from punica_serve.simulation.decode_batch import DecodeBatch
from punica_serve.simulation.lora_residency import LoraResidency
from punica_serve.simulation.row import Row
from punica_serve.simulation.row_pages import RowPages


class RowQueues:
    """Rows go from one queue to the next between steps. Only those that wait hold no pages."""

    def __init__(self, info: GpuInfo, load: AdapterLoad, *, vocab_size: int) -> None:
        self._max_batch_size = info.max_batch_size
        self.pages = RowPages(info)
        self.loras = LoraResidency(info.num_lora_pages, load)
        self._rows: dict[int, Row] = {}
        self._waiting: list[Row] = []  # by arrival
        #: Admitted requests that prefill or await their adapters.
        self._starting: list[Row] = []  # by arrival
        self.decodes = DecodeBatch(self.pages.rule, vocab_size=vocab_size)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def _num_running(self) -> int:
        return len(self._starting) + len(self.decodes)

    def add(self, row: Row, now_s: float) -> None:
        """Adds a request, and admits it at once if it is its turn."""
        self._rows[row.key] = row
        insort(self._waiting, row, key=_by_arrival)
        self.admit(now_s)

    def cancel(self, key: int) -> None:
        """Removes a request, and frees its pages at once. Unknown keys are ignored."""
        row = self._rows.get(key)
        if row is None:
            return
        if row.num_pages:
            self._leave(row)
        else:
            self._waiting.remove(row)
        self.drop(row)

    def drop(self, row: Row) -> None:
        """Frees what a row holds that is in no queue any more."""
        del self._rows[row.key]
        if row.num_pages:
            self._release(row)

    def admit(self, now_s: float) -> None:
        """Admits requests, first come, first served: one that does not fit blocks those behind it."""
        while self._waiting:
            row = self._waiting[0]
            if not may_admit(
                self.pages.num_to_admit(row),
                num_free_pages=self.pages.num_free,
                num_running=self._num_running,
                max_batch_size=self._max_batch_size,
            ):
                return
            if row.adapter is not None:
                if not self.loras.has_room_for(row.adapter):
                    return
                self.loras.acquire(row.adapter, now_s)
            del self._waiting[0]
            self.pages.admit(row)
            insort(self._starting, row, key=_by_arrival)

    def join_decodes(self) -> list[Row]:
        """Has requests decode that need no prefill, because they have one token. Returns those without tokens yet."""
        if not self._starting:
            return []
        ready = [row for row in self._starting if row.is_decoding and self.loras.is_ready(row.digest)]
        for row in ready:
            self._starting.remove(row)
            self.decodes.join(row)
        return [row for row in ready if not row.has_new_tokens]

    def prefilling(self) -> list[Row]:
        """The rows that could prefill, by arrival: their adapters are loaded."""
        return [row for row in self._starting if not row.is_decoding and self.loras.is_ready(row.digest)]

    def prefill(self, row: Row, num_tokens: int) -> bool:
        """Counts a chunk. Returns whether it was the last; the row then gets a token, and is no longer starting."""
        row.num_cached += num_tokens
        self.pages.prefixes.name(row)
        if row.num_cached < row.num_tokens:
            return False
        self._starting.remove(row)
        return True

    def give_back(self) -> None:
        """Takes back the pages that no row sees any more."""
        for row in self._starting:
            self.pages.give_back(row)
        for row in self.decodes.releasing():
            self.pages.give_back(row)
            self.decodes.join(row)

    def give_pages(self) -> tuple[int, ...]:
        """Gives rows the pages for their next tokens. Returns the keys of the requests preempted for it."""
        lacking = self.pages.lacking(self._starting)
        num_due = self.decodes.num_pages_due
        if not lacking and not num_due:
            return ()
        preempted: list[Row] = []
        if not lacking and num_due <= self.pages.num_free:
            self.pages.grow(num_due)
        else:
            due = [*lacking, *((row, 1) for row in self.decodes.rows_due())]
            preempted = give_pages(
                sorted(due, key=lambda each: each[0].arrival),
                num_free=lambda: self.pages.num_free,
                give=self._take_pages,
                preempt_newest=self._preempt_newest,
            )
        self.decodes.grow()
        return tuple([row.key for row in preempted])

    def check_invariants(self) -> None:
        """Audits pages and queues; an AssertionError is a bug of ours."""
        num_pages = sum(row.num_pages - row.num_released for row in self._starting) + self.decodes.num_pages
        self.pages.check_invariants(list(self._rows.values()), num_pages)
        require(not any(row.num_pages or row.pages for row in self._waiting), "a waiting request holds pages")
        require(self._num_running <= self._max_batch_size, f"{self._num_running} requests run")
        require(self._num_running + len(self._waiting) == len(self._rows), "a request is lost or unknown")
        self.loras.check_invariants()

    def _take_pages(self, row: Row, num_pages: int) -> None:
        """Takes pages for a row; the decode batch counts those of its own rows."""
        if row.key in self.decodes:
            self.pages.grow(num_pages)
        else:
            self.pages.take(row, num_pages)

    def _preempt_newest(self) -> Row:
        """Preempts the newest running request."""
        candidates = [row for row in (self.decodes.newest, self._starting[-1] if self._starting else None) if row]
        newest = max(candidates, key=_by_arrival)
        self._leave(newest)
        self._release(newest)
        insort(self._waiting, newest, key=_by_arrival)
        return newest

    def _leave(self, row: Row) -> None:
        """Removes a running row from its queue."""
        if row.key in self.decodes:
            self.decodes.leave(row.key)
        else:
            self._starting.remove(row)

    def _release(self, row: Row) -> None:
        """Frees the pages and the adapter of a row that no longer runs."""
        self.pages.release(row)
        if row.digest is not None:
            self.loras.release(row.digest)


def _by_arrival(row: Row) -> tuple[int, str]:
    return row.arrival
