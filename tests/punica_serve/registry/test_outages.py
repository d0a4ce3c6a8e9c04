"""A database that is gone, silent or locked: changes fail in time, and what was read is served on."""

import asyncio
import logging
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from postgres_server import PostgresServer
from punica_serve.errors import AdapterNotFound, RegistryUnavailable
from punica_serve.registry import database
from punica_serve.registry.database import DEADLINE_S
from punica_serve.registry.records import Usage
from punica_serve.registry.registry import Registry
from registries import OpenRegistry, ref_of
from small_disk import fill, small_disk
from waits import until

pytestmark = pytest.mark.anyio

#: For what takes milliseconds, on however slow a machine.
PATIENCE_S = 60.0


@asynccontextmanager
async def following(registry: Registry) -> AsyncIterator[None]:
    task = asyncio.create_task(registry.follow())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def fails_in_time(registry: Registry) -> None:
    """Changes, and all that asks the database, end within the deadline."""
    row = Usage(0, "default", "default", None, None, None, 1, 1, 0, 1, 0.0)
    for call in (
        registry.register("default", "y", ref_of("b"), by="me"),
        registry.delete("default", "x", by="me"),
        registry.make_key("default", "user", "laptop", by="me"),
        registry.add_usage([row], source="f", number=1),
        registry.claim_files("b", "w"),
    ):
        began_s = time.monotonic()
        with pytest.raises(RegistryUnavailable, match="nothing can be changed until it is back") as error:
            await call
        assert error.value.retry_after_s is None, "it may be back at once, so the answer names the shortest time"
        assert time.monotonic() - began_s < DEADLINE_S + PATIENCE_S


async def serves_on(registry: Registry, secret: str) -> None:
    """Cached rows are served; others are refused without waiting."""
    assert (await registry.adapter("default", "x")).ref == ref_of("a")
    assert await registry.key_of(secret) is not None
    assert registry.is_away
    with pytest.raises(AdapterNotFound):
        await registry.adapter("default", "z")
    assert await registry.key_of("ps-unknown") is None


async def test_followers_see_changes_by_themselves(open_registry: OpenRegistry) -> None:
    one, other = await open_registry(), await open_registry()
    async with following(other):
        for digest in "abc":
            version, _ = await one.register("default", "x", ref_of(digest), by="me")
            await until(lambda version=version: other.snapshot.digests() == {version.ref.digest})  # type: ignore[misc]


async def test_refreshes_that_come_together_share_one_reading(registry: Registry) -> None:
    before = registry._follower._num_readings
    snapshots = await asyncio.gather(*(registry.refresh() for _ in range(50)))
    assert registry._follower._num_readings - before <= 2
    assert set(map(id, snapshots)) == {id(registry.snapshot)}


async def test_a_refresh_that_is_cancelled_keeps_nobody_waiting(registry: Registry) -> None:
    first, second = asyncio.create_task(registry.refresh()), asyncio.create_task(registry.refresh())
    await asyncio.sleep(0)
    first.cancel()
    async with asyncio.timeout(PATIENCE_S):
        assert await second == registry.snapshot


