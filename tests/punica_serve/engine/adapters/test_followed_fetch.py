"""A fetch and the thread that follows it end once, whichever ends first."""

from concurrent.futures import Future
from pathlib import Path

import pytest

from punica_serve.engine.adapters.followed_fetch import FollowedFetch
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.errors import StoreUnavailable

COPY = HostCopy("digest", PackedAdapter({}), 0, None)
FOLDER = Path("/cache/digest")


@pytest.fixture
def fetch() -> "Future[Path]":
    return Future()


@pytest.fixture
def followed(fetch: "Future[Path]") -> FollowedFetch:
    return FollowedFetch(fetch)


def test_a_copy_is_there_before_the_fetch_is_answered(followed: FollowedFetch, fetch: "Future[Path]") -> None:
    assert followed.begin()
    followed.end(COPY)
    assert followed.future.result(0) is COPY
    fetch.set_exception(StoreUnavailable("its disk is full"))
    assert followed.future.result(0) is COPY


def test_a_fetch_that_ends_meanwhile_waits_for_the_thread(followed: FollowedFetch, fetch: "Future[Path]") -> None:
    assert followed.begin() and not followed.future.running()
    fetch.set_result(FOLDER)
    assert followed.future.running() and not followed.stop.is_set()
    followed.end(COPY)
    assert followed.future.result(0) is COPY


def test_a_fetch_that_fails_stops_the_thread_and_is_told_after_it(
    followed: FollowedFetch, fetch: "Future[Path]"
) -> None:
    """Until then it writes to memory that others may be given."""
    assert followed.begin()
    fetch.set_exception(StoreUnavailable("the store is down"))
    assert followed.stop.is_set() and not followed.future.done()
    followed.end(None)
    with pytest.raises(StoreUnavailable, match="the store is down"):
        followed.future.result(0)


@pytest.mark.parametrize("begins", [False, True])
def test_without_a_copy_the_fetch_decides(followed: FollowedFetch, fetch: "Future[Path]", begins: bool) -> None:
    if begins:
        assert followed.begin()
    followed.end(None)
    assert not followed.future.done()
    fetch.set_result(FOLDER)
    assert followed.future.result(0) == FOLDER


def test_a_fetch_that_ends_first_leaves_nothing_to_begin(followed: FollowedFetch, fetch: "Future[Path]") -> None:
    fetch.set_result(FOLDER)
    assert followed.future.result(0) == FOLDER and followed.stop.is_set()
    assert not followed.begin()
    followed.end(None)
