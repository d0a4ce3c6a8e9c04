"""A host's adapter cache on an event loop of its own, as a supervisor has it, for tests that play its workers."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from msgspec.structs import replace

from file_server import FileServer
from punica_serve.protocol import AdapterRef
from punica_serve.store import ranged_read
from punica_serve.store.disk_cache import DiskCache


class HostDownloads:
    """Fetches from any thread."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.folder = folder
        self._loop = loop
        self.cache = DiskCache(folder, 1 << 30)

    def fetch(self, ref: AdapterRef) -> "Future[Path]":
        return asyncio.run_coroutine_threadsafe(self._fetch(ref), self._loop)

    def forget(self, digest: str) -> "Future[bool]":
        return asyncio.run_coroutine_threadsafe(self.cache.forget(digest), self._loop)

    async def _fetch(self, ref: AdapterRef) -> Path:
        folder = await self.cache.fetch(ref)
        self.cache.release(ref.digest)
        return folder


@contextmanager
def host_downloads(folder: Path) -> Iterator[HostDownloads]:
    """Downloads to ``folder``."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        made = HostDownloads(folder, loop)
        yield made
        asyncio.run_coroutine_threadsafe(made.cache.close(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def serve_in_halves(ref: AdapterRef, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> AdapterRef:
    """The adapter in a store that sends the second half of its weights when ``may_go_on`` is set."""
    remote = replace(ref, uri=server.add_adapter(ref, f"/store/{ref.digest}"))
    monkeypatch.setattr(ranged_read, "RANGE_BYTES", ref.num_bytes // 8)
    server.held_from[weights_path(ref)] = ref.num_bytes // 2
    return remote


def weights_path(ref: AdapterRef) -> str:
    """Where the server has them."""
    return f"/store/{ref.digest}/adapter_model.safetensors"


def spy_on(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments of each call of a function or method, which works as ever."""
    calls: list[tuple[Any, ...]] = []
    spied = getattr(owner, name)

    def spy(*arguments: Any) -> Any:
        result = spied(*arguments)
        calls.append(arguments)
        return result

    monkeypatch.setattr(owner, name, spy)
    return calls
