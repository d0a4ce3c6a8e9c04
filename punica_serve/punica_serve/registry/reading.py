"""From rows to records, and to the snapshot."""

from typing import Any

from sqlalchemy import Row, Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from punica_serve.protocol import AdapterRef, TenantQuota
from punica_serve.registry.names import is_adapter_name, is_tenant_name
from punica_serve.registry.records import AdapterVersion, ApiKey, Grant, Tenant
from punica_serve.registry.snapshot import Changes, RegistrySnapshot
from punica_serve.registry.tables import adapters, counter, grants, keys, tenants

AnyRow = Row[tuple[Any, ...]]


async def next_snapshot(connection: AsyncConnection, before: RegistrySnapshot) -> RegistrySnapshot:
    """What the database says now. ``connection`` must see one state throughout.

    All of it is read if the database is older than the snapshot: then it was restored from a copy.
    """
    revision = (await connection.execute(select(counter.c.revision))).scalar_one()
    if revision == before.revision:
        return before
    if revision < before.revision:
        before = RegistrySnapshot(shared=before.shared)

    async def changed(table: Table) -> list[AnyRow]:
        rows = select(table).where(table.c.revision > before.revision)
        # There is nothing to be told of what ended before the first look.
        return list((await connection.execute(rows if before.revision else rows.where(table.c.is_live))).all())

    changes = Changes(
        revision,
        tenants=tuple((tenant_of(row), row.is_live) for row in await changed(tenants)),
        adapters=tuple((adapter_of(row), row.is_live) for row in await changed(adapters)),
        keys=tuple((row.secret_sha256, key_of(row), row.is_live) for row in await changed(keys)),
        grants=tuple((Grant(row.tenant, row.name, row.to), row.is_live) for row in await changed(grants)),
    )
    return before.after(changes)


async def versions_of(connection: AsyncConnection, tenant: str, name: str) -> tuple[AdapterVersion, ...]:
    """Newest first; all that there are rows of, whether they are served or not."""
    if not is_tenant_name(tenant) or not is_adapter_name(name):
        return ()
    mine = select(adapters).where(adapters.c.tenant == tenant, adapters.c.name == name)
    return tuple(adapter_of(row) for row in await connection.execute(mine.order_by(adapters.c.version.desc())))


def tenant_of(row: AnyRow) -> Tenant:
    quota = TenantQuota(row.max_concurrent, row.requests_per_min, row.tokens_per_min)
    return Tenant(row.name, quota, row.max_adapters, row.max_adapter_bytes, row.suspended, row.created_s)


def key_of(row: AnyRow) -> ApiKey:
    return ApiKey(row.key_id, row.tenant, row.role, row.name, row.created_s, row.expires_s)


def adapter_of(row: AnyRow) -> AdapterVersion:
    return AdapterVersion(
        tenant=row.tenant,
        name=row.name,
        version=row.version,
        ref=AdapterRef(digest=row.digest, uri=row.uri, num_bytes=row.num_bytes, ranks=row.ranks),
        source_uri=row.source_uri,
        base_model=row.base_model,
        chat_template=row.chat_template,
        pinned=row.pinned,
        created_s=row.created_s,
    )
