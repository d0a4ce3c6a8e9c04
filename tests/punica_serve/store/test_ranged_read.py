"""Files of a store that come over several connections, from a server that answers when the test lets it."""

import asyncio
import re
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
from aiohttp import ClientPayloadError
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem

from file_server import FileServer
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import StoreUnavailable
from punica_serve.protocol import AdapterRef
from punica_serve.store import ranged_read
from punica_serve.store.disk_cache import DiskCache
from punica_serve.store.filesystems import FileSystems
from punica_serve.store.ranged_read import NoRanges, RangeSlots, read_ranges
from s3_server import S3Server
from waits import DEADLINE_S, until

CONTENT = bytes(range(256)) * 10
#: The first ranges of a file, and the longest, which all others have.
LENGTHS = (10, 20, 30, 40, 50, 60)
Read = Callable[..., Generator[ranged_read.Bytes]]


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged_read, "RANGE_BYTES", 60)


def _reading(filesystem: AbstractFileSystem, path: str) -> Read:
    assert isinstance(filesystem, AsyncFileSystem)

    def start(
        slots: RangeSlots, stop: Event | None = None, num_bytes: int = len(CONTENT)
    ) -> Generator[ranged_read.Bytes]:
        return read_ranges(filesystem, path, num_bytes, slots, stop or Event())

    return start


@pytest.fixture
def read(http_server: FileServer) -> Read:
    http_server.files["/file"] = CONTENT
    return _reading(*FileSystems({}).open(f"{http_server.url}/file"))


@pytest.fixture
def read_s3(http_server: FileServer) -> Read:
    """The same from what answers as an object store does."""
    pytest.importorskip("s3fs", reason="needs the extra s3")
    http_server.files["/bucket/file"] = CONTENT
    return _reading(*FileSystems(S3Server.options_of(http_server.port)).open("s3://bucket/file"))


def num_free(slots: RangeSlots) -> int:
    count = 0
    while slots.take(Event(), patiently=False):
        count += 1
    for _ in range(count):
        slots.give_back()
    return count


@pytest.mark.parametrize("num_slots", [1, 3, 100])
@pytest.mark.parametrize("num_bytes", [1, 100, 250, len(CONTENT)])
def test_ranges_come_in_order(read: Read, num_slots: int, num_bytes: int) -> None:
    slots = RangeSlots(num_slots)
    assert b"".join(read(slots, num_bytes=num_bytes)) == CONTENT[:num_bytes]
    assert num_free(slots) == num_slots


async def test_several_are_on_their_way_and_no_more_than_there_are_slots(read: Read, http_server: FileServer) -> None:
    http_server.may_answer.clear()
    slots = RangeSlots(4)
    reading = asyncio.create_task(asyncio.to_thread(lambda: b"".join(read(slots))))
    await until(lambda: http_server.num_gets["/file"] == 4)
    assert num_free(slots) == 0 and not reading.done()
    http_server.may_answer.set()
    assert await asyncio.wait_for(reading, DEADLINE_S) == CONTENT
    assert num_free(slots) == 4


@pytest.mark.parametrize(
    ("num_done", "num_on_way", "expected"), [(0, 5, True), (6, 5, True), (0, 6, False), (12, 0, False)]
)
def test_ranges_that_came_make_room_for_others_but_not_without_end(
    num_done: int, num_on_way: int, expected: bool
) -> None:
    coming: deque[tuple[Future[ranged_read.Bytes], int]] = deque((Future(), 1) for _ in range(num_done + num_on_way))
    for number in range(num_done):
        coming[number][0].set_result(b"?")
    assert ranged_read._has_room(coming) == expected


def test_reads_that_share_slots_all_end(read: Read) -> None:
    slots = RangeSlots(3)
    with ThreadPoolExecutor(8) as threads:
        reads = [threads.submit(lambda: b"".join(read(slots))) for _ in range(8)]
        assert all(each.result(DEADLINE_S) == CONTENT for each in reads)
    assert num_free(slots) == 3


async def test_it_ends_when_it_is_stopped(read: Read, http_server: FileServer) -> None:
    http_server.may_answer.clear()
    slots, stop = RangeSlots(1), Event()
    # One waits for the other's slot.
    reads = [asyncio.create_task(asyncio.to_thread(lambda: list(read(slots, stop)))) for _ in range(2)]
    await until(lambda: http_server.num_gets["/file"] == 1)
    stop.set()
    for each in reads:
        with pytest.raises(StoreUnavailable, match="cancelled"):
            await asyncio.wait_for(each, DEADLINE_S)
    assert num_free(slots) == 1


