"""One change of the registry: a transaction, its revision, and who made it."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, insert, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from punica_serve.registry.tables import audit, counter

#: SQLite and PostgreSQL support it with the same syntax.
Upsert = postgresql.Insert | sqlite.Insert


@dataclass(frozen=True, slots=True)
class Change:
    """An open transaction. No other process makes a change until it ends."""

    connection: AsyncConnection
    revision: int
    now_s: float
    by: str

    @classmethod
    async def begin(cls, connection: AsyncConnection, now_s: float, by: str) -> "Change":
        """Waits for other changes to end, and takes the next revision."""
        statement = update(counter).values(revision=counter.c.revision + 1).returning(counter.c.revision)
        return cls(connection, (await connection.execute(statement)).scalar_one(), now_s, by)

    async def log(self, action: str, tenant_id: str, subject: str, **detail: Any) -> None:
        """Adds a line to the audit log, which is committed with the change or not at all."""
        values = {"at_s": self.now_s, "by": self.by, "action": action, "tenant_id": tenant_id, "subject": subject}
        await self.connection.execute(insert(audit).values(**values, detail=detail))


def upsert(dialect: str, table: Table) -> Upsert:
    """An insert that can also say what to do if the row exists, in the SQL of a connection's ``dialect.name``."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
