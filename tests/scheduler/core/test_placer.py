"""Placing must not cost more the more GPUs there are: counted in GPUs that are asked whether they have room."""

import pytest

from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.request import RequestRecord
from scheduler_in_words import NewAdapter, NewCluster


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """UUIDs of the GPUs that are asked, from now on. The audit, which asks them all, is left out."""
    asked: list[str] = []
    has_room_for = GpuRecord.has_room_for

    def noted(gpu: GpuRecord, record: RequestRecord) -> bool:
        asked.append(gpu.uuid)
        return has_room_for(gpu, record)

    monkeypatch.setattr(GpuRecord, "has_room_for", noted)
    monkeypatch.setattr("punica_scheduler.core.scheduler.Scheduler.check_invariants", lambda _scheduler: None)
    return asked


def test_placing_asks_one_gpu_of_a_thousand(filled: NewCluster, asked: list[str]) -> None:
    cluster = filled(*(f"{i:04}" for i in range(1000)), batch=4)
    for i in range(12):
        assert cluster.arrives(f"r{i}") == [f"{999 - i // 4:04}: start r{i}"]
    assert len(asked) == 12


def test_gpus_without_pages_are_not_asked(filled: NewCluster, asked: list[str]) -> None:
    cluster = filled(*(f"{i:04}" for i in range(100)), pages=8, batch=4)
    for i in range(99):
        cluster.arrives(f"long{i}", prompt=20)
    asked.clear()
    assert cluster.arrives("r1", prompt=20) == ["0000: start r1"]
    assert asked == ["0000"]


@pytest.mark.parametrize("batch", [4, 1])
def test_gpus_without_lora_pages_are_not_asked(
    filled: NewCluster, adapter: NewAdapter, asked: list[str], batch: int
) -> None:
    """Also those whose only place is about to be free."""
    cluster = filled(*(f"{i:02}" for i in range(100)), lora=2, batch=batch)
    for i in range(100):
        cluster.arrives(f"r{i}", lora=adapter(f"x{i}", 16), max_tokens=2)
        cluster.steps(f"{99 - i:02}", f"r{i}")
    for name in ("waits", "waits too"):
        cluster.arrives(name, lora=adapter(name, 8))
    asked.clear()
    assert cluster.is_cancelled("waits") == [], "the next head finds none either"
    assert asked == []
    assert cluster.steps("07", "r92", finished="r92")[1:] == ["07: start waits too"]
    assert set(asked) == {"07"}


def test_a_gpu_that_runs_the_adapter_needs_no_lora_pages_for_it(
    filled: NewCluster, adapter: NewAdapter, asked: list[str]
) -> None:
    cluster = filled(*(f"{i:02}" for i in range(100)), lora=1, batch=4)
    for i in range(100):
        cluster.arrives(f"r{i}", lora=adapter(f"x{i}"))
    cluster.arrives("waits", lora=adapter("y"))
    cluster.is_cancelled("waits")
    asked.clear()
    assert cluster.arrives("r100", lora=adapter("x57")) == ["42: start r100"]
    assert asked == ["42"]


def test_a_blocked_head_is_tried_again_only_where_something_has_improved(filled: NewCluster, asked: list[str]) -> None:
    cluster = filled(*(f"{i}" for i in range(10)), batch=1)
    for i in range(10):
        cluster.arrives(f"r{i}")
    cluster.arrives("waits")
    cluster.arrives("waits too")
    asked.clear()
    for i in range(9):
        cluster.steps(str(9 - i), f"r{i}")
        cluster.time_passes(0.2)
    assert asked == []
    assert cluster.steps("3", "r6", finished="r6")[1:] == ["3: start waits"]
    assert set(asked) == {"3"}


def test_gpus_about_to_have_a_place_but_no_pages_are_not_asked(filled: NewCluster, asked: list[str]) -> None:
    cluster = filled(*(f"{i:02}" for i in range(100)), pages=8, batch=1)
    for i in range(100):
        cluster.arrives(f"r{i}", prompt=20, max_tokens=2)
        cluster.steps(f"{99 - i:02}", f"r{i}")
    for name in ("waits", "waits too", "is short"):
        cluster.arrives(name, prompt=1 if name == "is short" else 20)
    asked.clear()
    assert cluster.is_cancelled("waits") == []
    assert asked == []
    assert cluster.is_cancelled("waits too") == ["99: start is short"]
    assert asked == ["99"], "the one that has told first"
