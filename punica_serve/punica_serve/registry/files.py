"""Whether the files of a digest may be removed from the store, and by whom.

Files are kept by their digest, so a registration finds those of an adapter that is just being removed, and builds on
them. Three rules keep them apart, each in a transaction of the registry: files that an adapter has, or that a
registration under way relies on, can't be claimed; files that are claimed can't be relied on; and only who has
claimed files removes them.
"""

from sqlalchemy import Column, Exists, delete, exists, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from punica_serve.errors import Conflict
from punica_serve.registry.change import Change, upsert
from punica_serve.registry.records import Forgotten
from punica_serve.registry.tables import adapters, files, keeps

#: How long a registration may take to bring the files and to register.
KEEP_S = 600.0
#: How long the removal of files may take, until another may try.
CLAIM_S = 60.0
#: Removing takes no longer, mostly.
_RETRY_S = 1.0


async def keep_files(change: Change, digest: str, keep_id: str) -> None:
    """Nobody claims the files until ``release_files``, or KEEP_S from now. Raises Conflict while they are claimed."""
    await use_files(change, digest)
    values = {"keep_id": keep_id, "digest": digest, "until_s": change.now_s + KEEP_S}
    await change.connection.execute(insert(keeps).values(**values))


async def release_files(change: Change, keep_id: str) -> None:
    await change.connection.execute(
        delete(keeps).where(or_(keeps.c.keep_id == keep_id, keeps.c.until_s <= change.now_s))
    )


async def use_files(change: Change, digest: str) -> None:
    """The files are there, or about to be. Raises Conflict while somebody removes them."""
    claimed_until_s = await change.connection.scalar(select(files.c.claimed_until_s).where(files.c.digest == digest))
    if claimed_until_s is not None and claimed_until_s > change.now_s:
        raise Conflict(
            f"the files of an older adapter with the same bytes ({digest[:12]}) are being removed; try again",
            retry_after_s=_RETRY_S,
        )
    values = {"used_s": change.now_s, "claimed_by": None, "claimed_until_s": 0.0}
    statement = upsert(change.connection, files).values(digest=digest, **values)
    await change.connection.execute(statement.on_conflict_do_update(index_elements=["digest"], set_=values))


async def end_use(change: Change, digest: str) -> None:
    """An adapter with these files has ended."""
    await change.connection.execute(update(files).where(files.c.digest == digest).values(used_s=change.now_s))


async def claim_files(change: Change, digest: str, by: str) -> bool:
    """Whether ``by`` may remove the files now. Files that nobody knows of may be claimed too: they are left over."""
    if await change.connection.scalar(select(or_(_served(digest), _kept(digest, change.now_s)))):
        return False
    row = (await change.connection.execute(select(files).where(files.c.digest == digest))).one_or_none()
    if row and row.claimed_by not in (None, by) and row.claimed_until_s > change.now_s:
        return False
    values = {"claimed_by": by, "claimed_until_s": change.now_s + CLAIM_S}
    statement = upsert(change.connection, files).values(digest=digest, used_s=change.now_s, **values)
    await change.connection.execute(statement.on_conflict_do_update(index_elements=["digest"], set_=values))
    return True


async def forget_files(change: Change, digest: str, by: str) -> None:
    """They are removed. Nothing happens if somebody else has claimed them since."""
    await change.connection.execute(delete(files).where(files.c.digest == digest, files.c.claimed_by == by))


async def unused_files(connection: AsyncConnection, now_s: float) -> dict[str, Forgotten]:
    """The digests that nobody has or relies on, whose files are not known to be gone."""
    digest = files.c.digest
    unused = select(digest, files.c.used_s, adapters.c.tenant).outerjoin(adapters, adapters.c.digest == digest)
    found: dict[str, Forgotten] = {}
    for row in await connection.execute(unused.where(~_served(digest), ~_kept(digest, now_s))):
        owners = frozenset() if row.tenant is None else frozenset({row.tenant})
        before = found.get(row.digest)
        found[row.digest] = Forgotten(row.used_s, owners | before.tenants if before else owners)
    return found


async def past_owners(connection: AsyncConnection, digest: str) -> frozenset[str]:
    """The tenants of versions that have ended; of those of each name that are remembered."""
    ended = select(adapters.c.tenant).where(adapters.c.digest == digest, ~adapters.c.is_live)
    return frozenset(await connection.scalars(ended))


def _served(digest: str | Column[str]) -> Exists:
    live = adapters.alias()
    return exists().where(live.c.digest == digest, live.c.is_live)


def _kept(digest: str | Column[str], now_s: float) -> Exists:
    return exists().where(keeps.c.digest == digest, keeps.c.until_s > now_s)
