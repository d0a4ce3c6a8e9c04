import pytest

from punica_serve.protocol import AdaptersCached
from punica_serve.simulation.host_memory import SimulatedHostMemory
from punica_serve.worker_state.reported_adapters import ReportedAdapters


@pytest.fixture
def reported() -> ReportedAdapters:
    return ReportedAdapters("gpu")


@pytest.fixture
def host() -> SimulatedHostMemory:
    host = SimulatedHostMemory()
    host.add("d1")
    host.add("d2")
    return host


def test_resident_adapters_are_reported_when_they_change(reported: ReportedAdapters) -> None:
    assert reported.is_resident_known(()) and reported.resident(()) is None
    assert not reported.is_resident_known(("d1",)) and reported.resident(("d1",)) == ("d1",)
    assert reported.is_resident_known(("d1",)) and reported.resident(("d1",)) is None
    assert reported.resident(()) == ()


def test_changes_of_host_memory_are_reported_once(reported: ReportedAdapters, host: SimulatedHostMemory) -> None:
    assert reported.in_host_memory(host) == [AdaptersCached("gpu", ("d1", "d2"), ())]
    assert reported.in_host_memory(host) == []
    host.evict("d1")
    assert reported.in_host_memory(host) == [AdaptersCached("gpu", (), ("d1",))]


def test_after_a_reset_all_are_reported_once_more(reported: ReportedAdapters, host: SimulatedHostMemory) -> None:
    reported.resident(("d1",))
    reported.in_host_memory(host)
    reported.reset()
    host.evict("d2")
    assert reported.resident(("d1",)) == ("d1",)
    assert reported.in_host_memory(host) == [AdaptersCached("gpu", ("d1",), ("d2",))], "evictions too"
    assert reported.resident(("d1",)) is None and reported.in_host_memory(host) == []


def test_no_adapters_are_reported_too_after_a_reset(reported: ReportedAdapters) -> None:
    reported.reset()
    assert reported.resident(()) == ()
