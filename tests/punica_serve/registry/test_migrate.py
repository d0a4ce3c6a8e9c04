"""Opening: new databases, old ones, and those of a newer version."""

import asyncio
import errno
import os
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from file_modes import others_may
from punica_serve.errors import ConfigError, RegistryUnavailable
from punica_serve.protocol import NO_SLO, PromiseCounts
from punica_serve.registry.database import Database
from punica_serve.registry.registry import Registry
from punica_serve.registry.tables import metadata
from registries import NO_QUOTA, ref_of

pytestmark = pytest.mark.anyio


async def test_the_migrations_make_the_tables_that_the_code_knows(registry: Registry) -> None:
    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), metadata))

    async with registry._database.reading() as connection:
        assert await connection.run_sync(differences) == []


async def test_those_who_open_an_empty_database_at_once_make_it_once(empty_url: str) -> None:
    registries = await asyncio.gather(*(Registry.open(empty_url, deadline_s=60.0) for _ in range(4)))
    for registry in registries:
        assert [tenant.name for tenant in registry.snapshot.tenants()] == ["default", "shared"]
        await registry.close()


async def test_a_new_file_that_another_writes_to_is_waited_for(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "registry.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    opening = asyncio.create_task(Registry.open(f"sqlite:///{tmp_path}/registry.db", deadline_s=60.0))
    await asyncio.wait({opening}, timeout=0.3)
    other.execute("COMMIT")
    other.close()
    await (await opening).close()


async def test_what_was_registered_is_there_when_all_is_started_again(url: str) -> None:
    first = await Registry.open(url, deadline_s=60.0)
    version, _ = await first.register("default", "x", ref_of("a"), by="me")
    key, secret = await first.make_key("default", "user", "laptop", by="me")
    await first.close()
    second = await Registry.open(url, deadline_s=60.0)
    assert second.snapshot.adapter("default", "x") == version
    assert await second.key_of(secret) == key
    await second.close()


async def test_a_database_of_an_older_version_is_brought_along(empty_url: str) -> None:
    registry = await Registry.open(empty_url, deadline_s=60.0)
    owner = (await registry.put_tenant("acme", NO_QUOTA, max_adapters=5, by="me")).tenant_id
    await registry.register(owner, "x", ref_of("a"), by="me")
    async with registry._database.writing() as connection:  # as the first version left it
        await connection.exec_driver_sql("ALTER TABLE tenants DROP COLUMN suspended")
        for name in ("scalings", "invocation", "base_name", "base_shape"):
            await connection.exec_driver_sql(f"ALTER TABLE adapters DROP COLUMN {name}")
        for name in ("slo_first_token_s", "slo_time_per_token_s"):
            await connection.exec_driver_sql(f"ALTER TABLE tenants DROP COLUMN {name}")
        for name in ("num_cached_tokens", *PromiseCounts.__struct_fields__):
            await connection.exec_driver_sql(f"ALTER TABLE usage DROP COLUMN {name}")
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'r0001'")
    await registry.close()
    registry = await Registry.open(empty_url, deadline_s=60.0)
    tenant = registry.snapshot.tenant("acme")
    assert (tenant.max_adapters, tenant.suspended, tenant.slo) == (5, False, NO_SLO)
    assert registry.snapshot.adapter(owner, "x").ref.scalings == (), "a worker refuses it until it is registered again"
    assert (await registry.register(owner, "x", ref_of("a"), by="me"))[0].ref == ref_of("a")
    await registry.close()


async def test_a_database_of_a_newer_version_is_left_alone(empty_url: str) -> None:
    registry = await Registry.open(empty_url, deadline_s=60.0)
    async with registry._database.writing() as connection:
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'r9999'")
    await registry.close()
    with pytest.raises(ConfigError, match="belongs to a newer version of punica-serve"):
        await Registry.open(empty_url, deadline_s=60.0)


@pytest.mark.usefixtures("any_umask")
async def test_a_file_is_nobody_elses_to_read(tmp_path: Path) -> None:
    registry = await Registry.open(f"sqlite:///{tmp_path}/new/er/registry.db", deadline_s=60.0)
    await registry.register("default", "x", ref_of("a"), by="me")
    assert len(list((tmp_path / "new/er").iterdir())) == 3, "the database, and SQLite's two beside it"
    assert not others_may(tmp_path / "new")
    await registry.close()


async def test_a_place_where_no_file_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RegistryUnavailable, match=r"can't be opened \(.*/file/registry\.db: .*/file is not a folder\)"):
        await Registry.open(f"sqlite:///{tmp_path}/file/registry.db")


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EPERM, errno.EROFS])
async def test_a_file_that_may_not_be_written_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr("punica_serve.registry.sqlite_file.os.open", refuse)
    with pytest.raises(ConfigError, match=r"registry\.db can't be written: .* set `data_folder`"):
        await Registry.open(f"sqlite:///{tmp_path}/registry.db")


async def test_nor_is_a_folder_in_which_no_log_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("punica_serve.registry.sqlite_file.os.access", lambda *_: False)
    with pytest.raises(ConfigError, match=r"registry\.db can't be written: Permission denied"):
        await Registry.open(f"sqlite:///{tmp_path}/registry.db")


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"something else" * 1000)
    with pytest.raises(RegistryUnavailable, match=r"restores a backup.*registry\.db: file is not a database"):
        await Registry.open(f"sqlite:///{tmp_path}/registry.db")


async def test_operators_are_told_of_no_password_and_clients_of_no_address() -> None:
    database = Database("postgresql://punica:hunter2@127.0.0.1:1/registry?password=hunter2")
    with pytest.raises(RegistryUnavailable) as error:
        async with database.reading():
            pytest.fail("nobody listens there")
    assert "hunter2" not in str(error.value)
    assert "punica:***@127.0.0.1:1/registry: " in str(error.value)
    assert "127.0.0.1" not in error.value.message and "punica" not in error.value.message
    await database.close()
