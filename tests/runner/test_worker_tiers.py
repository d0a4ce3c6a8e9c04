"""Adapters that a device's workers held, and the order in which the next worker gets them back."""

import pytest

from punica_runner import worker_tiers
from punica_runner.worker_tiers import MAX_IN_FLIGHT, PREFETCH_TIMEOUT_S, SETTLE_S, WorkerTiers
from punica_serve.protocol import AdapterRef


def ref(digest: str) -> AdapterRef:
    return AdapterRef(digest, f"/adapters/{digest}", 1, {})


@pytest.fixture
def tiers() -> WorkerTiers:
    return WorkerTiers()


def use(tiers: WorkerTiers, digests: str, *, cached: bool = True) -> None:
    """A request for each, in order; then host memory has them."""
    for digest in digests.split():
        tiers.used(ref(digest))
    if cached:
        tiers.cached(digests.split(), (), 0.0)


def asked(tiers: WorkerTiers, now_s: float = 0.0) -> list[str]:
    return [adapter.digest for adapter, _ in tiers.next_prefetches(now_s)]


def restored(tiers: WorkerTiers) -> list[str]:
    """All that come back, one call after another, each of which succeeds at once."""
    digests: list[str] = []
    while tiers.has_lost:
        digests += (batch := asked(tiers))
        tiers.cached(batch, (), 0.0)
    return digests


def test_the_most_used_come_back_first_and_then_the_newest(tiers: WorkerTiers) -> None:
    use(tiers, "once-old thrice thrice thrice twice once-new twice")
    tiers.named(ref("prefetched"))
    tiers.cached(["prefetched"], (), 0.0)
    tiers.restart()
    assert restored(tiers) == ["thrice", "twice", "once-new", "once-old", "prefetched"]
    tiers.restart()
    assert restored(tiers) == ["thrice", "twice", "once-new", "once-old", "prefetched"], "after each restart"


def test_a_first_worker_gets_nothing(tiers: WorkerTiers) -> None:
    tiers.restart()
    assert not tiers.has_lost and asked(tiers) == []


def test_what_was_in_no_tier_does_not_come_back(tiers: WorkerTiers) -> None:
    use(tiers, "here evicted")
    use(tiers, "never-arrived", cached=False)
    tiers.cached(["stranger"], ["evicted"], 0.0)
    tiers.restart()
    assert restored(tiers) == ["here"]


def test_what_was_on_the_device_goes_on_to_it(tiers: WorkerTiers) -> None:
    use(tiers, "both")
    use(tiers, "host-only")
    use(tiers, "device-only", cached=False)
    tiers.resident(["before"], 0.0)
    tiers.resident(["both", "device-only"], 0.0)
    tiers.restart()
    prefetches = {adapter.digest: for_device for adapter, for_device in tiers.next_prefetches(0.0)}
    assert prefetches == {"both": True, "host-only": False, "device-only": True}


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_deleted_adapter_does_not_come_back(tiers: WorkerTiers, is_dead: bool) -> None:
    use(tiers, "kept deleted")
    if is_dead:
        tiers.restart()
    tiers.forget("deleted")
    if not is_dead:
        tiers.cached((), ["deleted"], 0.0)
        tiers.restart()
    assert restored(tiers) == ["kept"]
    use(tiers, "deleted")
    tiers.restart()
    assert "deleted" in restored(tiers), "it was registered anew"


def test_few_are_asked_for_at_a_time(tiers: WorkerTiers) -> None:
    use(tiers, " ".join(f"{number:02}" for number in range(3 * MAX_IN_FLIGHT)))
    tiers.restart()
    first = asked(tiers)
    assert len(first) == MAX_IN_FLIGHT and asked(tiers) == []
    tiers.cached(first[:2], (), 0.0)
    assert len(asked(tiers)) == 2


def test_what_never_comes_makes_room_after_a_while(tiers: WorkerTiers) -> None:
    use(tiers, " ".join(f"{number:02}" for number in range(2 * MAX_IN_FLIGHT)))
    tiers.restart()
    asked(tiers)
    assert asked(tiers, PREFETCH_TIMEOUT_S / 2) == []
    assert len(asked(tiers, PREFETCH_TIMEOUT_S)) == MAX_IN_FLIGHT


def test_what_a_request_has_loaded_meanwhile_is_not_asked_for(tiers: WorkerTiers) -> None:
    use(tiers, " ".join(f"{number:02}" for number in range(MAX_IN_FLIGHT + 1)))
    tiers.restart()
    asked(tiers)
    tiers.cached(["00"], (), 0.0)
    assert not tiers.has_lost


def test_full_host_memory_ends_it(tiers: WorkerTiers) -> None:
    """The others are used less than those that they would evict."""
    use(tiers, " ".join(f"{number:02}" for number in range(2 * MAX_IN_FLIGHT)))
    tiers.restart()
    first = asked(tiers)
    tiers.cached(first, ["forgotten"], 0.0)
    assert tiers.has_lost, "a deleted adapter's end says nothing"
    tiers.cached((), [first[0]], 0.0)
    assert not tiers.has_lost


def test_what_was_under_way_when_the_next_worker_died_is_not_tried_again(tiers: WorkerTiers) -> None:
    use(tiers, " ".join(f"{number:02}" for number in range(2 * MAX_IN_FLIGHT)))
    tiers.restart()
    came, *under_way = asked(tiers)
    tiers.cached([came], (), 0.0)
    tiers.restart()
    back = restored(tiers)
    assert came in back and len(back) == MAX_IN_FLIGHT + 1 and set(back).isdisjoint(under_way)


def test_what_kills_its_worker_once_it_is_back_waits_for_a_request(
    tiers: WorkerTiers, caplog: pytest.LogCaptureFixture
) -> None:
    use(tiers, "deadly harmless")
    tiers.resident(["deadly"], 0.0)
    tiers.restart()
    asked(tiers)
    tiers.cached(["harmless"], (), 0.0)
    tiers.cached(["deadly"], (), 1.0)
    tiers.resident(["deadly"], 5.0)
    tiers.died(5.0 + SETTLE_S / 2)
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["deadly"]
    tiers.restart()
    assert restored(tiers) == ["harmless"]
    tiers.died(PREFETCH_TIMEOUT_S)
    use(tiers, "deadly")
    tiers.restart()
    assert restored(tiers) == ["deadly", "harmless"]
    assert len(caplog.records) == 1


def test_a_request_that_uses_what_has_come_back_clears_it(tiers: WorkerTiers, caplog: pytest.LogCaptureFixture) -> None:
    use(tiers, "a")
    tiers.restart()
    restored(tiers)
    tiers.used(ref("a"))
    tiers.died(0.0)
    tiers.restart()
    assert restored(tiers) == ["a"] and not caplog.records


def test_a_copy_to_the_device_is_suspected_until_it_has_ended(tiers: WorkerTiers) -> None:
    use(tiers, "a b")
    tiers.resident(["a"], 0.0)
    tiers.restart()
    restored(tiers)
    tiers.died(SETTLE_S)
    tiers.restart()
    assert restored(tiers) == ["b"]


def test_no_more_than_so_many_are_remembered(tiers: WorkerTiers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_tiers, "MAX_REMEMBERED", 3)
    use(tiers, "a b c a d")
    tiers.restart()
    assert restored(tiers) == ["a", "d", "c"]


def test_nothing_comes_back_where_host_memory_holds_no_adapters() -> None:
    tiers = WorkerTiers(has_host_memory=False)
    use(tiers, "a b", cached=False)
    tiers.resident(["a", "b"], 0.0)
    tiers.restart()
    assert not tiers.has_lost and asked(tiers) == []
