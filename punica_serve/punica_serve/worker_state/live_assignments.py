"""The map from requests to assignments, and back: engines know requests, and the scheduler knows assignments."""

from collections.abc import Iterator

from punica_serve.errors.invariants import require
from punica_serve.protocol import AssignmentId


class LiveAssignments:
    """The assignments that have started on a worker and have not ended. A request has one at most."""

    def __init__(self) -> None:
        #: Request id -> its assignment. Only for reading.
        self.by_request: dict[str, AssignmentId] = {}
        self._request_ids: dict[AssignmentId, str] = {}

    def __len__(self) -> int:
        return len(self.by_request)

    def __iter__(self) -> Iterator[AssignmentId]:
        """A snapshot, so that a loop may stop them."""
        return iter(tuple(self._request_ids))

    def start(self, request_id: str, assignment: AssignmentId) -> None:
        """Adds an assignment of a request that has none."""
        require(request_id not in self.by_request, f"request {request_id} has two assignments")
        self.by_request[request_id] = assignment
        self._request_ids[assignment] = request_id

    def stop(self, assignment: AssignmentId) -> str | None:
        """Removes an assignment, and returns its request. None if it has ended meanwhile."""
        request_id = self._request_ids.pop(assignment, None)
        if request_id is not None:
            del self.by_request[request_id]
        return request_id

    def end(self, request_id: str) -> AssignmentId:
        """Removes the assignment of a request that finished or failed."""
        assignment = self.by_request.pop(request_id)
        del self._request_ids[assignment]
        return assignment

    def check_invariants(self) -> None:
        """Audits the two maps; an AssertionError is a bug of ours."""
        back = {assignment: request_id for request_id, assignment in self.by_request.items()}
        require(back == self._request_ids, "requests and assignments don't match")
