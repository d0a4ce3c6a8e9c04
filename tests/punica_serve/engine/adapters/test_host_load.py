"""A load to host memory goes through its states by the table, and through no others."""

from concurrent.futures import Future
from pathlib import Path

import pytest

from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.host_load import TRANSITIONS, HostLoad, LoadState, PrefetchQueue
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.errors.invariants import InvariantBroken
from punica_serve.protocol import AdapterRef

LOCAL = AdapterRef("digest", "/adapters/a", 1, {"q_proj": 8})
REMOTE = AdapterRef("digest", "s3://bucket/a", 1, {"q_proj": 8})


def state(load: HostLoad) -> LoadState:
    """The state as it is now: a type checker believes that an attribute stays."""
    return load.state


def test_every_state_is_in_the_table_and_nothing_follows_an_end() -> None:
    assert set(TRANSITIONS) == frozenset().union(*TRANSITIONS.values()) == set(LoadState)
    ends = {LoadState.LOADED, LoadState.FAILED, LoadState.DROPPED}
    assert {state for state, nexts in TRANSITIONS.items() if not nexts} == ends


@pytest.mark.parametrize(
    ("start", "finish"),
    [(start, finish) for start in LoadState for finish in LoadState if finish not in TRANSITIONS[start]],
)
def test_a_transition_outside_the_table_is_a_bug(start: LoadState, finish: LoadState) -> None:
    load = HostLoad(LOCAL, state=start)
    with pytest.raises(InvariantBroken, match=f"adapter digest is {start.value} and can't become {finish.value}"):
        load.end(finish)
    assert load.state is start


def test_a_remote_adapter_is_fetched_until_it_is_read() -> None:
    load = HostLoad(REMOTE)
    for num_fetches in (1, 2, 3):
        assert load.needs_fetch and load.local_ref == REMOTE
        load.begin_fetch(Future())
        assert state(load) is LoadState.FETCHING and not load.is_step_done
        load.set_folder(Path("/cache/digest"))
        assert not load.needs_fetch and load.local_ref.uri == "/cache/digest"
        load.begin_read(Future())
        assert state(load) is LoadState.READING
        assert load.may_fetch_again == (num_fetches < 3)
        load.set_folder(None)
    load.end(LoadState.FAILED)
    assert load.future is None


def test_files_on_this_host_are_only_read() -> None:
    load, read = HostLoad(LOCAL), Future[HostCopy]()
    assert not load.needs_fetch and load.local_ref is LOCAL
    load.begin_read(read)
    read.set_result(HostCopy("digest", PackedAdapter({}), 0, None))
    assert load.is_step_done and not load.may_fetch_again
    load.end(LoadState.LOADED)
    assert state(load) is LoadState.LOADED


def test_a_request_needs_one_that_was_unwanted() -> None:
    load = HostLoad(LOCAL)
    load.mark_unwanted()
    assert load.is_unwanted and not load.is_needed
    load.need()
    assert load.is_needed and not load.is_unwanted and not load.for_device
    load.mark_unwanted()
    load.want(for_device=True)
    load.want(for_device=False)
    assert load.for_device and not load.is_unwanted


def test_prefetches_take_slots_in_order() -> None:
    queue, loads = PrefetchQueue(2), [HostLoad(AdapterRef(digest, "", 1, {})) for digest in "abc"]
    for load in loads:
        queue.append(load)
    assert queue.take_next() is loads[0] and queue.has_room
    assert queue.remove("b") is loads[1] and queue.remove("b") is None
    assert queue.take_next() is loads[2] and not queue.has_room
    queue.free_slot("b")
    assert not queue.has_room, "it had none"
    queue.free_slot("a")
    assert queue.has_room
