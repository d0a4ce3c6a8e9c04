"""In any history each token arrives once, in order, and each request ends, for a reason that its frontend can know."""

from client_stream import ClientStream
from cluster_history import HISTORIES, ClusterHistory
from late_worker import answer
from punica_scheduler.core import events
from punica_scheduler.core.actions import Action
from worker_rules import LOAD_FAILURES

#: Error codes of requests that no GPU is large enough for.
REFUSALS = {"invalid_request", "context_length_exceeded", "out_of_capacity"}


class TokenHistory(ClusterHistory):
    def __init__(self) -> None:
        super().__init__()
        #: Those whose ends were checked.
        self.ended: set[str] = set()

    def observe(self, event: events.Event, actions: list[Action]) -> None:
        for name, stream in self.cluster.streams.items():
            if name not in self.ended:
                check_stream(stream)
            if stream.end is not None:
                self.ended.add(name)

    def teardown(self) -> None:
        self.ends_well()
        assert self.ended == self.cluster.streams.keys()


def check_stream(stream: ClientStream) -> None:
    whole = answer(stream.request)
    assert stream.tokens == whole[: len(stream.tokens)]
    if stream.end is None or stream.end.reason == "cancelled":
        return
    if stream.end.reason != "error":
        assert stream.tokens == whole
        return
    error = stream.end.error
    assert error is not None
    if not stream.has_run and error.code in REFUSALS:
        return
    assert error.code in LOAD_FAILURES, error
    assert stream.num_load_failures >= 3 or stream.num_losses >= 3, error


TokenHistory.TestCase.settings = HISTORIES
TestTokens = TokenHistory.TestCase