def test_an_error_gives_its_slots_back(read: Read, http_server: FileServer) -> None:
    slots = RangeSlots(4)
    reading = read(slots)
    assert next(reading) == CONTENT[: LENGTHS[0]]
    http_server.statuses["/file"] = 503
    with pytest.raises(Exception, match="503"):
        list(reading)
    assert num_free(slots) == 4


@pytest.mark.parametrize("store", ["read", "read_s3"])
@pytest.mark.parametrize(("num_cuts", "is_read"), [(2, True), (1 << 30, False)])
def test_a_range_whose_connection_breaks_is_asked_for_again(
    request: pytest.FixtureRequest, http_server: FileServer, store: str, num_cuts: int, is_read: bool
) -> None:
    """But not for ever."""
    read = request.getfixturevalue(store)
    path = "/file" if store == "read" else "/bucket/file"
    http_server.cut_from[path], http_server.num_cuts = len(CONTENT) // 2, num_cuts
    slots, came = RangeSlots(), bytearray()
    if is_read:
        came += b"".join(read(slots))
        assert came == CONTENT and http_server.num_cuts == 0
    else:
        with pytest.raises(ClientPayloadError):
            for part in read(slots):
                came += part
        assert CONTENT.startswith(came) and num_free(slots) == 16


def test_a_server_without_ranges_is_found_out_at_once(read: Read, http_server: FileServer) -> None:
    http_server.ignores_ranges = True
    with pytest.raises(NoRanges):
        next(read(RangeSlots()))


def test_ranges_come_from_s3(read_s3: Read) -> None:
    assert list(read_s3(RangeSlots(), num_bytes=35)) == [CONTENT[:10], CONTENT[10:30], CONTENT[30:35]]


def test_ranges_grow_so_that_they_come_one_after_the_other() -> None:
    ranges = list(ranged_read._ranges(len(CONTENT)))
    lengths = [len(part) for part in ranges]
    assert tuple(lengths[: len(LENGTHS)]) == LENGTHS
    assert set(lengths[len(LENGTHS) : -1]) == {LENGTHS[-1]} and 0 < lengths[-1] <= LENGTHS[-1]
    assert [number for part in ranges for number in part] == list(range(len(CONTENT)))


@pytest.mark.parametrize("reader", ["read", "read_s3"])
def test_no_more_is_read_than_was_asked_for_whatever_the_server_sends(
    request: pytest.FixtureRequest, reader: str, http_server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may send without end: what is read of a range is one byte more, by which it is found out."""
    http_server.ignores_ranges = True
    sizes: list[int] = []
    read_at_most = ranged_read._read_at_most

    async def spy(stream: Any, num_bytes: int) -> memoryview:
        content = await read_at_most(stream, num_bytes)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(ranged_read, "_read_at_most", spy)
    with pytest.raises(NoRanges):
        next(request.getfixturevalue(reader)(RangeSlots()))
    assert set(sizes) <= {length + 1 for length in LENGTHS} and sizes


@pytest.mark.parametrize("ignores_ranges", [False, True])
async def test_an_adapter_comes_in_ranges_or_as_one_stream(
    tmp_path: Path, ref: AdapterRef, http_server: FileServer, model: ModelConfig, ignores_ranges: bool
) -> None:
    http_server.ignores_ranges = ignores_ranges
    remote = msgspec.structs.replace(ref, uri=http_server.add_adapter(ref, "/store/adapter"))
    cache = DiskCache(tmp_path / "cache", 1 << 30)
    folder = await cache.fetch(remote)
    assert read_adapter(folder, model).digest == ref.digest
    asked = http_server.headers_of["/store/adapter/adapter_model.safetensors"].get("range", "")
    assert bool(re.fullmatch(r"bytes=\d+-\d+", asked)) != ignores_ranges
    await cache.close()


async def test_a_file_that_trickles_keeps_no_thread(tmp_path: Path, ref: AdapterRef, http_server: FileServer) -> None:
    """Also a small one: sixteen of these threads are all that a host has for downloads."""
    remote = msgspec.structs.replace(ref, uri=http_server.add_adapter(ref, "/store/adapter"))
    http_server.pauses_s["/store/adapter/adapter_config.json"] = 1.0
    cache = DiskCache(tmp_path / "cache", 1 << 30, timeout_s=0.3)
    with pytest.raises(StoreUnavailable):
        await cache.fetch(remote)
    name = "fetching the adapter from the store"
    await until(lambda: all(thread.name != name for thread in threading.enumerate()))
    await cache.close()
