"""A host's disk over a cache that the test controls."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from punica_runner.host_disk import HostDisk
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.protocol import AdapterFetched, AdapterRef, AdaptersCached, WireError
from waits import DEADLINE_S, until


class _Cache:
    """Answers a fetch once the test has set a result for its digest."""

    def __init__(self) -> None:
        self.digests = frozenset({"d2", "d1"})
        self.answers: dict[str, asyncio.Future[Path]] = {}
        self.calls: list[tuple[str, str]] = []

    def answer(self, digest: str) -> "asyncio.Future[Path]":
        return self.answers.setdefault(digest, asyncio.get_running_loop().create_future())

    async def fetch(self, ref: AdapterRef) -> Path:
        return await self.answer(ref.digest)

    def release(self, digest: str) -> None:
        self.calls.append(("release", digest))

    async def forget(self, digest: str) -> bool:
        self.calls.append(("forget", digest))
        raise StoreUnavailable("the disk hangs")

    async def close(self) -> None:
        self.calls.append(("close", ""))


@pytest.fixture
def cache() -> _Cache:
    return _Cache()


@pytest.fixture
async def disk(cache: _Cache) -> AsyncIterator[HostDisk]:
    made = HostDisk(cache, timeout_s=60.0)  # type: ignore[arg-type]
    yield made
    await made.close()


def _ref(digest: str) -> AdapterRef:
    return AdapterRef(digest, f"s3://bucket/{digest}", 100, {"q_proj": 8})


async def test_a_fetch_that_hangs_delays_no_other(disk: HostDisk, cache: _Cache) -> None:
    answers: asyncio.Queue[AdapterFetched] = asyncio.Queue()
    for digest in ("hangs", "d1"):
        disk.fetch(_ref(digest), answers.put_nowait)
    cache.answer("d1").set_result(Path("/cache/d1"))
    async with asyncio.timeout(DEADLINE_S):
        assert await answers.get() == AdapterFetched("d1", "/cache/d1")
    assert cache.calls == [("release", "d1")], "the worker needs it only while it reads"
    await disk.close()
    assert answers.empty() and cache.calls[-1] == ("close", "")


async def test_a_worker_does_not_wait_too_long_and_the_next_fetch_finds_the_files(cache: _Cache) -> None:
    disk = HostDisk(cache, timeout_s=0.01)  # type: ignore[arg-type]
    answers: asyncio.Queue[AdapterFetched] = asyncio.Queue()
    async with asyncio.timeout(DEADLINE_S):
        disk.fetch(_ref("d1"), answers.put_nowait)
        late = await answers.get()
        assert late.error is not None and "not deliver the adapter in time" in late.error.message
        assert not late.is_permanent
        cache.answer("d1").set_result(Path("/cache/d1"))
        num_fetches = 1
        while late.folder is None:  # on a busy machine that may take too long
            disk.fetch(_ref("d1"), answers.put_nowait)
            late, num_fetches = await answers.get(), num_fetches + 1
        assert late.folder == "/cache/d1"
        await until(lambda: cache.calls.count(("release", "d1")) == num_fetches)
        await disk.close()
    assert answers.empty()


async def test_fetches_do_not_wait_for_a_store_that_is_down_until_it_answers(cache: _Cache) -> None:
    disk = HostDisk(cache, timeout_s=0.2)  # type: ignore[arg-type]
    answers: asyncio.Queue[AdapterFetched] = asyncio.Queue()

    async def fetched(digest: str) -> AdapterFetched:
        disk.fetch(_ref(digest), answers.put_nowait)
        return await answers.get()

    async with asyncio.timeout(DEADLINE_S):
        assert (await fetched("hangs")).error
        disk._timeout_s = 600.0  # the next fetches could wait, and don't
        for _ in range(3):
            assert (await fetched("hangs too")).error
        cache.answer("d1").set_result(Path("/cache/d1"))
        assert (await fetched("d1")).folder == "/cache/d1", "an adapter on the disk needs no store"
        assert (await fetched("hangs too")).error
        assert cache.answers.keys() == {"hangs", "hangs too", "d1"}
        cache.answer("hangs").set_result(Path("/cache/hangs"))
        await until(lambda: ("release", "hangs") in cache.calls)
        disk.fetch(_ref("new"), answers.put_nowait)
        await until(lambda: "new" in cache.answers)
        assert answers.empty(), "it waits again"
        cache.answer("new").set_result(Path("/cache/new"))
        assert (await answers.get()).folder == "/cache/new"
        await disk.close()


@pytest.mark.parametrize(
    ("error", "told", "is_permanent"),
    [
        (StoreUnavailable("down"), WireError("store_unavailable", "down"), False),
        (AdapterRejected("other bytes"), WireError("adapter_rejected", "other bytes"), True),
        (
            RuntimeError("a bug"),
            WireError("store_unavailable", "the files can't be fetched; the runner's log says more"),
            False,
        ),
    ],
)
async def test_a_fetch_that_fails_says_how(
    disk: HostDisk, cache: _Cache, error: Exception, told: WireError, is_permanent: bool
) -> None:
    answers: asyncio.Queue[AdapterFetched] = asyncio.Queue()
    cache.answer("d1").set_exception(error)
    disk.fetch(_ref("d1"), answers.put_nowait)
    async with asyncio.timeout(DEADLINE_S):
        assert await answers.get() == AdapterFetched("d1", None, told, is_permanent)


async def test_a_failed_eviction_is_logged(disk: HostDisk, cache: _Cache, caplog: pytest.LogCaptureFixture) -> None:
    disk.evict("d1")
    await until(lambda: caplog.records)
    assert cache.calls == [("forget", "d1")] and "d1 can't be removed" in caplog.text


async def test_its_holdings_are_the_fetched_adapters(disk: HostDisk) -> None:
    assert disk.holdings() == AdaptersCached(None, ("d1", "d2"), ())
