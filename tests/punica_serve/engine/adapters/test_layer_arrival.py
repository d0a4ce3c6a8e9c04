"""The arrival of an adapter's layers in the memory of a CPU."""

from threading import Thread

import pytest

from punica_serve.engine.adapters import layer_arrival
from punica_serve.engine.adapters.layer_arrival import ArrivalFailed, CpuArrival, layer_groups


@pytest.mark.parametrize("num_layers", [1, 2, 7, 8, 9, 22, 32, 80])
def test_groups_cover_all_layers_in_order_and_evenly(num_layers: int) -> None:
    groups = layer_groups(num_layers)
    assert [layer for group in groups for layer in group] == list(range(num_layers))
    assert len(groups) == min(8, num_layers)
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1


def test_a_layer_is_there_with_its_group() -> None:
    told: list[str] = []
    arrival = CpuArrival(16, lambda: told.append("awaitable"))
    assert not arrival.is_awaitable
    arrival.mark()
    assert arrival.is_awaitable and arrival.num_arrived == 1
    arrival.wait(0)
    arrival.wait(1)
    arrival.mark()
    arrival.wait(3)
    assert told == ["awaitable"]


def test_who_waits_is_told_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    arrival = CpuArrival(8, lambda: None)
    arrival.mark()
    thread = Thread(target=arrival.fail)
    thread.start()
    with pytest.raises(ArrivalFailed):
        arrival.wait(5)
    thread.join()
    assert not arrival.is_awaitable


def test_no_wait_is_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_arrival, "_TIMEOUT_S", 0.01)
    with pytest.raises(ArrivalFailed):
        CpuArrival(8, lambda: None).wait(0)
