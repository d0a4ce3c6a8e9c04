"""A database with deadlines: whatever keeps it from answering in time is a RegistryUnavailable."""

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from punica_serve.errors import ConfigError, RegistryUnavailable
from punica_serve.reasons import reason_of

#: Within it every call ends, one way or the other.
DEADLINE_S = 5.0
#: Of the deadline, for a transaction; the rest is for closing a connection that does not answer.
_TRANSACTION_SHARE = 0.6
#: Less, so that the database says itself what it waits for.
_WAIT_SHARE = 0.5
#: Between tries where SQLite does not wait itself.
_RETRY_S = 0.01

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
_WRITES = "punica_writes"
#: The second is of the memory that SQLite's readers share, a file beside its own.
_SQLITE_DISK_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
_POSTGRES_DISK_FULL = "53100"
#: Other failures of a file may pass, as when its folder is not mounted yet.
_MAY_NOT_WRITE = {errno.EACCES, errno.EPERM, errno.EROFS}

_AWAY = "the registry's database is not available; nothing can be changed until it is back"
_FULL = "the disk of the registry's database is full; nothing can be changed until its operator makes room there"


class Database:
    """Transactions on one database. ``close`` must be called."""

    def __init__(self, url: str, deadline_s: float = DEADLINE_S) -> None:
        """``url`` as in the config. Connects to nothing yet. Raises RegistryUnavailable and ConfigError for a file."""
        parsed = make_url(url)
        self.deadline_s = deadline_s
        #: For operators; without the password, and without parameters, one of which may be a password.
        self.shown_url = parsed.set(query={}).render_as_string(hide_password=True)
        self._engine = _engine(parsed, wait_s=deadline_s * _WAIT_SHARE)
        isolation: dict[str, Any] = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        self._reader = self._engine.execution_options(**isolation)
        self._writer = self._engine.execution_options(**{_WRITES: True})
        #: The database lets one write at a time. Who waits for it here takes no connection from the readers, and
        #: waits in line, which SQLite has not.
        self._turn_to_write = asyncio.Lock()

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    async def close(self) -> None:
        await self._engine.dispose()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that sees one state of the database throughout. Raises RegistryUnavailable."""
        async with self._transaction(self._reader, AsyncExitStack(), None) as connection:
            yield connection

    @asynccontextmanager
    async def writing(self, timeout_s: float | None = None) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed at the end, or leaves nothing behind. Raises RegistryUnavailable.

        ``timeout_s`` is for one that may take longer than all others.
        If that is raised in the very moment of the commit, it may have been made all the same.
        """
        async with self._transaction(self._writer, self._turn_to_write, timeout_s) as connection:
            yield connection

    @asynccontextmanager
    async def _transaction(
        self, engine: AsyncEngine, turn: AbstractAsyncContextManager[object], timeout_s: float | None
    ) -> AsyncIterator[AsyncConnection]:
        timeout_s = self.deadline_s * _TRANSACTION_SHARE if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s), turn, engine.begin() as connection:
                yield connection
        except IntegrityError:
            raise  # the rules of the tables hold whatever callers do: that would be our own mistake
        except TimeoutError as error:
            raise self._unavailable(_AWAY, f"did not answer within {timeout_s:g} s") from error
        except (SQLAlchemyError, OSError) as error:
            cause = getattr(error, "orig", None) or error
            raise self._unavailable(_FULL if _is_full(cause) else _AWAY, _reason(cause)) from error

    def _unavailable(self, message: str, reason: str) -> RegistryUnavailable:
        detail = f"{self.shown_url}: {reason}"
        return RegistryUnavailable(
            f"{message}, and what was read before is served on", detail=detail, retry_after_s=self.deadline_s
        )


def _is_full(cause: BaseException) -> bool:
    """What the driver says of the disk. SQLite's errors have a number, PostgreSQL's a state."""
    number, state = getattr(cause, "sqlite_errorcode", None), getattr(cause, "sqlstate", None)
    return number in _SQLITE_DISK_FULL or state == _POSTGRES_DISK_FULL


def _reason(cause: BaseException) -> str:
    """What the driver says, in one line, without the statement and its parameters."""
    return " ".join(reason_of(cause).split())


def _engine(url: URL, *, wait_s: float) -> AsyncEngine:
    url = url.set(drivername=_DRIVERS[url.drivername])
    pool = {"pool_size": 3, "max_overflow": 2, "pool_timeout": wait_s}
    if url.database and url.drivername == _DRIVERS["sqlite"]:
        _make_file(Path(url.database))
        engine = create_async_engine(url, connect_args={"timeout": wait_s}, **pool)
        event.listen(engine.sync_engine, "connect", partial(_prepare_sqlite, wait_s))
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    wait_ms = str(int(wait_s * 1000))
    settings = {
        "application_name": "punica-serve",
        "lock_timeout": wait_ms,
        # A frontend that is frozen in the middle of a change holds up the others for no longer.
        "idle_in_transaction_session_timeout": wait_ms,
    }
    # A server that was away has cut the connections: each is tried before it is used. A file cuts none.
    return create_async_engine(
        url, connect_args={"timeout": wait_s, "server_settings": settings}, pool_pre_ping=True, **pool
    )


def _make_file(file: Path) -> None:
    """Nobody else may read it: it says who may use what.

    Raises RegistryUnavailable, and ConfigError where waiting would not help.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        # SQLite keeps its log in files of its own beside it.
        if not os.access(file.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        if error.errno in _MAY_NOT_WRITE:
            message = f"the registry's file {file} can't be written: {error.strerror}; see that its folder may be"
            raise ConfigError(f"{message}, or set `data_folder` or `registry.url`", param="data_folder") from error
        reason = f"{file.parent} is no folder" if error.errno == errno.EEXIST else error.strerror
        detail = f"{file}: {reason}"
        raise RegistryUnavailable("the registry's file can't be opened", detail=detail) from error


def _prepare_sqlite(wait_s: float, connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin when we say so, not at the first change
    connection.run_async(partial(_keep_log, wait_s))


async def _keep_log(wait_s: float, connection: aiosqlite.Connection) -> None:
    """Readers see the last commit while somebody writes, and a commit is on the disk when it returns.

    A new file's first log is begun under a lock for which SQLite waits for nobody, such as one who begins it too.
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


def _begin_sqlite(connection: Connection) -> None:
    """Writers take the lock at once: a reader that turned writer could only fail when another was faster."""
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITES) else "BEGIN")
