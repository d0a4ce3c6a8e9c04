"""Turns rows into records, and into the snapshot."""

from typing import Any

from sqlalchemy import Row, Select, Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from punica_serve.protocol import AdapterRef, Slo, TenantQuota
from punica_serve.registry.names import is_adapter_name
from punica_serve.registry.records import AdapterVersion, ApiKey, Grant, ServedBase, Tenant
from punica_serve.registry.snapshot import RegistrySnapshot
from punica_serve.registry.snapshot_changes import Changes
from punica_serve.registry.tables import adapters, counter, grants, keys, tenants

AnyRow = Row[tuple[Any, ...]]


async def next_snapshot(connection: AsyncConnection, before: RegistrySnapshot) -> RegistrySnapshot:
    """The current contents of the database. ``connection`` must see one consistent state.

    If the database is older than the snapshot, it was restored from a backup, and everything is read again.
    """
    revision = (await connection.execute(select(counter.c.revision))).scalar_one()
    if revision == before.revision:
        return before
    if revision < before.revision:
        before = RegistrySnapshot(shared=before.shared)

    async def changed(table: Table, rows: Select[tuple[Any, ...]]) -> list[AnyRow]:
        rows = rows.where(table.c.revision > before.revision)
        # The first read skips rows that have already ended.
        return list((await connection.execute(rows if before.revision else rows.where(table.c.is_live))).all())

    changes = Changes(
        revision,
        tenants=tuple((tenant_of(row), row.is_live) for row in await changed(tenants, select(tenants))),
        adapters=tuple((adapter_of(row), row.is_live) for row in await changed(adapters, with_tenant(adapters))),
        keys=tuple((row.secret_sha256, key_of(row), row.is_live) for row in await changed(keys, with_tenant(keys))),
        grants=tuple((grant_of(row), row.is_live) for row in await changed(grants, select(grants))),
    )
    return before.after(changes)


def with_tenant(table: Table) -> Select[tuple[Any, ...]]:
    """Rows that have a ``tenant_id``, with the tenant's name as ``tenant``, deleted tenants included."""
    return select(table, tenants.c.name.label("tenant")).join(tenants, tenants.c.tenant_id == table.c.tenant_id)


async def versions_of(connection: AsyncConnection, tenant_id: str, name: str) -> tuple[AdapterVersion, ...]:
    """All versions that still have rows, served or not, newest first."""
    if not is_adapter_name(name):
        return ()
    mine = with_tenant(adapters).where(adapters.c.tenant_id == tenant_id, adapters.c.name == name)
    return tuple(adapter_of(row) for row in await connection.execute(mine.order_by(adapters.c.version.desc())))


def tenant_of(row: AnyRow) -> Tenant:
    quota = TenantQuota(row.max_concurrent, row.requests_per_min, row.tokens_per_min)
    return Tenant(
        row.tenant_id,
        row.name,
        quota,
        row.max_adapters,
        row.max_adapter_bytes,
        row.suspended,
        row.created_s,
        Slo(_seconds(row.slo_first_token_s), _seconds(row.slo_time_per_token_s)),
    )


def _seconds(value: float | None) -> float | None:
    """SQLite may return an updated whole number as an integer."""
    return None if value is None else float(value)


def key_of(row: AnyRow) -> ApiKey:
    return ApiKey(row.key_id, row.tenant_id, row.tenant, row.role, row.name, row.created_s, row.expires_s)


def grant_of(row: AnyRow) -> Grant:
    return Grant(row.tenant_id, row.name, row.to_id)


def adapter_of(row: AnyRow) -> AdapterVersion:
    return AdapterVersion(
        tenant_id=row.tenant_id,
        tenant=row.tenant,
        name=row.name,
        version=row.version,
        ref=AdapterRef(row.digest, row.uri, row.num_bytes, row.ranks, tuple(row.scalings), tuple(row.invocation)),
        source_uri=row.source_uri,
        base_model=row.base_model,
        chat_template=row.chat_template,
        pinned=row.pinned,
        created_s=row.created_s,
        registered_for=ServedBase(row.base_name, row.base_shape) if row.base_shape else None,
    )
