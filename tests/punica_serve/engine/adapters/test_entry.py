"""An adapter goes through its states by the table, and through no others."""

from concurrent.futures import Future

import pytest

from engine_fixtures import MakeHarness
from punica_serve.engine.adapters.adapter_peers import GroupCopy
from punica_serve.engine.adapters.entry import TRANSITIONS, AdapterEntry, AdapterState
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.errors.invariants import InvariantBroken
from punica_serve.protocol import AdapterRef

REF = AdapterRef("digest", "", 1, {"q_proj": 8})


def copy() -> HostCopy:
    return HostCopy("digest", PackedAdapter({}), 0, None)


def state(entry: AdapterEntry) -> AdapterState:
    """The state as it is now: a type checker believes that an attribute stays."""
    return entry.state


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(AdapterState)
    assert frozenset().union(*TRANSITIONS.values()) == set(AdapterState) - {AdapterState.LOADING}


@pytest.mark.parametrize(
    ("start", "finish"),
    [(start, finish) for start in AdapterState for finish in AdapterState if finish not in TRANSITIONS[start]],
)
def test_a_transition_outside_the_table_is_a_bug(start: AdapterState, finish: AdapterState) -> None:
    entry = AdapterEntry(REF, start)
    with pytest.raises(InvariantBroken, match=f"adapter digest is {start.value} and can't become {finish.value}"):
        entry.end(finish)
    assert entry.state is start


def test_an_adapter_that_is_loaded_used_and_evicted_holds_what_each_state_needs() -> None:
    entry, staged, work = AdapterEntry(REF), copy(), Future[None]()
    entry.acquire()
    entry.check_invariants()
    entry.stage(staged)
    assert state(entry) is AdapterState.STAGED and entry.copy is staged
    entry.check_invariants()
    entry.take_pages({"qkv": [3]})
    entry.begin_copy(GroupCopy(work), None)
    assert state(entry) is AdapterState.COPYING and entry.copy is staged and not entry.has_copied
    entry.check_invariants()
    work.set_result(None)
    assert entry.has_copied
    assert entry.end_copy() is staged
    assert state(entry) is AdapterState.RESIDENT and entry.copy is None and entry.filling is None
    entry.check_invariants()
    assert not entry.is_evictable
    entry.release()
    assert entry.is_evictable
    assert entry.end(AdapterState.EVICTED) is None
    assert entry.pages == {"qkv": [3]}, "they are the loader's to free"
    with pytest.raises(InvariantBroken, match="adapter digest is evicted, and yet here"):
        entry.check_invariants()


def test_one_that_leaves_with_a_copy_in_host_memory_hands_it_over() -> None:
    staged, copying, held = AdapterEntry(REF), AdapterEntry(REF), copy()
    staged.stage(held)
    assert staged.end(AdapterState.EVICTED) is held and staged.copy is None
    copying.stage(held)
    copying.begin_copy(GroupCopy(Future()), None)
    assert not copying.is_evictable, "a thread writes its pages"
    assert copying.end(AdapterState.FAILED) is held and copying.filling is None


def test_an_unwanted_one_must_have_left_unless_it_is_used() -> None:
    entry = AdapterEntry(REF)
    entry.acquire()
    entry.mark_unwanted()
    entry.check_invariants()
    entry.release()
    with pytest.raises(InvariantBroken, match="should have been evicted"):
        entry.check_invariants()
    entry.want()
    entry.check_invariants()
    entry.release()
    with pytest.raises(InvariantBroken, match="released more often than acquired"):
        entry.check_invariants()


def test_one_whose_files_are_missing_fails(make_harness: MakeHarness) -> None:
    harness = make_harness()
    harness.loader.acquire(REF)
    entry = harness.loader.adapters["digest"]
    assert state(entry) is AdapterState.LOADING
    (failure,) = harness.until(lambda: not harness.loader.adapters)
    assert failure.digest == "digest" and state(entry) is AdapterState.FAILED
