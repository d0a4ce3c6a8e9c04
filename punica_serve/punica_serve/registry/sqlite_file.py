"""SQLite's file: made for its owner alone, written ahead, and noticed when it is removed or replaced."""

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry

from punica_serve.errors import ConfigError, RegistryUnavailable, StoreUnavailable
from punica_serve.process.private_files import FILE_MODE, make_private_folder
from punica_serve.registry.sqlite_revision import FileId, FileRevision, RevisionReader, file_id
from punica_serve.store.threads import StoreThreads

T = TypeVar("T")

#: The execution option of transactions that write.
WRITES = "punica_writes"
#: Key of a connection's info: the file that it has open, whatever is at the path now.
IDENTITY = "punica_file"
#: Time between attempts where SQLite does not wait by itself.
_RETRY_S = 0.01
#: Other errors of a file may be temporary, as when its folder is not mounted yet.
_MAY_NOT_WRITE = {errno.EACCES, errno.EPERM, errno.EROFS}


class SqliteFile:
    """The file of an engine's connections.

    A connection keeps what it has opened. If that was removed, or another was moved to its place, as a restored backup
    is, SQLite would go on reading and writing a file that nobody can find. So each transaction begins with a look at
    the path, on a thread of its own: a network mount may not answer.
    """

    def __init__(self, path: Path, *, wait_s: float) -> None:
        """Makes the file, if there is none. ``wait_s`` is for locks, and for the disk.

        Raises RegistryUnavailable, and ConfigError where waiting can't help.
        """
        self._path = path
        self._wait_s = wait_s
        #: One, which a disk that does not answer keeps.
        self._threads = StoreThreads(1, "looking at the registry's file")
        #: The file that was at the path when it was looked at last.
        self._seen: FileId | None = None
        self._revisions = RevisionReader(path)
        _make(path)

    def prepare(self, engine: AsyncEngine) -> None:
        """Sets up all connections that the engine will make."""
        event.listen(engine.sync_engine, "connect", self._opened)
        event.listen(engine.sync_engine, "checkout", self._given_out)
        event.listen(engine.sync_engine, "begin", _begin)

    async def check(self) -> None:
        """Looks at the path. Raises OSError if the file is gone, since SQLite would make an empty one, or if the disk
        does not answer.
        """
        await self._look()
        if self._seen is None:
            message = "the file is gone; put it back, or restart the frontends to begin with an empty one"
            raise FileNotFoundError(message)

    async def revision(self) -> FileRevision | None:
        """Returns what differs after each change; None if the file does not tell it, or the disk does not answer."""
        try:
            return await self._on_thread(self._revisions.read)
        except OSError:
            return None

    async def close(self) -> None:
        """Ends the connection that ``revision`` has made. A disk that does not answer keeps it."""
        with suppress(OSError):
            await self._on_thread(self._revisions.close)

    async def _look(self) -> None:
        self._seen = await self._on_thread(lambda: file_id(self._path))

    async def _on_thread(self, look: Callable[[], T]) -> T:
        try:
            return await self._threads.call(look, timeout_s=self._wait_s)
        except StoreUnavailable as error:
            raise OSError(f"its disk does not answer within {self._wait_s:g} s") from error

    def _opened(self, connection: Any, entry: ConnectionPoolEntry) -> None:
        connection.run_async(lambda _connection: self._look())
        entry.info[IDENTITY] = self._seen
        connection.isolation_level = None  # transactions begin explicitly, not at the first change
        connection.run_async(partial(_keep_log, self._wait_s))

    def _given_out(self, _connection: Any, entry: ConnectionPoolEntry, _proxy: object) -> None:
        """Has the pool open the file anew if another is at the path. SQLite leaves a log alone that may be that one's
        when it closes the old file.
        """
        if entry.info[IDENTITY] != self._seen:
            raise DisconnectionError(f"{self._path} was replaced")


def _make(file: Path) -> None:
    """Creates the file, readable by its owner only, since it holds access rights."""
    try:
        make_private_folder(file.parent)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, FILE_MODE))
        # SQLite keeps its log in separate files in the same folder.
        if not os.access(file.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        if error.errno in _MAY_NOT_WRITE:
            message = f"the registry's file {file} can't be written: {error.strerror}; make its folder writable"
            raise ConfigError(f"{message}, or set `data_folder` or `registry.url`", param="data_folder") from error
        reason = f"{file.parent} is not a folder" if error.errno == errno.EEXIST else error.strerror
        detail = f"{file}: {reason}"
        raise RegistryUnavailable("the registry's file can't be opened", detail=detail) from error


async def _keep_log(wait_s: float, connection: aiosqlite.Connection) -> None:
    """Uses a write-ahead log: readers see the last commit during a write, and a commit is on the disk when it returns.

    A new file's first log is started under a lock that SQLite does not wait for, so two processes that start it can
    collide.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            await connection.execute_fetchall("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(_RETRY_S)
    await connection.execute_fetchall("PRAGMA synchronous = FULL")


def _begin(connection: Connection) -> None:
    """Takes a writer's lock at once: a reader that became a writer would fail if another writer was faster."""
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITES) else "BEGIN")
