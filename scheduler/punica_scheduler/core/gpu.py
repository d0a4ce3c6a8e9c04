"""A GPU as the scheduler knows it: its working set and its memory, in pages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from punica_scheduler.core.adapter_account import AdapterAccount
from punica_scheduler.core.capacity import STEPS_AHEAD, Capacity
from punica_scheduler.core.gpu_load import GpuLoad
from punica_scheduler.core.page_account import PageAccount
from punica_scheduler.core.repeated_rows import RepeatedRows
from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require
from punica_serve.paging.page_rule import PageRule
from punica_serve.prefill_chunks import WHOLE_PROMPTS, PrefillBudget
from punica_serve.protocol import AssignmentId, GpuInfo, StepReport


@dataclass(slots=True, eq=False)
class GpuRecord:
    """A joined GPU. Its working set is every request placed and not stopped, also those awaiting adapter or prefill.

    Placement reads sums that are kept up to date, so a token that stays within its request's pages costs nothing
    here. The audit recomputes all of them.
    """

    info: GpuInfo
    runner_id: str
    #: By which its engine chunks prompts.
    prefill_budget: PrefillBudget = WHOLE_PROMPTS
    #: Nothing new is placed here, and what is here moves away when it can.
    is_draining: bool = False
    #: Since when the working set is empty; meaningless while it is not.
    idle_since_ns: int = 0
    uuid: str = field(init=False)
    capacity: Capacity = field(init=False)
    page_rule: PageRule = field(init=False)
    kv_pages: PageAccount = field(init=False)
    #: By the counter of the assignment.
    working_set: dict[int, RequestRecord] = field(default_factory=dict)
    #: Those of it that get their last token within STEPS_AHEAD steps: by the time that a start reaches the worker they
    #: have given up their places in the batch. A request that comes sooner waits there, so these places are taken only
    #: when no GPU has a free one; see ``GpuIndex.soonest_first``.
    ending: frozenset[int] = frozenset()
    #: The newest report with full row headers; see ``protocol.row_headers``.
    newest_full_report: StepReport | None = None
    #: The requests of the newest report with tokens, while they are all here.
    repeated_rows: RepeatedRows | None = None
    #: Pages that the working set needs STEPS_AHEAD steps from now.
    num_pages_ahead: int = 0
    #: Shared pages in its newest report: holders beyond each page's first, and pages that could be found.
    num_shared_pages: int = 0
    num_known_pages: int = 0
    #: Tokens that its worker has looked up, and those that it has found.
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    #: Pages for a new request: free by accounting, and not needed by the working set.
    num_room_pages: int = field(init=False)
    #: Tokens of the longest request, with its next one, that would find pages.
    room: int = field(init=False)
    #: The working set's.
    adapters: AdapterAccount = field(init=False)
    #: The costs of the working set, for placements that ask.
    load_sums: GpuLoad = field(init=False)
    resident: tuple[str, ...] = ()
    #: When a request last left each of these adapters without users.
    unused_since_ns: dict[str, int] = field(default_factory=dict)
    #: Digests of the adapters in its worker's host memory.
    cached: set[str] = field(default_factory=set)
    num_steps: int = 0
    #: Duration of the newest step with a batch.
    step_s: float = 0.0
    #: Accepted from this GPU.
    num_tokens: int = 0
    #: When the newest of them came.
    token_ns: int = 0

    def __post_init__(self) -> None:
        self.uuid = self.info.uuid
        self.capacity = Capacity.of(self.info)
        self.page_rule = PageRule.of(self.info.page_size, self.info.window)
        self.load_sums = GpuLoad(self.prefill_budget)
        self.kv_pages = PageAccount(self.info.num_kv_pages)
        self.adapters = AdapterAccount(self.info.num_lora_pages)
        self._update_room()

    @property
    def load(self) -> float:
        """How full it is, from 0 to 1: the share of its batch or of its KvCache, whichever is higher."""
        return max(len(self.working_set) / self.info.max_batch_size, self.num_pages_needed / self.info.num_kv_pages)

    @property
    def num_pages_needed(self) -> int:
        """Pages that the working set needs STEPS_AHEAD steps from now, those that its requests share counted once.

        While a stop is on its way, the last report may count more sharing than is left. Then a worker may lack a page,
        and preempts; the other error would preempt more and more, as each preemption seemed to free nothing.
        """
        return max(0, self.num_pages_ahead - self.num_shared_pages)

    @property
    def num_used_kv_pages(self) -> int:
        """As its newest report has it."""
        return self.info.num_kv_pages - self.kv_pages.num_reported_free

    @property
    def has_free_place(self) -> bool:
        """Whether one more request can be in the batch now."""
        return len(self.working_set) < self.info.max_batch_size

    @property
    def is_full(self) -> bool:
        """Whether all places of the batch stay taken for longer than a start takes to reach the worker."""
        return len(self.working_set) - len(self.ending) >= self.info.max_batch_size

    @property
    def adapter_refcounts(self) -> Mapping[str | None, int]:
        """By digest: requests of the working set that use the adapter. For placements of users."""
        return self.adapters.refcounts

    @property
    def newest(self) -> RequestRecord:
        """The latest by arrival, not by placement. The working set must not be empty."""
        return max(self.working_set.values(), key=attrgetter("arrival"))

    # -------------------------------------------------------------- questions

    def has_room_for(self, record: RequestRecord) -> bool:
        """A place in the batch, now or soon, pages for prompt, generated and one token, and room for the adapter.

        That is the paper's "enough memory", and necessary. It is not enough at the boundary of a page: a request that
        would be preempted for the next steps of the working set must not start, or it starts and stops without a token.
        """
        return (
            self.adapters.fits(record)
            and record.num_tokens < self.room
            and not self.is_full
            and self.num_pages_needed + self.pages_to_place(record) <= self.info.num_kv_pages
        )

    def has_room_for_all(self, records: Sequence[RequestRecord]) -> bool:
        """Whether there is room for all of these together now, and a free page for each request then."""
        num_requests = len(self.working_set) + len(records)
        num_pages_ahead = self.num_pages_needed + sum(map(self.pages_to_place, records))
        return (
            sum(self.page_rule.to_start(record.num_tokens) for record in records) <= self.num_room_pages
            and num_requests <= self.info.max_batch_size
            and num_pages_ahead + num_requests <= self.info.num_kv_pages
            and self.adapters.fits_all(records)
        )

    @property
    def overflows(self) -> bool:
        """Whether the next steps of the working set would not fit.

        Held and free pages add up to the pool, where stops on their way are obeyed in time; so growth fits the free
        pages exactly when all pages needed fit the pool. This holds whenever a worker takes pages. Behind a window
        requests may hold fewer than are needed here, so it never fits less.
        """
        return self.num_pages_needed > self.info.num_kv_pages

    @property
    def next_step(self) -> int:
        """The GPU's first step that could begin with a request, if it were placed now: one under way ends first."""
        return self.num_steps + (2 if self.working_set else 1)

    def prefill_step_of(self, record: RequestRecord) -> int:
        """The first that could prefill the request: an adapter that is not there is copied during a step."""
        is_copied = bool(self.working_set) and not self.has_adapter_of(record)
        return self.next_step + is_copied

    def has_adapter_of(self, record: RequestRecord) -> bool:
        """Whether the adapter is on the GPU, or on its way there."""
        return record.digest is None or record.digest in self.adapters.refcounts or record.digest in self.resident

    def pages_ahead_of(self, record: RequestRecord) -> int:
        """The most that a request of the working set holds until STEPS_AHEAD steps from now.

        Behind a window its prompt takes more than its answer: the pages of a chunk beside those of the window.
        """
        num_tokens = record.num_tokens_after(STEPS_AHEAD)
        return self.page_rule.held_decoding(num_tokens) if record.has_begun else self.page_rule.held_by(num_tokens)

    def pages_to_place(self, record: RequestRecord) -> int:
        """The same of a request that would start here."""
        return self.page_rule.held_by(record.num_tokens_after(STEPS_AHEAD))

    # -------------------------------------------------------------- changes

    def add(self, assignment: AssignmentId, record: RequestRecord) -> int:
        """Adds a request to the working set; returns the number of the start command."""
        self.load_sums.add(assignment.counter, record, self.next_step, self.prefill_step_of(record))
        self.working_set[assignment.counter] = record
        self.adapters.add(record)
        self.num_pages_ahead += self.pages_to_place(record)
        seq = self.kv_pages.start(assignment, self.page_rule.to_start(record.num_tokens))
        self._update_room()
        return seq

    def remove(self, assignment: AssignmentId, now_ns: int) -> None:
        """Takes a request out of the working set."""
        self.end_repeated_rows()
        record = self.working_set.pop(assignment.counter)
        self.ending -= {assignment.counter}
        self.load_sums.remove(assignment.counter, record)
        self.num_pages_ahead -= self.pages_ahead_of(record)
        if self.adapters.remove(record) and record.digest in self.resident:
            self.unused_since_ns[record.digest] = now_ns
        if not self.working_set:
            self.idle_since_ns = now_ns
        self._update_room()

    def begin_repeated_rows(self, report: StepReport, num_repeats: int) -> RepeatedRows | None:
        """The rows of a report with row headers, which later ones may repeat. ``num_repeats`` is what it came with.

        None, unless they are different requests at their next positions.
        """
        self.end_repeated_rows()
        counters = report.assignments
        records = [record for record in map(self.working_set.get, counters) if record is not None]
        positions = tuple([len(record.generated_ids) for record in records])
        if len(records) == len(set(counters)) and positions == report.positions:
            rows = RepeatedRows(positions, records, num_repeats, self.page_rule)
            if rows.max_steps > 0:
                rows.begin()
                self.repeated_rows = rows
        return self.repeated_rows

    def end_repeated_rows(self) -> None:
        """The next report will be of other requests."""
        if self.repeated_rows is not None:
            self.repeated_rows.end()
            self.repeated_rows = None

    def count_tokens(self, num_tokens: int, now_ns: int) -> None:
        """Tokens of a report were accepted."""
        self.num_tokens += num_tokens
        self.token_ns = now_ns

    def expect_ends(self, records: Iterable[RequestRecord]) -> None:
        """These requests, and no others, get their last tokens soon."""
        self.ending = frozenset([record.assignment.counter for record in records if record.assignment is not None])

    def drop(self, assignment: AssignmentId) -> None:
        """The worker says that it dropped this assignment by itself: nothing is taken for it any more."""
        self.kv_pages.drop(assignment)
        self._update_room()

    def account(self, report: StepReport, *, is_ours: bool) -> None:
        """Applies a report's page counts and gauges. Its tokens must have been applied before.

        A report that is not ours tells of no prompt that is expected here.
        """
        self.kv_pages.report(report.applied_seq, report.free_kv_pages)
        self.num_shared_pages, self.num_known_pages = report.num_shared_kv_pages, report.num_known_kv_pages
        self.prefix_cache_queries, self.prefix_cache_hits = report.prefix_cache_queries, report.prefix_cache_hits
        self.num_steps = report.step
        if report.batch_size:
            self.step_s = report.duration_s
        self.load_sums.prefills.stepped(report.step, report.num_prefill_tokens if is_ours else 0)
        if report.resident is not None:
            self.resident = report.resident
            resident = set(report.resident)
            self.unused_since_ns = {
                digest: since_ns for digest, since_ns in self.unused_since_ns.items() if digest in resident
            }
        self._update_room()

    def _update_room(self) -> None:
        free_by_account, free_by_need = self.kv_pages.num_free, self.info.num_kv_pages - self.num_pages_needed
        self.num_room_pages = free_by_account if free_by_account < free_by_need else free_by_need
        self.room = self.page_rule.longest(self.num_room_pages)

    def check_invariants(self) -> None:
        """Audits the sums. AssertionError is a bug of ours."""
        self.kv_pages.check_invariants()
        self.load_sums.check_invariants(self.working_set)
        records = list(self.working_set.values())
        rows = self.repeated_rows
        repeated = [record for record in records if record.repeated_rows is not None]
        if rows is not None:
            require(all(record.repeated_rows is rows for record in repeated), f"rows of another GPU on {self.uuid}")
            assert self.newest_full_report is not None, self.uuid
            named = [self.working_set[counter] for counter in self.newest_full_report.assignments]
            require(rows.records == named, self.uuid)
        require(len(repeated) == (len(rows.records) if rows else 0), f"the repeated rows of {self.uuid}")
        require(self.num_pages_ahead == sum(map(self.pages_ahead_of, records)), f"pages of {self.uuid}")
        num_free_pages = min(self.kv_pages.num_free, self.info.num_kv_pages - self.num_pages_needed)
        require(self.num_room_pages == num_free_pages, f"room of {self.uuid}")
        require(self.room == self.page_rule.longest(num_free_pages), f"room of {self.uuid}")
        self.adapters.check_invariants(records, self.uuid)
        require(self.ending <= self.working_set.keys(), f"a request that ends on {self.uuid} is not there")
        # One that was to end may be preempted by its worker instead, when its successor is there already.
        require(len(records) <= 2 * self.info.max_batch_size, f"{self.uuid} has more requests than fit two batches")
