"""How a worker asks its supervisor for adapters' files."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from punica_runner.pipes import WorkerPipe, pack
from punica_runner.supervisor_link import SupervisorLink
from punica_serve.errors import AdapterRejected, ProtocolError, StoreUnavailable
from punica_serve.protocol import (
    AdapterFetched,
    AdapterRef,
    Decoder,
    FetchAdapter,
    Message,
    SupervisorToWorker,
    WireError,
    WorkerToSupervisor,
)
from waits import DEADLINE_S

REF = AdapterRef("d1", "s3://bucket/d1", 100, {"q_proj": 8})
BROKEN = WireError("store_unavailable", "the store is down")


class _Supervisor:
    """The other end of a link, and the worker's reader thread."""

    def __init__(self) -> None:
        their_read, self.write_fd = os.pipe()
        self.read_fd, their_write = os.pipe()
        self.pipe = WorkerPipe(their_read, their_write, SupervisorToWorker)
        self.link = SupervisorLink(self.pipe)
        self.error: BaseException | None = None
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            self.link.read()
        except ProtocolError as error:
            self.error = error

    def tell(self, message: Message) -> None:
        os.write(self.write_fd, pack(message))

    def heard(self) -> Message:
        num_bytes = int.from_bytes(os.read(self.read_fd, 4), "big")
        message: Message = Decoder(WorkerToSupervisor)(os.read(self.read_fd, num_bytes))
        return message

    def end(self) -> None:
        os.close(self.write_fd)
        self._reader.join(DEADLINE_S)
        self.pipe.close()
        os.close(self.read_fd)


@pytest.fixture
def supervisor() -> Iterator[_Supervisor]:
    made = _Supervisor()
    yield made
    made.end()


def test_a_fetch_that_is_not_answered_yet_is_shared(supervisor: _Supervisor) -> None:
    """An adapter may be in host memory before the answer, and evicted and asked for again."""
    future = supervisor.link.fetch(REF)
    assert supervisor.link.fetch(REF) is future
    assert supervisor.heard() == FetchAdapter(REF)
    supervisor.tell(AdapterFetched("d1", "/cache/d1"))
    assert future.result(DEADLINE_S) == Path("/cache/d1")
    assert supervisor.link.fetch(REF) is not future
    assert supervisor.heard() == FetchAdapter(REF)


def test_a_fetch_ends_with_the_folder(supervisor: _Supervisor) -> None:
    future = supervisor.link.fetch(REF)
    assert supervisor.heard() == FetchAdapter(REF)
    supervisor.tell(AdapterFetched("d1", "/cache/d1"))
    assert future.result(DEADLINE_S) == Path("/cache/d1")
    again = supervisor.link.fetch(REF)
    supervisor.tell(AdapterFetched("d1", "/cache/d1"))
    assert again.result(DEADLINE_S) == Path("/cache/d1")


@pytest.mark.parametrize(("is_permanent", "kind"), [(True, AdapterRejected), (False, StoreUnavailable)])
def test_a_fetch_that_fails_says_whether_for_good(
    supervisor: _Supervisor, is_permanent: bool, kind: type[Exception]
) -> None:
    future = supervisor.link.fetch(REF)
    supervisor.tell(AdapterFetched("d1", error=BROKEN, is_permanent=is_permanent))
    with pytest.raises(kind, match="the store is down"):
        future.result(DEADLINE_S)


def test_an_answer_that_nobody_asked_for_is_no_message(supervisor: _Supervisor) -> None:
    supervisor.tell(AdapterFetched("d2", "/cache/d2"))
    supervisor._reader.join(DEADLINE_S)
    assert isinstance(supervisor.error, ProtocolError) and "d2" in supervisor.error.message
