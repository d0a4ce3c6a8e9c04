"""A network of our own: a TCP proxy on a link between two processes, which can be cut, delayed or swallowed."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 16
#: Between reading and writing: bytes under way on a slow link. Beyond, the sender feels it, as on a real one.
MAX_BYTES_UNDER_WAY = 4 << 20


@dataclass(eq=False)
class _Pipe:
    """One direction of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    #: When each chunk may arrive, and its bytes; no bytes are the end.
    under_way: deque[tuple[float, bytes]] = field(default_factory=deque)
    num_bytes: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def take(self, link: "Link") -> None:
        chunk = b"-"
        while chunk:
            try:
                chunk = await self.reader.read(CHUNK_BYTES)
            except ConnectionError:
                chunk = b""
            async with self.changed:
                await self.changed.wait_for(lambda: self.num_bytes < MAX_BYTES_UNDER_WAY)
                self.under_way.append((time.monotonic() + link.delay_s, chunk))
                self.num_bytes += len(chunk)
                self.changed.notify_all()

    async def give(self, link: "Link") -> None:
        while True:
            async with self.changed:
                await self.changed.wait_for(lambda: bool(self.under_way))
            due_s, chunk = self.under_way[0]
            await asyncio.sleep(due_s - time.monotonic())
            await link.passing.wait()
            self.under_way.popleft()
            if not chunk:
                return
            self.writer.write(chunk)
            await self.writer.drain()
            async with self.changed:
                self.num_bytes -= len(chunk)
                self.changed.notify_all()


class Link:
    """A proxy that one peer dials instead of the scheduler.

    Cut: connections break, and new ones are refused. Dropping: they stay, and nothing arrives, not even their end,
    until the link is restored. Delayed: everything arrives so much later, in order.
    """

    def __init__(self, name: str, target_port: int) -> None:
        self.name = name
        self.port = 0
        self.delay_s = 0.0
        #: Set while bytes may arrive.
        self.passing = asyncio.Event()
        self.passing.set()
        self._is_cut = False
        self._target_port = target_port
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["Link"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await self._break_connections()

    async def cut(self) -> None:
        self._is_cut = True
        await self._break_connections()

    def drop(self) -> None:
        self.passing.clear()

    def delay(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def restore(self) -> None:
        self._is_cut = False
        self.delay_s = 0.0
        self.passing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self._is_cut:
                await self._serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the peer finds it broken, as it should
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries both directions; the end of one is the end of both."""
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        pipes = (_Pipe(reader, target_writer), _Pipe(target_reader, writer))
        tasks = [asyncio.create_task(work) for pipe in pipes for work in (pipe.take(self), pipe.give(self))]
        gives = (tasks[1], tasks[3])
        try:
            await asyncio.wait(gives, return_when=asyncio.FIRST_COMPLETED)
        finally:
            target_writer.transport.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _break_connections(self) -> None:
        for task in tuple(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(tuple(self._connections))
