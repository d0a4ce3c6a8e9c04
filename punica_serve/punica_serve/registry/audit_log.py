"""The audit log: who changed what. ``Change.log`` writes it."""

from typing import Any

from sqlalchemy import Select, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from punica_serve.registry.reading import AnyRow, with_tenant
from punica_serve.registry.records import AuditEntry
from punica_serve.registry.tables import audit


def entries(limit: int, before: int | None, tenant_id: str | None) -> Select[tuple[Any, ...]]:
    """The newest entries, or those before an entry; of one tenant, or of all."""
    found = with_tenant(audit).order_by(audit.c.entry_id.desc()).limit(limit)
    if before is not None:
        found = found.where(audit.c.entry_id < before)
    return found if tenant_id is None else found.where(audit.c.tenant_id == tenant_id)


async def remove_entries(connection: AsyncConnection, before_s: float, max_rows: int) -> int:
    """Removes entries written before a time, among the oldest ``max_rows``; returns how many. Times have no index, but
    ascend with the ids.
    """
    oldest = select(audit.c.entry_id).order_by(audit.c.entry_id).limit(max_rows)
    old = delete(audit).where(audit.c.entry_id.in_(oldest), audit.c.at_s < before_s)
    return (await connection.execute(old)).rowcount


def entry_of(row: AnyRow) -> AuditEntry:
    return AuditEntry(row.entry_id, row.at_s, row.by, row.action, row.tenant_id, row.tenant, row.subject, row.detail)
