"""The tenants' usage, totalled by the hour."""

from collections.abc import Sequence
from functools import cache
from operator import itemgetter
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import Select, delete, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from punica_serve.protocol import PromiseCounts
from punica_serve.registry.change import Upsert, upsert
from punica_serve.registry.reading import AnyRow, with_tenant
from punica_serve.registry.records import Usage
from punica_serve.registry.tables import tenants, usage, usage_sources

#: A frontend that has reported nothing for this long won't resend a batch.
_SOURCE_LIFE_S = 7 * 86_400.0
_KEY = ("hour_s", "tenant_id", "owner_id", "adapter", "version")
#: Name before id, since tenants are listed by name.
_ADAPTER = ("adapter", "owner_id", "version")
_PROMISES = PromiseCounts.__struct_fields__
_COUNTS = ("num_requests", "num_prompt_tokens", "num_cached_tokens", "num_generated_tokens", "gpu_s")
_SUMS = (*_COUNTS, *_PROMISES)


async def add_usage(
    connection: AsyncConnection, rows: Sequence[Usage], *, source: str, number: int, now_s: float
) -> None:
    """Adds a batch unless it was counted before: a sender without confirmation sends it again."""
    if not await _is_new(connection, source, number, now_s) or not rows:
        return
    # Always in the same order, so that concurrent writers can't deadlock. One call for all: on SQLite each takes
    # switches between threads.
    await connection.execute(_adding(connection.dialect.name), sorted(map(_values, rows), key=itemgetter(*_KEY)))


@cache
def _adding(dialect: str) -> Upsert:
    """Adds a row to the one with its key. Kept, since ``excluded`` is a copy of the table, a cycle of many objects."""
    statement = upsert(dialect, usage)
    return statement.on_conflict_do_update(
        index_elements=_KEY, set_={column: usage.c[column] + statement.excluded[column] for column in _SUMS}
    )


async def _is_new(connection: AsyncConnection, source: str, number: int, now_s: float) -> bool:
    statement = upsert(connection.dialect.name, usage_sources).values(source=source, number=number, at_s=now_s)
    statement = statement.on_conflict_do_update(
        index_elements=["source"], set_={"number": number, "at_s": now_s}, where=usage_sources.c.number < number
    )
    is_new = (await connection.execute(statement.returning(usage_sources.c.number))).one_or_none() is not None
    if is_new and number == 1:
        await connection.execute(delete(usage_sources).where(usage_sources.c.at_s < now_s - _SOURCE_LIFE_S))
    return is_new


def usage_between(tenant_id: str | None, since_s: float, until_s: float) -> Select[tuple[Any, ...]]:
    """Usage in hours that began in the given time, of one tenant or of all; by hour, tenant, adapter and version."""
    found = with_tenant(usage).where(usage.c.hour_s >= since_s, usage.c.hour_s < until_s)
    if tenant_id is not None:
        found = found.where(usage.c.tenant_id == tenant_id)
    return found.order_by(usage.c.hour_s, tenants.c.name, usage.c.tenant_id, *(usage.c[name] for name in _ADAPTER))


async def remove_usage(connection: AsyncConnection, before_s: float, max_rows: int) -> int:
    """Removes the oldest rows, of hours that began before a time; returns how many."""
    key = tuple_(*(usage.c[column] for column in _KEY))
    oldest = select(*(usage.c[column] for column in _KEY)).where(usage.c.hour_s < before_s)
    oldest = oldest.order_by(*(usage.c[column] for column in _KEY)).limit(max_rows)
    return (await connection.execute(delete(usage).where(key.in_(oldest)))).rowcount


def usage_of(row: AnyRow) -> Usage:
    return Usage(
        hour_s=row.hour_s,
        tenant_id=row.tenant_id,
        tenant=row.tenant,
        owner_id=row.owner_id or None,
        adapter=row.adapter or None,
        version=row.version or None,
        num_requests=row.num_requests,
        num_prompt_tokens=row.num_prompt_tokens,
        num_cached_tokens=row.num_cached_tokens,
        num_generated_tokens=row.num_generated_tokens,
        gpu_s=row.gpu_s,
        promises=PromiseCounts(*(row._mapping[column] for column in _PROMISES)),
    )


def _values(row: Usage) -> dict[str, object]:
    return {
        "hour_s": row.hour_s,
        "tenant_id": row.tenant_id,
        "owner_id": row.owner_id or "",
        "adapter": row.adapter or "",
        "version": row.version or 0,
        **{column: getattr(row, column) for column in _COUNTS},
        **asdict(row.promises),
    }
