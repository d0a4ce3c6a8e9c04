"""What the scheduler must assume of a KvCache whose worker runs ahead of it.

Commands travel while the worker steps, so its last report does not know of the newest of them. Each command has a
sequence number and each report names the last one applied. Pages of starts that are not yet applied count as taken;
pages of stops count as free only when a report, which then includes them, says so.
"""

from punica_serve.protocol import AssignmentId


class PageBook:
    """The free pages of one GPU's KvCache, and the numbers of the commands to it."""

    def __init__(self, num_pages: int) -> None:
        self.num_reported_free = num_pages
        self.applied_seq = 0
        self.last_seq = 0
        self._last_stop_seq = 0
        #: Of each start that no report has acknowledged: its number and the pages it will take.
        self._starts: dict[AssignmentId, tuple[int, int]] = {}

    @property
    def num_free(self) -> int:
        """May be negative: requests grow while a start is on its way."""
        return self.num_reported_free - sum(num_pages for _, num_pages in self._starts.values())

    @property
    def awaits_pages(self) -> bool:
        """Whether a stop is on its way, so that the next reports will show more free pages."""
        return self._last_stop_seq > self.applied_seq

    def start(self, assignment: AssignmentId, num_pages: int) -> int:
        """Books a start; returns its number."""
        self.last_seq += 1
        self._starts[assignment] = (self.last_seq, num_pages)
        return self.last_seq

    def stop(self) -> int:
        """Books a stop; returns its number."""
        self.last_seq += 1
        self._last_stop_seq = self.last_seq
        return self.last_seq

    def has_applied(self, assignment: AssignmentId) -> bool:
        """Whether the worker has said that it applied this start."""
        return assignment not in self._starts

    def drop(self, assignment: AssignmentId) -> None:
        """The worker says that it dropped this assignment by itself: nothing is taken for it any more."""
        self._starts.pop(assignment, None)

    def report(self, applied_seq: int, num_free: int) -> None:
        self.applied_seq = applied_seq
        self.num_reported_free = num_free
        self._starts = {assignment: start for assignment, start in self._starts.items() if start[0] > applied_seq}

    def check_invariants(self) -> None:
        assert self.applied_seq <= self.last_seq, f"{self.applied_seq} applied, {self.last_seq} sent"
        assert all(self.applied_seq < seq <= self.last_seq for seq, _ in self._starts.values()), self._starts
        assert all(num_pages > 0 for _, num_pages in self._starts.values()), self._starts
