"""Decides who may remove the files of a digest from the store, and when.

Files are kept by digest, so a registration may find and reuse the files of an adapter that is just being removed. Three
rules prevent conflicts, each checked in a registry transaction. Files of an adapter, or of a registration in progress,
can't be claimed. Claimed files can't be used. Only the process that has claimed files removes them.
"""

from sqlalchemy import Column, Exists, delete, exists, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from punica_serve.errors import Conflict
from punica_serve.registry.change import Change, upsert
from punica_serve.registry.records import UnusedFiles
from punica_serve.registry.tables import adapters, files, keeps

#: Time limit of a registration, from storing the files to registering.
KEEP_S = 600.0
#: Time limit for removing files; then another process may try.
CLAIM_S = 60.0
#: Removing files rarely takes longer.
_RETRY_S = 1.0

#: The adapters by a second name. Each copy of a table is a cycle of a hundred objects, so there is one.
_others = adapters.alias()


async def keep_files(change: Change, digest: str, keep_id: str) -> None:
    """Protects files from being claimed until ``release_files``, for KEEP_S at most. Raises Conflict while they are
    claimed.
    """
    await use_files(change, digest)
    values = {"keep_id": keep_id, "digest": digest, "until_s": change.now_s + KEEP_S}
    await change.connection.execute(insert(keeps).values(**values))


async def release_files(change: Change, keep_id: str) -> None:
    await change.connection.execute(
        delete(keeps).where(or_(keeps.c.keep_id == keep_id, keeps.c.until_s <= change.now_s))
    )


async def use_files(change: Change, digest: str) -> None:
    """Records that an adapter uses the files. Raises Conflict while they are being removed."""
    claimed_until_s = await change.connection.scalar(select(files.c.claimed_until_s).where(files.c.digest == digest))
    if claimed_until_s is not None and claimed_until_s > change.now_s:
        raise Conflict(
            f"the files of an older adapter with the same bytes ({digest[:12]}) are being removed; try again",
            retry_after_s=_RETRY_S,
        )
    values = {"used_s": change.now_s, "claimed_by": None, "claimed_until_s": 0.0}
    statement = upsert(change.connection.dialect.name, files).values(digest=digest, **values)
    await change.connection.execute(statement.on_conflict_do_update(index_elements=["digest"], set_=values))


async def end_use(change: Change, digest: str) -> None:
    """Records that an adapter with these files has ended."""
    await change.connection.execute(update(files).where(files.c.digest == digest).values(used_s=change.now_s))


async def claim_files(change: Change, digest: str, by: str) -> bool:
    """Claims files for removal by ``by`` if possible; returns whether it worked. Unknown files may be claimed too: they
    are left over.
    """
    if await change.connection.scalar(select(or_(_served(digest), _kept(digest, change.now_s)))):
        return False
    row = (await change.connection.execute(select(files).where(files.c.digest == digest))).one_or_none()
    if row and row.claimed_by not in (None, by) and row.claimed_until_s > change.now_s:
        return False
    values = {"claimed_by": by, "claimed_until_s": change.now_s + CLAIM_S}
    statement = upsert(change.connection.dialect.name, files).values(digest=digest, used_s=change.now_s, **values)
    await change.connection.execute(statement.on_conflict_do_update(index_elements=["digest"], set_=values))
    return True


async def record_removed(change: Change, digest: str, by: str) -> None:
    """Records that the files were removed. Does nothing if another process has claimed them since."""
    await change.connection.execute(delete(files).where(files.c.digest == digest, files.c.claimed_by == by))


async def unused_files(connection: AsyncConnection, now_s: float) -> dict[str, UnusedFiles]:
    """The digests that no adapter or registration uses, and whose files may still exist."""
    digest = files.c.digest
    unused = select(digest, files.c.used_s, adapters.c.tenant_id).outerjoin(adapters, adapters.c.digest == digest)
    found: dict[str, UnusedFiles] = {}
    for row in await connection.execute(unused.where(~_served(digest), ~_kept(digest, now_s))):
        owners = frozenset() if row.tenant_id is None else frozenset({row.tenant_id})
        before = found.get(row.digest)
        found[row.digest] = UnusedFiles(row.used_s, owners | before.tenant_ids if before else owners)
    return found


async def past_owners(connection: AsyncConnection, digest: str) -> frozenset[str]:
    """Tenant ids of ended versions with this digest, as far as their rows are kept."""
    ended = select(adapters.c.tenant_id).where(adapters.c.digest == digest, ~adapters.c.is_live)
    return frozenset(await connection.scalars(ended))


def _served(digest: str | Column[str]) -> Exists:
    return exists().where(_others.c.digest == digest, _others.c.is_live)


def _kept(digest: str | Column[str], now_s: float) -> Exists:
    return exists().where(keeps.c.digest == digest, keeps.c.until_s > now_s)
