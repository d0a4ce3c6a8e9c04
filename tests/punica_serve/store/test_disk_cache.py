import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from file_server import FileServer
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.protocol import AdapterRef
from punica_serve.store.cache_folder import CacheFolder
from punica_serve.store.disk_cache import DiskCache
from waits import DEADLINE_S, until

MakeAdapter = Callable[[int], AdapterRef]


@asynccontextmanager
async def open_cache(folder: Path, budget_bytes: int = 1 << 30, **options: Any) -> AsyncIterator[DiskCache]:
    cache = DiskCache(folder, budget_bytes, **options)
    try:
        yield cache
    finally:
        await cache.close()


def served(ref: AdapterRef, server: FileServer) -> AdapterRef:
    """The same adapter in a store behind HTTP."""
    return msgspec.structs.replace(ref, uri=server.add_adapter(ref, f"/store/{ref.digest}"))


def num_downloads(ref: AdapterRef, server: FileServer) -> int:
    return server.num_gets[f"/store/{ref.digest}/adapter_model.safetensors"]


async def test_an_adapter_in_a_folder_is_used_in_place(tmp_path: Path, ref: AdapterRef) -> None:
    async with open_cache(tmp_path / "cache") as cache:
        assert await cache.fetch(ref) == Path(ref.uri)
        cache.release(ref.digest)
        assert cache.digests == frozenset()


async def test_downloads_once_for_all_who_ask(
    tmp_path: Path, ref: AdapterRef, http_server: FileServer, model: ModelConfig
) -> None:
    async with open_cache(tmp_path / "cache") as cache:
        remote = served(ref, http_server)
        folders = await asyncio.gather(*(cache.fetch(remote) for _ in range(5)))
        assert set(folders) == {tmp_path / "cache" / ref.digest}
        assert read_adapter(folders[0], model).digest == ref.digest
        assert num_downloads(ref, http_server) == 1
        assert cache.digests == {ref.digest}


async def test_survives_a_restart(tmp_path: Path, ref: AdapterRef, http_server: FileServer) -> None:
    remote = served(ref, http_server)
    for _ in range(2):
        async with open_cache(tmp_path / "cache") as cache:
            await cache.fetch(remote)
    assert num_downloads(ref, http_server) == 1
    assert DiskCache(tmp_path / "cache", 1).digests == {ref.digest}


