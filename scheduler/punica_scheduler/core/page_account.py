"""Page accounting for a KvCache whose worker runs ahead of the scheduler.

Commands travel while the worker steps, so its last report does not know of the newest of them. Each command has a
sequence number and each report names the last one applied. Pages of starts that are not yet applied count as taken;
pages of stops count as free only when a report, which then includes them, says so.
"""

from punica_serve.errors.invariants import require
from punica_serve.protocol import AssignmentId


class PageAccount:
    """The free pages of one GPU's KvCache, and the numbers of the commands to it."""

    __slots__ = ("_last_stop_seq", "_num_booked", "_starts", "applied_seq", "last_seq", "num_reported_free")

    def __init__(self, num_pages: int) -> None:
        self.num_reported_free = num_pages
        self.applied_seq = 0
        self.last_seq = 0
        self._last_stop_seq = 0
        #: Starts that no report has acknowledged: sequence number and pages of each.
        self._starts: dict[AssignmentId, tuple[int, int]] = {}
        #: Pages of all those starts.
        self._num_booked = 0

    @property
    def num_free(self) -> int:
        """May be negative: requests grow while a start is on its way."""
        return self.num_reported_free - self._num_booked

    @property
    def awaits_pages(self) -> bool:
        """Whether a stop is on its way, so that the next reports will show more free pages."""
        return self._last_stop_seq > self.applied_seq

    def start(self, assignment: AssignmentId, num_pages: int) -> int:
        """Accounts for a start command; returns its sequence number."""
        self.last_seq += 1
        self._starts[assignment] = (self.last_seq, num_pages)
        self._num_booked += num_pages
        return self.last_seq

    def stop(self) -> int:
        """Accounts for a stop command; returns its sequence number."""
        self.last_seq += 1
        self._last_stop_seq = self.last_seq
        return self.last_seq

    def has_applied(self, assignment: AssignmentId) -> bool:
        """Whether the worker has said that it applied this start."""
        return assignment not in self._starts

    def drop(self, assignment: AssignmentId) -> None:
        """The worker says that it dropped this assignment by itself: nothing is taken for it any more."""
        _, num_pages = self._starts.pop(assignment, (0, 0))
        self._num_booked -= num_pages

    def report(self, applied_seq: int, num_free: int) -> None:
        self.applied_seq = applied_seq
        self.num_reported_free = num_free
        while self._starts:
            # Their numbers rise, so the first is the oldest.
            oldest = next(iter(self._starts))
            if self._starts[oldest][0] > applied_seq:
                break
            self.drop(oldest)

    def check_invariants(self) -> None:
        require(self.applied_seq <= self.last_seq, f"{self.applied_seq} applied, {self.last_seq} sent")
        require(all(self.applied_seq < seq <= self.last_seq for seq, _ in self._starts.values()), self._starts)
        require(all(num_pages > 0 for _, num_pages in self._starts.values()), self._starts)
        require(self._num_booked == sum(num_pages for _, num_pages in self._starts.values()), self._starts)
