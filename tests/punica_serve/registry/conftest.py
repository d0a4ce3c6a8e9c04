"""Registries on SQLite and on PostgreSQL: every test of the registry runs on both."""

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, insert, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from postgres_server import PostgresServer, postgres_server
from punica_serve.registry.database import Database
from punica_serve.registry.migrate import migrate
from punica_serve.registry.registry import Registry
from punica_serve.registry.tables import metadata
from registries import Clock, OpenRegistry

#: Rows that the migrations put into the tables.
FirstRows = dict[Table, list[dict[str, Any]]]

#: The URL of a database on a server whose user may create databases.
POSTGRES_URL_VARIABLE = "PUNICA_TEST_POSTGRES_URL"
LEFT_OUT = (
    f"left out: the registry on PostgreSQL; install its server (initdb, postgres), or set {POSTGRES_URL_VARIABLE} to"
    " the URL of a database whose user may create others"
)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer | None]:
    """The tests' own server, where one can be had."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def stoppable_postgres(postgres: PostgresServer | None) -> Iterator[PostgresServer]:
    """The server, for a test that stops it; it runs again afterwards."""
    if postgres is None:
        pytest.skip(LEFT_OUT)
    yield postgres
    postgres.stop()
    postgres.start()


@pytest.fixture
def postgres_own_url(stoppable_postgres: PostgresServer) -> str:
    """An empty database on that server."""
    return stoppable_postgres.make_database(f"punica_test_{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def make_postgres_database(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Makes an empty database."""
    if given := os.environ.get(POSTGRES_URL_VARIABLE):
        made: list[str] = []

        def make() -> str:
            made.append(f"punica_test_{uuid.uuid4().hex}")
            asyncio.run(_execute(given, f"CREATE DATABASE {made[-1]}"))
            return make_url(given).set(database=made[-1]).render_as_string(hide_password=False)

        yield make
        asyncio.run(_execute(given, *(f"DROP DATABASE {name}" for name in made)))
        return
    server: PostgresServer | None = request.getfixturevalue("postgres")
    if server is None:
        pytest.skip(LEFT_OUT)
    yield lambda: server.make_database(f"punica_test_{uuid.uuid4().hex}")


async def _execute(url: str, *statements: str) -> None:
    parsed = make_url(url).set(drivername="postgresql+asyncpg")
    engine = create_async_engine(parsed, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        for statement in statements:
            await connection.execute(text(statement))
    await engine.dispose()


async def _migrated(url: str) -> FirstRows:
    database = Database(url, deadline_s=60.0)
    await migrate(database)
    async with database.reading() as connection:
        rows = {table: (await connection.execute(select(table))).mappings().all() for table in metadata.sorted_tables}
    await database.close()
    return {table: [dict(row) for row in found] for table, found in rows.items() if found}


async def _as_at_first(url: str, first: FirstRows) -> None:
    database = Database(url, deadline_s=60.0)
    async with database.writing() as connection:
        tables = ", ".join(f'"{table.name}"' for table in metadata.sorted_tables)
        await connection.execute(text(f"TRUNCATE {tables} RESTART IDENTITY"))
        for table, rows in first.items():
            await connection.execute(insert(table), rows)
    await database.close()


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sqlite") / "registry.db"
    asyncio.run(_migrated(f"sqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def migrated_postgres(make_postgres_database: Callable[[], str]) -> tuple[str, FirstRows]:
    """One for all tests: to bring it back to its first rows takes a tenth of the time that another one would."""
    url = make_postgres_database()
    return url, asyncio.run(_migrated(url))


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/data/registry.db"
    make: Callable[[], str] = request.getfixturevalue("make_postgres_database")
    return make()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with the first tables, of either kind."""
    if request.param == "sqlite":
        (tmp_path / "data").mkdir()
        shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "data")
        return f"sqlite:///{tmp_path}/data/registry.db"
    made: str = request.getfixturevalue("postgres_url")
    return made


@pytest.fixture
def postgres_url(migrated_postgres: tuple[str, FirstRows]) -> str:
    """A database with the first tables."""
    url, first = migrated_postgres
    asyncio.run(_as_at_first(url, first))
    return url


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def open_registry(url: str, clock: Clock) -> AsyncIterator[OpenRegistry]:
    """Opens one more registry on the database; all are closed at the end."""
    async with AsyncExitStack() as stack:

        async def opened(**options: object) -> Registry:
            registry = await Registry.open(url, **{"clock": clock, "deadline_s": 60.0, **options})  # type: ignore[arg-type]
            stack.push_async_callback(registry.close)
            return registry

        yield opened


@pytest.fixture
async def registry(open_registry: OpenRegistry) -> Registry:
    return await open_registry()
