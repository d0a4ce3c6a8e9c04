"""A GPU as the scheduler knows it: its working set and its memory, in pages."""

from dataclasses import dataclass, field
from operator import attrgetter

from punica_scheduler.page_book import PageBook
from punica_scheduler.request import RequestRecord
from punica_serve.protocol import AssignmentId, GpuInfo, GpuSnapshot, StepReport

#: A worker is this far ahead of its reports when a stop reaches it: one step runs, the next is the first without.
STEPS_AHEAD = 2


@dataclass(slots=True, eq=False)
class GpuRecord:
    """A joined GPU. Its working set is every request placed and not stopped, also those awaiting adapter or prefill."""

    info: GpuInfo
    runner_id: str
    book: PageBook = field(init=False)
    #: By the counter of the assignment.
    working_set: dict[int, RequestRecord] = field(default_factory=dict)
    resident: tuple[str, ...] = ()
    batch_size: int = 0
    num_adapters: int = 0
    num_steps: int = 0
    #: Accepted from this GPU.
    num_tokens: int = 0

    def __post_init__(self) -> None:
        self.book = PageBook(self.info.num_kv_pages)

    @property
    def uuid(self) -> str:
        return self.info.uuid

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the longest request that its KvCache can hold, alone."""
        return self.info.num_kv_pages * self.info.page_size

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.info.page_size)

    @property
    def num_free_pages(self) -> int:
        """By the book, and with the pages of the whole working set counted as used, taken by the worker yet or not."""
        used = sum(self.pages_for(record.num_tokens_after(1)) for record in self.working_set.values())
        return min(self.book.num_free, self.info.num_kv_pages - used)

    def place(self, assignment: AssignmentId, record: RequestRecord) -> int:
        """Adds a request to the working set; returns the number of the start command."""
        self.working_set[assignment.counter] = record
        return self.book.start(assignment, self.pages_for(record.num_tokens + 1))

    def account(self, report: StepReport) -> None:
        self.book.report(report.applied_seq, report.free_kv_pages)
        self.batch_size = report.batch_size
        self.num_adapters = report.num_adapters
        self.num_steps = report.step
        if report.resident is not None:
            self.resident = report.resident

    def has_room_for(self, record: RequestRecord) -> bool:
        """A place in the batch, pages for prompt, generated and one token, and room for the adapter.

        That is the paper's "enough memory", and necessary. It is not enough at the boundary of a page: a request that
        would be evicted for the next steps of the working set must not start, or it starts and stops without a token.
        """
        return (
            len(self.working_set) < self.info.max_batch_size
            and self.pages_for(record.num_tokens + 1) <= self.num_free_pages
            and not self.overflows(record)
            and self.fits_loras(record)
        )

    def could_run(self, record: RequestRecord) -> bool:
        """Whether the request's next steps and its adapter fit when it is alone."""
        return record.num_tokens_after(STEPS_AHEAD) <= self.max_request_tokens and self.could_load(record)

    def could_load(self, record: RequestRecord) -> bool:
        """Whether the request's adapter fits the LoRA pool when it is alone."""
        return all(pages <= self.info.num_lora_pages.get(group, 0) for group, pages in record.lora_pages.items())

    def fits_loras(self, *more: RequestRecord) -> bool:
        """Whether the different adapters of the working set and of ``more`` fit the LoRA pool together."""
        adapters = {record.digest: record.lora_pages for record in (*self.working_set.values(), *more)}
        return all(
            sum(pages.get(group, 0) for pages in adapters.values()) <= self.info.num_lora_pages.get(group, 0)
            for group in {group for pages in adapters.values() for group in pages}
        )

    def overflows(self, *more: RequestRecord) -> bool:
        """Whether the next steps of the working set and of ``more`` would not fit.

        What each request holds and what is free add up to the pool, where stops on their way are obeyed in time; so
        growth fits the free pages exactly when all pages needed fit the pool. This holds whenever a worker takes pages.
        """
        ahead = (record.num_tokens_after(STEPS_AHEAD) for record in (*self.working_set.values(), *more))
        return sum(map(self.pages_for, ahead)) > self.info.num_kv_pages

    @property
    def newest(self) -> RequestRecord:
        """The latest by arrival, not by placement. The working set must not be empty."""
        return max(self.working_set.values(), key=attrgetter("arrival"))

    def snapshot(self) -> GpuSnapshot:
        return GpuSnapshot(
            gpu=self.info,
            runner_id=self.runner_id,
            working_set=len(self.working_set),
            batch_size=self.batch_size,
            num_adapters=self.num_adapters,
            free_kv_pages=self.book.num_reported_free,
            resident_adapters=self.resident,
            steps=self.num_steps,
            tokens=self.num_tokens,
        )
