import os
import sys
import threading

import pytest

from punica_serve.engine.memory.host_memory_opening import HostMemoryOpening
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors import ConfigError

_DEADLINE_S = 10.0


class _Memory(HostMemory):
    """Says what became of it."""

    def __init__(self) -> None:
        super().__init__(4096)
        self.pinned_on: str | None = None
        self.is_closed = threading.Event()

    def pin(self) -> None:
        self.pinned_on = threading.current_thread().name

    def close(self) -> None:
        super().close()
        self.is_closed.set()


def test_memory_is_made_ready_while_its_owner_does_other_things() -> None:
    allocated = threading.Event()

    def allocate() -> HostMemory:
        assert threading.current_thread().name == "host-memory"
        allocated.set()
        return _Memory()

    opening = HostMemoryOpening(allocate, in_background=True)
    assert allocated.wait(_DEADLINE_S)
    memory = opening.take()
    opening.close()
    assert isinstance(memory, _Memory)
    assert memory.pinned_on == threading.current_thread().name
    assert not memory.is_closed.is_set(), "its new owner closes it"


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own here")
def test_the_rest_of_the_start_comes_first() -> None:
    niceness: list[int] = []

    def allocate() -> HostMemory:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return _Memory()

    own = os.getpriority(os.PRIO_PROCESS, 0)
    HostMemoryOpening(allocate, in_background=True).take()
    assert niceness == [max(own, 10)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_its_owner_is_called_while_it_waits() -> None:
    goes_on = threading.Event()

    def allocate() -> HostMemory:
        assert goes_on.wait(_DEADLINE_S)
        return _Memory()

    assert HostMemoryOpening(allocate, in_background=True).take(goes_on.set) is not None


def test_memory_whose_wait_was_ended_is_closed() -> None:
    memory, goes_on = _Memory(), threading.Event()

    def allocate() -> HostMemory:
        assert goes_on.wait(_DEADLINE_S)
        return memory

    def interrupt() -> None:
        raise KeyboardInterrupt

    opening = HostMemoryOpening(allocate, in_background=True)
    with pytest.raises(KeyboardInterrupt):
        opening.take(interrupt)
    opening.close()
    goes_on.set()
    assert memory.is_closed.wait(_DEADLINE_S)


def test_without_a_thread_it_is_allocated_when_it_is_taken() -> None:
    memories: list[_Memory] = []

    def allocate() -> HostMemory:
        memories.append(_Memory())
        return memories[0]

    opening = HostMemoryOpening(allocate, in_background=False)
    assert not memories
    assert opening.take() is memories[0]


@pytest.mark.parametrize("in_background", [True, False])
def test_memory_that_cannot_be_had_is_refused_when_it_is_taken(*, in_background: bool) -> None:
    opening = HostMemoryOpening(lambda: HostMemory(1 << 62), in_background=in_background)
    with pytest.raises(ConfigError, match="can't be had"):
        opening.take()
    opening.close()


def test_memory_that_nobody_takes_is_closed_once_it_is_there() -> None:
    memory, goes_on = _Memory(), threading.Event()

    def allocate() -> HostMemory:
        assert goes_on.wait(_DEADLINE_S)
        return memory

    opening = HostMemoryOpening(allocate, in_background=True)
    opening.close()
    assert not memory.is_closed.is_set()
    goes_on.set()
    assert memory.is_closed.wait(_DEADLINE_S)
