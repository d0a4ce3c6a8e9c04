"""Reads a large file of an object store over several connections at a time, as one stream in order."""

import asyncio
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from itertools import chain, repeat
from threading import BoundedSemaphore, Event
from typing import Protocol

import numpy as np
from aiohttp import ClientPayloadError, ServerDisconnectedError
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.http import HTTPFileSystem

from punica_serve.errors import StoreUnavailable

#: A request takes tens of milliseconds, however small, and each range is held in memory.
RANGE_BYTES = 8 << 20
#: Ranges of one file on their way at a time: one connection to an object store gives some 100 MB/s.
_MAX_PER_FILE = 6
#: Ranges of one file on their way or in memory: those that come side by side come at once, and the next are on their
#: way while they are hashed.
_MAX_HELD = 12
#: Times that a range is asked for, if its connection breaks.
_MAX_TRIES = 3
#: How soon a read ends after it was stopped.
_POLL_S = 0.2


Bytes = bytes | memoryview


class NoRanges(Exception):
    """The server does not answer with the range that it was asked for. Nothing of the file was given out."""


class _Readable(Protocol):
    async def read(self, num_bytes: int, /) -> bytes: ...


class RangeSlots:
    """How many ranges all reads together have on their way or in memory. Thread-safe."""

    def __init__(self, max_ranges: int = 16) -> None:
        self._free = BoundedSemaphore(max_ranges)

    def take(self, stop: Event, *, patiently: bool) -> bool:
        """False if none is free; ``patiently``, only if ``stop`` is set first."""
        while not self._free.acquire(timeout=_POLL_S if patiently else 0):
            if not patiently or stop.is_set():
                return False
        return True

    def give_back(self) -> None:
        self._free.release()


def read_ranges(
    filesystem: AsyncFileSystem, path: str, num_bytes: int, slots: RangeSlots, stop: Event
) -> Generator[Bytes]:
    """The file's first ``num_bytes``, in order. Ends soon after ``stop`` is set, with StoreUnavailable.

    A read holds its slots in the order of the file, and gives out the first before it waits for another: so none waits
    for one that waits for it. Raises NoRanges, and what the file system raises.
    """
    waiting = deque(_ranges(num_bytes))
    coming: deque[tuple[Future[Bytes], int]] = deque()
    is_first = True
    try:
        while waiting or coming:
            while waiting and _has_room(coming) and slots.take(stop, patiently=not coming):
                part = waiting.popleft()
                work = _read_resumed(filesystem, path, part.start, part.stop)
                coming.append((asyncio.run_coroutine_threadsafe(work, filesystem.loop), len(part)))
            if not coming or not _await(coming[0][0], stop):
                raise StoreUnavailable("fetching an adapter from the store was cancelled")
            read, length = coming[0]
            content = read.result()
            if len(content) != length:
                raise NoRanges if is_first else StoreUnavailable("the store sent other bytes than it was asked for")
            is_first = False
            yield content
            coming.popleft()
            slots.give_back()
    finally:
        for read, _ in coming:
            read.cancel()
            slots.give_back()


def _ranges(num_bytes: int) -> Iterator[range]:
    """The first ones grow, each longer than the one before it: read side by side, they come one after the other, and so
    do all that follow them. Ranges of equal length would come all at once, and none could be hashed before.
    """
    lengths = (RANGE_BYTES * number // _MAX_PER_FILE for number in range(1, _MAX_PER_FILE))
    start = 0
    for length in chain(lengths, repeat(RANGE_BYTES)):
        if start >= num_bytes:
            return
        yield range(start, min(start + length, num_bytes))
        start += length


def _has_room(coming: "deque[tuple[Future[Bytes], int]]") -> bool:
    return len(coming) < _MAX_HELD and sum(not read.done() for read, _ in coming) < _MAX_PER_FILE


async def _read_resumed(filesystem: AsyncFileSystem, path: str, start: int, end: int) -> Bytes:
    """See ``_read_range``. One broken connection of many must not cost all that the others have brought."""
    for _ in range(_MAX_TRIES - 1):
        with suppress(ClientPayloadError, ServerDisconnectedError, ConnectionError):
            return await _read_range(filesystem, path, start, end)
    return await _read_range(filesystem, path, start, end)


async def _read_range(filesystem: AsyncFileSystem, path: str, start: int, end: int) -> Bytes:
    """Bytes [start, end), or others if the server does not answer with these: over HTTP and S3 at most one more."""
    if isinstance(filesystem, HTTPFileSystem):
        return await _read_over_http(filesystem, path, start, end)
    if "s3" in filesystem.protocol:
        return await _read_from_s3(filesystem, path, start, end)
    content: bytes = await filesystem._cat_file(path, start=start, end=end)
    return content


async def _read_over_http(filesystem: HTTPFileSystem, path: str, start: int, end: int) -> Bytes:
    options = dict(filesystem.kwargs)
    headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{end - 1}"}
    session = await filesystem.set_session()
    async with session.get(filesystem.encode_url(path), headers=headers, **options) as response:
        filesystem._raise_not_found_for_status(response, path)
        return await _read_at_most(response.content, end - start + 1)


async def _read_from_s3(filesystem: AsyncFileSystem, path: str, start: int, end: int) -> Bytes:
    """s3fs itself reads whatever the server sends."""
    bucket, key, version = filesystem.split_path(path)
    versioned = {"VersionId": version} if version else {}
    wanted = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{end - 1}"}
    response = await filesystem._call_s3("get_object", **wanted, **versioned)
    async with response["Body"] as body:
        return await _read_at_most(body, end - start + 1)


async def _read_at_most(stream: _Readable, num_bytes: int) -> memoryview:
    """Each byte is copied once, into memory that nobody has cleared: memory that grows is copied with each chunk."""
    content, done = np.empty(num_bytes, np.uint8).data, 0
    while done < num_bytes and (chunk := await stream.read(num_bytes - done)):
        content[done : done + len(chunk)] = chunk
        done += len(chunk)
    return content[:done]


def _await(read: "Future[Bytes]", stop: Event) -> bool:
    """Whether the read ended before ``stop`` was set. The file system bounds how long a server may be silent."""
    while not stop.is_set():
        if wait([read], timeout=_POLL_S).done:
            return True
    return False