FETCH = """
import asyncio, sys
from pathlib import Path
from random import Random
import msgspec
from punica_serve.protocol import AdapterRef
from punica_serve.store.cache_folder import CacheFolder
from punica_serve.store.disk_cache import DiskCache

async def main(folder, ref):
    cache = DiskCache(Path(folder), 1 << 30)
    print(await cache.fetch(msgspec.json.decode(ref, type=AdapterRef)))
    await cache.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_of_a_host_download_once(tmp_path: Path, ref: AdapterRef, http_server: FileServer) -> None:
    remote = served(ref, http_server)
    http_server.may_answer.clear()
    command = [sys.executable, "-c", FETCH, str(tmp_path / "cache"), msgspec.json.encode(remote).decode()]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert http_server.was_asked.wait(60)
    http_server.may_answer.set()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [output.strip() for output in outputs] == [str(tmp_path / "cache" / ref.digest)] * 2
    assert num_downloads(ref, http_server) == 1


async def test_what_was_used_longest_ago_makes_room(
    tmp_path: Path, make_adapter: MakeAdapter, http_server: FileServer
) -> None:
    refs = [served(make_adapter(seed), http_server) for seed in range(4)]
    changes: list[tuple[frozenset[str], frozenset[str]]] = []
    budget_bytes = 3 * refs[0].num_bytes + 4096
    async with open_cache(tmp_path / "cache", budget_bytes, on_change=lambda *change: changes.append(change)) as cache:
        for ref in (*refs[:3], refs[0]):
            await cache.fetch(ref)
            cache.release(ref.digest)
        await cache.fetch(refs[3])
        assert cache.digests == {refs[0].digest, refs[2].digest, refs[3].digest}
    assert changes[-1] == (frozenset({refs[3].digest}), frozenset({refs[1].digest}))


async def test_both_files_come_at_once(tmp_path: Path, ref: AdapterRef, http_server: FileServer) -> None:
    """A store takes tens of milliseconds to answer."""
    http_server.may_answer.clear()
    async with open_cache(tmp_path / "cache") as cache:
        fetching = asyncio.create_task(cache.fetch(served(ref, http_server)))
        try:
            await until(lambda: len(http_server.num_gets) == 2, "both files are asked for")
        finally:
            http_server.may_answer.set()
        await fetching


async def test_a_cache_with_room_is_not_looked_through_for_each_download(
    tmp_path: Path, make_adapter: MakeAdapter, http_server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    make_room = CacheFolder.make_room

    def look(folder: CacheFolder, num_bytes: int, budget_bytes: int) -> int:
        looks.append(num_bytes)
        return make_room(folder, num_bytes, budget_bytes)

    monkeypatch.setattr(CacheFolder, "make_room", look)
    async with open_cache(tmp_path / "cache", 1 << 30) as cache:
        for seed in range(5):
            await cache.fetch(served(make_adapter(seed), http_server))
    assert len(looks) == 1


async def test_what_is_in_use_stays_beyond_the_budget(
    tmp_path: Path, make_adapter: MakeAdapter, http_server: FileServer
) -> None:
    first, second, third = (served(make_adapter(seed), http_server) for seed in range(3))
    async with open_cache(tmp_path / "cache", budget_bytes=1) as cache, open_cache(tmp_path / "cache", 1) as other:
        await other.fetch(first)
        await cache.fetch(second)
        assert cache.digests == {first.digest, second.digest}
        cache.release(second.digest)
        await cache.fetch(third)
        assert cache.digests == {first.digest, third.digest}


async def test_forgets_at_once_or_at_the_last_release(tmp_path: Path, ref: AdapterRef, http_server: FileServer) -> None:
    remote = served(ref, http_server)
    left = asyncio.Event()
    cache = DiskCache(tmp_path / "cache", 1 << 30, on_change=lambda _, gone: left.set() if gone else None)
    for _ in range(2):
        await cache.fetch(remote)
    assert not await cache.forget(ref.digest)
    cache.release(ref.digest)
    assert cache.digests == {ref.digest}
    cache.release(ref.digest)
    await asyncio.wait_for(left.wait(), DEADLINE_S)
    assert cache.digests == frozenset()
    assert not (tmp_path / "cache" / ref.digest).exists()
    assert await cache.forget(ref.digest)
    await cache.close()


async def test_an_adapter_that_another_process_uses_is_not_forgotten(
    tmp_path: Path, ref: AdapterRef, http_server: FileServer
) -> None:
    remote = served(ref, http_server)
    async with open_cache(tmp_path / "cache") as cache, open_cache(tmp_path / "cache") as other:
        await other.fetch(remote)
        assert not await cache.forget(ref.digest)
        other.release(ref.digest)
        assert await cache.forget(ref.digest)


async def test_a_slow_store_delays_nothing_that_is_here(
    tmp_path: Path, make_adapter: MakeAdapter, http_server: FileServer
) -> None:
    here, *slow = (served(make_adapter(seed), http_server) for seed in range(12))
    async with open_cache(tmp_path / "cache") as cache:
        await cache.fetch(here)
        cache.release(here.digest)
        http_server.may_answer.clear()
        fetches = [asyncio.create_task(cache.fetch(ref)) for ref in slow]
        await asyncio.sleep(0)
        assert (await cache.fetch(here)).is_dir()
        assert not any(fetch.done() for fetch in fetches)
        http_server.may_answer.set()
        await asyncio.gather(*fetches)


async def test_gives_up_a_store_that_does_not_answer(tmp_path: Path, ref: AdapterRef, http_server: FileServer) -> None:
    remote = served(ref, http_server)
    http_server.may_answer.clear()
    async with open_cache(tmp_path / "cache", timeout_s=0.3) as cache:
        with pytest.raises(StoreUnavailable, match=r"longer than 0.3 s"):
            await cache.fetch(remote)
    http_server.may_answer.set()
    async with open_cache(tmp_path / "cache") as cache:
        assert (await cache.fetch(remote)).is_dir()


async def test_a_store_that_is_down_can_be_asked_again(
    tmp_path: Path, ref: AdapterRef, http_server: FileServer
) -> None:
    remote = served(ref, http_server)
    async with open_cache(tmp_path / "cache") as cache:
        with pytest.raises(StoreUnavailable, match="is not available"):
            await cache.fetch(msgspec.structs.replace(remote, uri="http://127.0.0.1:1/x"))
        assert (await cache.fetch(remote)).is_dir()


async def test_refuses_what_is_not_the_registered_bytes(
    tmp_path: Path, ref: AdapterRef, http_server: FileServer
) -> None:
    remote = served(ref, http_server)
    http_server.files[f"/store/{ref.digest}/adapter_config.json"] += b" "
    async with open_cache(tmp_path / "cache") as cache:
        with pytest.raises(AdapterRejected, match="bytes differ from those registered"):
            await cache.fetch(remote)
        del http_server.files[f"/store/{ref.digest}/adapter_config.json"]
        with pytest.raises(AdapterRejected, match="no longer in the store"):
            await cache.fetch(remote)
        assert cache.digests == frozenset()
    assert sorted(os.listdir(tmp_path / "cache")) == ["incoming", "packed"]
    assert not os.listdir(tmp_path / "cache" / "incoming")


async def test_runners_that_share_a_folder_never_lose_what_they_use(
    tmp_path: Path, make_adapter: MakeAdapter, http_server: FileServer, model: ModelConfig
) -> None:
    """Three runners fetch, use and forget five adapters in random order, with room for two."""
    refs = [served(make_adapter(seed), http_server) for seed in range(5)]

    async def use(cache: DiskCache, random: Random) -> None:
        for _ in range(15):
            ref = random.choice(refs)
            folder = await cache.fetch(ref)
            await asyncio.sleep(random.random() * 0.01)
            assert read_adapter(folder, model).digest == ref.digest
            cache.release(ref.digest)
            if random.random() < 0.3:
                await cache.forget(ref.digest)

    async with AsyncExitStack() as stack:
        budget_bytes = int(2.5 * refs[0].num_bytes)
        caches = [await stack.enter_async_context(open_cache(tmp_path / "cache", budget_bytes)) for _ in range(3)]
        await asyncio.gather(*(use(cache, Random(number)) for number, cache in enumerate(caches * 2)))
        for digest in {digest for cache in caches for digest in cache.digests}:
            assert await caches[0].forget(digest)
    assert sorted(os.listdir(tmp_path / "cache")) == ["incoming", "packed"]
    assert not os.listdir(tmp_path / "cache" / "incoming")
