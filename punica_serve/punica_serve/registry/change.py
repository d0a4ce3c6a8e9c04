"""One change of the registry: a transaction, its revision, and who made it."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, insert, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from punica_serve.registry.tables import audit, counter

#: Both have it, in the same words.
Upsert = postgresql.Insert | sqlite.Insert


@dataclass(frozen=True, slots=True)
class Change:
    """Open until its transaction ends. No other change is under way meanwhile, in whichever process."""

    connection: AsyncConnection
    revision: int
    now_s: float
    by: str

    @classmethod
    async def begin(cls, connection: AsyncConnection, now_s: float, by: str) -> "Change":
        """Waits for the changes under way, and takes the next revision."""
        statement = update(counter).values(revision=counter.c.revision + 1).returning(counter.c.revision)
        return cls(connection, (await connection.execute(statement)).scalar_one(), now_s, by)

    async def log(self, action: str, tenant: str, subject: str, **detail: Any) -> None:
        """Writes who did what; it is there if, and only if, the change is."""
        values = {"at_s": self.now_s, "by": self.by, "action": action, "tenant": tenant, "subject": subject}
        await self.connection.execute(insert(audit).values(**values, detail=detail))


def upsert(connection: AsyncConnection, table: Table) -> Upsert:
    """An insert that may say what to do if the row is there."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)
