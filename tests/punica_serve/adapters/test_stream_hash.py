import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest

from punica_serve.adapters.stream_hash import StreamHash
from waits import DEADLINE_S

MEMORY = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)


@pytest.fixture
def helpers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def sha256(num_bytes: int) -> bytes:
    return hashlib.sha256(MEMORY[:num_bytes].data).digest()


@pytest.mark.parametrize("ends", [[], [1], [50_000, 100_000], range(0, 100_001, 1000)])
def test_it_is_the_digest_of_all_that_was_filled(ends: list[int], helpers: ThreadPoolExecutor) -> None:
    for given in (None, helpers):
        stream = StreamHash(MEMORY, hashlib.sha256(), given)
        for end in ends:
            stream.fill(end)
        assert stream.digest() == sha256(max(ends, default=0))


def test_a_helper_hashes_while_more_is_filled(helpers: ThreadPoolExecutor) -> None:
    stream = StreamHash(MEMORY, hashlib.sha256(), helpers)
    for end in (40_000, 70_000):
        stream.fill(end)
        helpers.submit(lambda: None).result(DEADLINE_S)  # after the helper's
        assert stream._num_hashed == end


def test_it_waits_for_no_thread_to_become_free(helpers: ThreadPoolExecutor) -> None:
    busy = Event()
    helpers.submit(busy.wait, DEADLINE_S)
    stream = StreamHash(MEMORY, hashlib.sha256(), helpers)
    stream.fill(len(MEMORY))
    assert stream.digest() == sha256(len(MEMORY))
    busy.set()


def test_closed_helpers_are_done_without(helpers: ThreadPoolExecutor) -> None:
    stream = StreamHash(MEMORY, hashlib.sha256(), helpers)
    stream.fill(10)
    helpers.shutdown()
    stream.fill(len(MEMORY))
    assert stream.digest() == sha256(len(MEMORY))
