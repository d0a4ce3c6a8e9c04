"""The registry over a database: a snapshot that is kept fresh, and changes, each in one transaction with its audit."""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Self

from msgspec import structs

from punica_serve.errors import AdapterNotFound, Conflict, RegistryUnavailable
from punica_serve.protocol import AdapterRef, TenantQuota
from punica_serve.registry import adapter_changes, audit_log, files, tenant_changes, usage
from punica_serve.registry.change import Change
from punica_serve.registry.database import DEADLINE_S, Database
from punica_serve.registry.follower import Follower
from punica_serve.registry.migrate import migrate
from punica_serve.registry.names import full_name, is_tenant_name
from punica_serve.registry.reading import versions_of
from punica_serve.registry.records import AdapterVersion, ApiKey, AuditEntry, Forgotten, Role, Tenant, Usage
from punica_serve.registry.snapshot import RegistrySnapshot, SharedAdapters
from punica_serve.registry.tenant_changes import Terms

#: Who changes files when nobody in particular does.
_NOBODY = ""


class Registry:
    """One process's view of the registry. ``open`` makes one, and ``close`` must be called.

    Every method that is awaited raises RegistryUnavailable when the database does not answer in time; the snapshot is
    served on. ``by`` is who makes a change, for the audit log.
    """

    def __init__(self, database: Database, shared: SharedAdapters, clock: Callable[[], float]) -> None:
        self._database = database
        self._shared = shared
        self._clock = clock
        self._follower = Follower(database, shared)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        shared: SharedAdapters | None = None,
        clock: Callable[[], float] = time.time,
        deadline_s: float = DEADLINE_S,
    ) -> Self:
        """Makes or alters the tables if need be, and reads them. ``shared`` are the config file's adapters.
        Every call ends within the deadline.

        Raises RegistryUnavailable, and ConfigError for a database of a newer version or a file that can't be written.
        """
        database = Database(url, deadline_s)
        try:
            await migrate(database)
            registry = cls(database, shared or SharedAdapters(), clock)
            await registry.refresh()
        except BaseException:
            await database.close()
            raise
        return registry

    async def close(self) -> None:
        await self._database.close()

    # -- what there is

    @property
    def snapshot(self) -> RegistrySnapshot:
        """The last that was read. No input or output."""
        return self._follower.snapshot

    @property
    def is_away(self) -> bool:
        """Whether the database did not answer when it was last asked."""
        return self._follower.is_away

    async def refresh(self) -> RegistrySnapshot:
        """A snapshot that is at least as new as this call. Calls that come together share one reading."""
        return await self._follower.refresh()

    async def follow(self) -> None:
        """Keeps the snapshot fresh until cancelled. Survives outages."""
        await self._follower.follow()

    async def adapter(self, caller_tenant: str, name: str, *, is_admin: bool = False) -> AdapterVersion:
        """``snapshot.adapter``, but what is not found is looked for in the database once."""
        try:
            return self.snapshot.adapter(caller_tenant, name, is_admin=is_admin)
        except AdapterNotFound:
            await self._catch_up()
        return self.snapshot.adapter(caller_tenant, name, is_admin=is_admin)

    async def key_of(self, secret: str) -> ApiKey | None:
        """``snapshot.key_of``, but what is not found is looked for in the database once."""
        if self.snapshot.key_of(secret, self._clock()) is None:
            await self._catch_up()
        return self.snapshot.key_of(secret, self._clock())

    # -- adapters

    async def register(
        self,
        tenant: str,
        name: str,
        ref: AdapterRef,
        *,
        by: str,
        source_uri: str | None = None,
        base_model: str | None = None,
        chat_template: str | None = None,
        must_be_new: bool = False,
    ) -> AdapterVersion:
        """The next version of a name: it is served from now on, and the one before no longer.

        The same bytes again are no new version. Files in the store are brought inside ``keeping_files``.
        Raises InvalidRequest, Forbidden, QuotaExceeded, and Conflict if the name exists and must not, or is the config
        file's.
        """
        self._check_not_shared(tenant, name)
        async with self._change(by) as change:
            version = await adapter_changes.register(
                change,
                tenant,
                name,
                ref,
                source_uri=source_uri,
                base_model=base_model,
                chat_template=chat_template,
                must_be_new=must_be_new,
            )
        return version

    async def delete(self, tenant: str, name: str, *, by: str) -> tuple[AdapterVersion, ...]:
        """The versions that were served and are no longer. Raises AdapterNotFound."""
        self._check_not_shared(tenant, name)
        async with self._change(by) as change:
            return await adapter_changes.delete_adapter(change, tenant, name)

    async def set_pinned(self, tenant: str, name: str, pinned: bool, *, by: str) -> AdapterVersion:
        """Later versions inherit it. Raises AdapterNotFound."""
        self._check_not_shared(tenant, name)
        async with self._change(by) as change:
            return await adapter_changes.set_pinned(change, tenant, name, pinned)

    async def grant(self, tenant: str, name: str, to: str, *, by: str) -> None:
        """Lets another tenant use an adapter. For admins: the receiver's short name then means this one.

        Raises AdapterNotFound and InvalidRequest.
        """
        self._check_not_shared(tenant, name)
        async with self._change(by) as change:
            await adapter_changes.grant(change, tenant, name, to)

    async def revoke(self, tenant: str, name: str, to: str, *, by: str) -> None:
        async with self._change(by) as change:
            await adapter_changes.revoke(change, tenant, name, to)

    async def versions(self, tenant: str, name: str) -> tuple[AdapterVersion, ...]:
        """The newest hundred, newest first, whether they are served or not. None at all for a name that never was."""
        async with self._database.reading() as connection:
            return await versions_of(connection, tenant, name)

    # -- files in the store

    @asynccontextmanager
    async def keeping_files(self, digest: str) -> AsyncIterator[None]:
        """Inside, nobody removes the files of this digest from the store. Ten minutes at most.

        Raises Conflict, with ``retry_after_s``, while they are being removed.
        """
        keep_id = uuid.uuid4().hex
        async with self._change(_NOBODY, is_seen=False) as change:
            await files.keep_files(change, digest, keep_id)
        try:
            yield
        finally:
            with suppress(RegistryUnavailable):  # it ends by itself
                async with self._change(_NOBODY, is_seen=False) as change:
                    await files.release_files(change, keep_id)

    async def forgotten(self) -> Mapping[str, Forgotten]:
        """The digests that no row has any more, and that may still have files somewhere.

        An adapter of the config file may have one of them: it needs no files of the store.
        """
        async with self._database.reading() as connection:
            return await files.unused_files(connection, self._clock())

    async def past_owners(self, digest: str) -> frozenset[str]:
        """The tenants that had an adapter with these bytes, which was deleted or replaced."""
        async with self._database.reading() as connection:
            return await files.past_owners(connection, digest)

    async def claim_files(self, digest: str, by: str) -> bool:
        """Whether ``by``, and for a minute nobody else, may remove the files of this digest from the store.

        Not while a row has them, or a registration relies on them. Files that nobody knows of may be claimed.
        """
        async with self._change(by, is_seen=False) as change:
            return await files.claim_files(change, digest, by)

    async def mark_forgotten(self, digest: str, by: str) -> None:
        """The files that ``by`` claimed are gone."""
        async with self._change(by, is_seen=False) as change:
            await files.forget_files(change, digest, by)

    # -- tenants and keys

    async def put_tenant(
        self,
        name: str,
        quota: TenantQuota,
        *,
        max_adapters: int | None = None,
        max_adapter_bytes: int | None = None,
        suspended: bool = False,
        by: str,
    ) -> Tenant:
        """Makes a tenant, or sets all of its terms: what is not named has no limit. Raises InvalidRequest."""
        terms = {
            **structs.asdict(quota),
            "max_adapters": max_adapters,
            "max_adapter_bytes": max_adapter_bytes,
            "suspended": suspended,
        }
        async with self._change(by) as change:
            return await tenant_changes.put_tenant(change, name, terms)

    async def patch_tenant(self, name: str, terms: Terms, *, must_exist: bool = True, by: str) -> Tenant:
        """Sets the terms that are named: what is not named stays. Raises InvalidRequest, and NotFound or makes it."""
        async with self._change(by) as change:
            return await tenant_changes.patch_tenant(change, name, terms, must_exist=must_exist)

    async def delete_tenant(self, name: str, *, by: str) -> None:
        """Its keys and grants end with it. Raises NotFound, and Conflict while it has adapters."""
        async with self._change(by) as change:
            await tenant_changes.delete_tenant(change, name)

    async def make_key(
        self, tenant: str, role: Role, name: str, expires_s: float | None = None, *, by: str
    ) -> tuple[ApiKey, str]:
        """A key and its secret, which can't be had again. Raises InvalidRequest."""
        async with self._change(by) as change:
            return await tenant_changes.make_key(change, tenant, role, name, expires_s)

    async def revoke_key(self, key_id: str, *, by: str) -> ApiKey:
        """Raises NotFound."""
        async with self._change(by) as change:
            return await tenant_changes.revoke_key(change, key_id)

    # -- accounts

    async def add_usage(self, rows: Sequence[Usage], *, source: str, number: int) -> None:
        """Adds a batch. ``source`` is a process and ``number`` counts its batches: none is counted twice.

        Who did not hear that it worked sends the same batch again.
        """
        async with self._database.writing() as connection:
            await usage.add_usage(connection, rows, source=source, number=number, now_s=self._clock())

    async def usage(self, tenant: str | None, since_s: float, until_s: float) -> tuple[Usage, ...]:
        """By hour, tenant and version of an adapter, for the hours that began in a time. None: of all tenants."""
        if tenant is not None and not is_tenant_name(tenant):
            return ()
        async with self._database.reading() as connection:
            rows = (await connection.execute(usage.usage_between(tenant, since_s, until_s))).all()
        return tuple(usage.usage_of(row) for row in rows)

    async def audit_log(
        self, limit: int, before: int | None = None, *, tenant: str | None = None
    ) -> tuple[AuditEntry, ...]:
        """The newest changes first; ``before`` is the ``entry_id`` of the last one that was seen."""
        async with self._database.reading() as connection:
            rows = (await connection.execute(audit_log.entries(limit, before, tenant))).all()
        return tuple(audit_log.entry_of(row) for row in rows)

    async def remove_usage(self, before_s: float, max_rows: int) -> int:
        """How many rows were removed: of the oldest, those of hours that began before. 0: there are none any more."""
        async with self._change(_NOBODY, is_seen=False) as change:
            return await usage.remove_usage(change.connection, before_s, max_rows)

    async def remove_audit(self, before_s: float, max_rows: int) -> int:
        """How many entries were removed: of the oldest, those of before. 0: there are none any more."""
        async with self._change(_NOBODY, is_seen=False) as change:
            return await audit_log.remove_entries(change.connection, before_s, max_rows)

    # -- inside

    @asynccontextmanager
    async def _change(self, by: str, *, is_seen: bool = True) -> AsyncIterator[Change]:
        """A transaction; where the snapshot shows what it changed, it does so when this ends."""
        async with self._database.writing() as connection:
            yield await Change.begin(connection, self._clock(), by)
        if is_seen:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Nobody waits for a database that is known to be away; following notices when it is back."""
        if not self.is_away:
            with suppress(RegistryUnavailable):
                await self.refresh()

    def _check_not_shared(self, tenant: str, name: str) -> None:
        if self._shared.has(tenant, name):
            raise Conflict(f"adapter {full_name(tenant, name)!r} is the config file's; change it there", param="name")
