"""A database with deadlines: anything that keeps it from answering in time raises RegistryUnavailable."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from punica_serve.config.registry_section import RegistryConfig
from punica_serve.errors import RegistryUnavailable
from punica_serve.errors.reasons import reason_of
from punica_serve.registry.sqlite_file import IDENTITY, WRITES, SqliteFile
from punica_serve.registry.sqlite_revision import FileRevision

#: Deadline of every call, unless another is given.
DEADLINE_S = RegistryConfig().timeout_s
#: A transaction's share of the deadline; the rest is for closing a connection that does not answer.
_TRANSACTION_SHARE = 0.6
#: A lock wait's share; smaller, so that the database itself reports what it waits for.
_WAIT_SHARE = 0.5

_SQLITE = "sqlite:///"
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
#: The second concerns the memory shared by SQLite's readers, which is a separate file.
_SQLITE_DISK_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
#: Primary error numbers, which the lowest eight bits of a number hold.
_SQLITE_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_POSTGRES_DISK_FULL = "53100"

_AWAY = "the registry's database is not available; nothing can be changed until it is back"
_FULL = "the disk of the registry's database is full; nothing can be changed until its operator makes room there"
_DAMAGED = "the registry's database is damaged; nothing can be changed until its operator restores a backup"


class Database:
    """Transactions on one database. The owner must call ``close``."""

    def __init__(self, url: str, deadline_s: float = DEADLINE_S) -> None:
        """``url`` as in the config. Does not connect yet. Raises RegistryUnavailable and ConfigError for a file."""
        parsed = _parsed(url)
        self.deadline_s = deadline_s
        is_file = parsed.drivername == "sqlite"
        #: For operators: without the password, and without parameters, since one may be a password.
        self.shown_url = url if is_file else parsed.set(query={}).render_as_string(hide_password=True)
        wait_s = deadline_s * _WAIT_SHARE
        self._engine = _engine(parsed, wait_s=wait_s)
        #: None on a server.
        self._file: SqliteFile | None = None
        if self.is_sqlite and parsed.database:
            self._file = SqliteFile(Path(parsed.database), wait_s=wait_s)
            self._file.prepare(self._engine)
        isolation: dict[str, Any] = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        self._reader = self._engine.execution_options(**isolation)
        self._writer = self._engine.execution_options(**{WRITES: True})
        #: The database allows one write at a time. Waiting for it here takes no connection from readers, and is first
        #: come, first served, unlike waiting in SQLite.
        self._turn_to_write = asyncio.Lock()

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    @staticmethod
    def file_of(connection: AsyncConnection) -> object:
        """Differs between connections to SQLite's file and to another that was moved to its place. None on a server."""
        return connection.sync_connection.info.get(IDENTITY) if connection.sync_connection else None

    async def revision(self) -> FileRevision | None:
        """Returns what differs after each change; None on a server, and where it can't be told."""
        return None if self._file is None else await self._file.revision()

    async def close(self) -> None:
        try:
            if self._file is not None:
                await self._file.close()
        finally:
            await self._engine.dispose()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that sees one consistent state of the database. Raises RegistryUnavailable."""
        async with self._transaction(self._reader, AsyncExitStack(), None) as connection:
            yield connection

    @asynccontextmanager
    async def writing(self, timeout_s: float | None = None) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed at the end, or leaves nothing behind. Raises RegistryUnavailable.

        ``timeout_s`` is for one that may take longer than usual. If RegistryUnavailable is raised during the commit
        itself, the change may have been made.
        """
        async with self._transaction(self._writer, self._turn_to_write, timeout_s) as connection:
            yield connection

    @asynccontextmanager
    async def _transaction(
        self, engine: AsyncEngine, turn: AbstractAsyncContextManager[object], timeout_s: float | None
    ) -> AsyncIterator[AsyncConnection]:
        timeout_s = self.deadline_s * _TRANSACTION_SHARE if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s), turn, self._begun(engine) as connection:
                yield connection
        except IntegrityError:
            raise  # the tables' constraints hold whatever callers do, so this is a bug of ours
        except TimeoutError as error:
            raise self._unavailable(_AWAY, f"did not answer within {timeout_s:g} s") from error
        except (SQLAlchemyError, OSError) as error:
            cause = getattr(error, "orig", None) or error
            raise self._unavailable(_message_of(cause), _reason(cause)) from error

    @asynccontextmanager
    async def _begun(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        if self._file:
            await self._file.check()
        async with engine.begin() as connection:
            yield connection

    def _unavailable(self, message: str, reason: str) -> RegistryUnavailable:
        detail = f"{self.shown_url}: {reason}"
        return RegistryUnavailable(f"{message}; frontends that have read it go on", detail=detail)


def _parsed(url: str) -> URL:
    """A file's path is taken as it is: `?`, `#` and `%` have no meaning in it."""
    if url.startswith(_SQLITE):
        return URL.create("sqlite", database=url.removeprefix(_SQLITE))
    return make_url(url)


def _message_of(cause: BaseException) -> str:
    """The message about a driver's error: SQLite has numbers, PostgreSQL SQL states."""
    number, state = getattr(cause, "sqlite_errorcode", 0), getattr(cause, "sqlstate", None)
    if number in _SQLITE_DISK_FULL or state == _POSTGRES_DISK_FULL:
        return _FULL
    return _DAMAGED if number & 0xFF in _SQLITE_DAMAGED else _AWAY


def _reason(cause: BaseException) -> str:
    """The driver's message in one line, without the statement and its parameters."""
    return " ".join(reason_of(cause).split())


def _engine(url: URL, *, wait_s: float) -> AsyncEngine:
    url = url.set(drivername=_DRIVERS[url.drivername])
    pool = {"pool_size": 3, "max_overflow": 2, "pool_timeout": wait_s}
    if url.database and url.drivername == _DRIVERS["sqlite"]:
        return create_async_engine(url, connect_args={"timeout": wait_s}, **pool)
    wait_ms = str(int(wait_s * 1000))
    settings = {
        "application_name": "punica-serve",
        "lock_timeout": wait_ms,
        # Limits how long a frontend that freezes in the middle of a change can block the others.
        "idle_in_transaction_session_timeout": wait_ms,
    }
    # A server that was down has cut its connections, so each is tested before use. A file needs no test.
    return create_async_engine(
        url, connect_args={"timeout": wait_s, "server_settings": settings}, pool_pre_ping=True, **pool
    )
