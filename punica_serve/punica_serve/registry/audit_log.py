"""Who changed what. ``Change.log`` writes it."""

from typing import Any

from sqlalchemy import Select, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from punica_serve.registry.reading import AnyRow
from punica_serve.registry.records import AuditEntry
from punica_serve.registry.tables import audit


def entries(limit: int, before: int | None, tenant: str | None) -> Select[tuple[Any, ...]]:
    """The newest, or those before an entry; of one tenant, or of all."""
    found = select(audit).order_by(audit.c.entry_id.desc()).limit(limit)
    if before is not None:
        found = found.where(audit.c.entry_id < before)
    return found if tenant is None else found.where(audit.c.tenant == tenant)


async def remove_entries(connection: AsyncConnection, before_s: float, max_rows: int) -> int:
    """How many of the first entries were written before. There is no index of times: ids go with them."""
    oldest = select(audit.c.entry_id).order_by(audit.c.entry_id).limit(max_rows)
    old = delete(audit).where(audit.c.entry_id.in_(oldest), audit.c.at_s < before_s)
    return (await connection.execute(old)).rowcount


def entry_of(row: AnyRow) -> AuditEntry:
    return AuditEntry(row.entry_id, row.at_s, row.by, row.action, row.tenant, row.subject, row.detail)