async def test_a_server_that_goes_and_comes_back(
    stoppable_postgres: PostgresServer, postgres_own_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = await Registry.open(postgres_own_url, deadline_s=PATIENCE_S)
    version, _ = await registry.register("default", "x", ref_of("a"), by="me")
    _, secret = await registry.make_key("default", "user", "laptop", by="me")
    async with following(registry):
        with caplog.at_level(logging.INFO, "punica_serve.registry"):
            stoppable_postgres.stop()
            await until(lambda: registry.is_away)
            await serves_on(registry, secret)
            await fails_in_time(registry)
            stoppable_postgres.start()
            await until(lambda: not registry.is_away)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, "an outage is told of once"
    assert "is not available" in warnings[0]
    assert caplog.records[-1].getMessage() == "the registry is available again"
    assert (await registry.register("default", "x", ref_of("b"), by="me"))[0].version == version.version + 1
    await registry.close()


async def test_a_server_that_goes_between_two_changes_is_found_again_at_once(
    stoppable_postgres: PostgresServer, postgres_own_url: str
) -> None:
    registry = await Registry.open(postgres_own_url, deadline_s=PATIENCE_S)
    await registry.register("default", "x", ref_of("a"), by="me")
    stoppable_postgres.stop()
    stoppable_postgres.start()
    await registry.register("default", "x", ref_of("b"), by="me")
    await registry.close()


@pytest.mark.slow
async def test_a_server_that_says_nothing(
    stoppable_postgres: PostgresServer, postgres_own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = await Registry.open(postgres_own_url, deadline_s=PATIENCE_S)
    await registry.register("default", "x", ref_of("a"), by="me")
    _, secret = await registry.make_key("default", "user", "laptop", by="me")
    with stoppable_postgres.frozen(), monkeypatch.context() as shorter:
        shorter.setattr(registry._database, "deadline_s", DEADLINE_S)
        await fails_in_time(registry)
        with pytest.raises(RegistryUnavailable):
            await registry.refresh()
        await serves_on(registry, secret)
    await registry.register("default", "y", ref_of("b"), by="me")
    await registry.close()


async def test_a_file_that_somebody_else_has_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_WAIT_SHARE", 0.05)
    registry = await Registry.open(f"sqlite:///{tmp_path}/registry.db", deadline_s=PATIENCE_S)
    await registry.register("default", "x", ref_of("a"), by="me")
    stranger = sqlite3.connect(tmp_path / "registry.db", isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    with pytest.raises(RegistryUnavailable, match="is not available"):
        await registry.register("default", "y", ref_of("b"), by="me")
    assert set((await registry.refresh()).digests()) == {"a"}, "readers are held up by nobody"
    stranger.execute("ROLLBACK")
    stranger.close()
    await registry.register("default", "y", ref_of("b"), by="me")
    await registry.close()


async def test_a_full_disk_is_told_of_and_its_place_to_operators_alone(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    statements = {
        "sqlite": ("PRAGMA max_page_count = 1", "CREATE TABLE filler (x)"),
        "postgresql": ("DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$",),
    }
    own = registry._database
    with pytest.raises(RegistryUnavailable) as error:
        async with own.writing() as connection:
            for statement in statements["sqlite" if own.is_sqlite else "postgresql"]:
                await connection.exec_driver_sql(statement)
    assert "disk of the registry's database is full" in error.value.message
    assert own.shown_url not in error.value.message and own.shown_url in str(error.value)
    assert error.value.retry_after_s is None


async def test_a_file_on_a_disk_that_is_full_before_it_is_opened(migrated_sqlite: Path, tmp_path: Path) -> None:
    """SQLite makes a file for its readers then, and calls what fails there an error of the disk."""
    with small_disk(tmp_path / "disk", num_kib=600) as disk:
        shutil.copy(migrated_sqlite, disk)
        fill(disk)
        with pytest.raises(RegistryUnavailable, match="disk of the registry's database is full"):
            await Registry.open(f"sqlite:///{disk}/registry.db")


def _overwrite(file: Path) -> None:
    with file.open("r+b") as pages:
        pages.write(bytes(file.stat().st_size))


async def test_a_damaged_file_is_told_of(migrated_sqlite: Path, tmp_path: Path) -> None:
    file = tmp_path / "registry.db"
    shutil.copy(migrated_sqlite, file)
    registry = await Registry.open(f"sqlite:///{file}", deadline_s=PATIENCE_S)
    _overwrite(file)
    with pytest.raises(RegistryUnavailable, match="is damaged; nothing can be changed until its operator restores a"):
        await registry.register("default", "x", ref_of("a"), by="me")
    await registry.close()


async def test_a_database_whose_tables_are_gone(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    await registry.register("default", "x", ref_of("a"), by="me")
    async with registry._database.writing() as connection:
        await connection.exec_driver_sql("ALTER TABLE counter RENAME TO lost")
    with pytest.raises(RegistryUnavailable, match="counter"):
        await registry.register("default", "y", ref_of("b"), by="me")
    with pytest.raises(RegistryUnavailable):
        await registry.refresh()
    assert registry.snapshot.digests() == {"a"}
    async with registry._database.writing() as connection:
        await connection.exec_driver_sql("ALTER TABLE lost RENAME TO counter")
    await registry.register("default", "y", ref_of("b"), by="me")


async def test_a_database_that_was_restored_from_a_copy_is_read_anew(open_registry: OpenRegistry) -> None:
    registry = await open_registry()
    for name in ("x", "y"):
        await registry.register("default", name, ref_of(name), by="me")
    async with registry._database.writing() as connection:
        await connection.exec_driver_sql("DELETE FROM adapters WHERE name = 'y'")
        await connection.exec_driver_sql("UPDATE counter SET revision = revision - 1")
    assert (await registry.refresh()).digests() == {"x"}


async def test_who_is_cancelled_in_the_middle_of_a_change_leaves_nothing_behind(open_registry: OpenRegistry) -> None:
    registry, other = await open_registry(), await open_registry()
    for num_turns in range(0, 40, 3):
        task = asyncio.create_task(registry.register("default", "x", ref_of(f"d{num_turns}"), by="me"))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    version, _ = await other.register("default", "x", ref_of("last"), by="me")
    log = [entry for entry in await other.audit_log(100) if entry.action == "adapter.register"]
    assert len(log) == version.version
    assert (await registry.refresh()) == other.snapshot
