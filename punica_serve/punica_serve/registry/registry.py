"""The registry in a database: a snapshot that is kept up to date, and changes, each in one transaction with its audit
entry.
"""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Self

from msgspec import structs

from punica_serve.errors import AdapterNotFound, Conflict, NotFound, RegistryUnavailable
from punica_serve.protocol import NO_SLO, AdapterRef, Slo, TenantQuota
from punica_serve.registry import adapter_changes, audit_log, files, tenant_changes, usage
from punica_serve.registry.change import Change
from punica_serve.registry.database import DEADLINE_S, Database
from punica_serve.registry.follower import Follower
from punica_serve.registry.migrate import migrate
from punica_serve.registry.names import full_name, is_tenant_id
from punica_serve.registry.reading import versions_of
from punica_serve.registry.records import AdapterVersion, ApiKey, AuditEntry, Grant, Role, Tenant, UnusedFiles, Usage
from punica_serve.registry.shared_adapters import SharedAdapters
from punica_serve.registry.snapshot import RegistrySnapshot
from punica_serve.registry.tenant_changes import Terms

#: The author of file claims that no user asked for.
_NOBODY = ""


class Registry:
    """One process's view of the registry. ``open`` creates it; its owner must call ``close``.

    Every async method raises RegistryUnavailable if the database does not answer in time; the snapshot stays usable.
    ``by`` is the author of a change, for the audit log.
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
        """Creates or upgrades the tables if necessary, and reads them. ``shared`` are the config file's adapters. Every
        call ends by the deadline.

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

    # -- reading

    @property
    def snapshot(self) -> RegistrySnapshot:
        """The last snapshot that was read. Does no input or output."""
        return self._follower.snapshot

    @property
    def is_away(self) -> bool:
        """Whether the database failed to answer the last read."""
        return self._follower.is_away

    async def refresh(self) -> RegistrySnapshot:
        """Returns a snapshot at least as new as this call. Concurrent calls share one read."""
        return await self._follower.refresh()

    async def follow(self) -> None:
        """Keeps the snapshot up to date until cancelled. Survives outages."""
        await self._follower.follow()

    async def adapter(self, caller_id: str, name: str, *, is_admin: bool = False) -> AdapterVersion:
        """Returns ``snapshot.adapter``; reads the database once if the adapter is not found."""
        try:
            return self.snapshot.adapter(caller_id, name, is_admin=is_admin)
        except AdapterNotFound:
            await self._catch_up()
        return self.snapshot.adapter(caller_id, name, is_admin=is_admin)

    async def tenant(self, name: str) -> Tenant:
        """Returns ``snapshot.tenant``; reads the database once if the tenant is not found."""
        try:
            return self.snapshot.tenant(name)
        except NotFound:
            await self._catch_up()
        return self.snapshot.tenant(name)

    async def key_of(self, secret: str) -> ApiKey | None:
        """Returns ``snapshot.key_of``; reads the database once if the key is not found."""
        if self.snapshot.key_of(secret, self._clock()) is None:
            await self._catch_up()
        return self.snapshot.key_of(secret, self._clock())

    # -- adapters; owners are given by id, since a later tenant may have the same name

    async def register(
        self,
        tenant_id: str,
        name: str,
        ref: AdapterRef,
        *,
        by: str,
        source_uri: str | None = None,
        base_model: str | None = None,
        chat_template: str | None = None,
        must_be_new: bool = False,
    ) -> tuple[AdapterVersion, bool]:
        """Registers the next version of a name, which replaces the current one.

        Equal bytes don't make a new version. Returns the served version, and whether it is a new one: of registrations
        of the same bytes at once, one is. Files must be stored inside ``keeping_files``. Raises InvalidRequest,
        NotFound for a deleted tenant, Forbidden, AdapterLimitReached, and Conflict if the name exists although it must
        be new, or is the config file's.
        """
        self._check_not_shared(tenant_id, name)
        async with self._change(by) as change:
            registered = await adapter_changes.register(
                change,
                tenant_id,
                name,
                ref,
                source_uri=source_uri,
                base_model=base_model,
                chat_template=chat_template,
                registered_for=self._shared.base,
                must_be_new=must_be_new,
            )
        return registered

    async def delete(self, tenant_id: str, name: str, *, by: str) -> tuple[AdapterVersion, ...]:
        """Deletes the adapter and returns the versions that were served until now. Raises AdapterNotFound."""
        self._check_not_shared(tenant_id, name)
        async with self._change(by) as change:
            return await adapter_changes.delete_adapter(change, tenant_id, name)

    async def set_pinned(self, tenant_id: str, name: str, pinned: bool, *, by: str) -> AdapterVersion:
        """Pins or unpins an adapter; later versions inherit it. Raises AdapterNotFound."""
        self._check_not_shared(tenant_id, name)
        async with self._change(by) as change:
            return await adapter_changes.set_pinned(change, tenant_id, name, pinned)

    async def grant(self, tenant: str, name: str, to: str, *, by: str) -> Grant:
        """Lets another tenant use an adapter; for administrators. The receiver can then use its short name.

        Both tenants are given by name. Raises AdapterNotFound and InvalidRequest.
        """
        self._check_not_shared(tenant, name)
        async with self._change(by) as change:
            return await adapter_changes.grant(change, tenant, name, to)

    async def revoke(self, tenant: str, name: str, to: str, *, by: str) -> None:
        """Ends a grant; both tenants are given by name. Raises InvalidRequest."""
        async with self._change(by) as change:
            await adapter_changes.revoke(change, tenant, name, to)

    async def versions(self, tenant_id: str, name: str) -> tuple[AdapterVersion, ...]:
        """The newest hundred versions, newest first, served or not. Empty for a name that never existed."""
        async with self._database.reading() as connection:
            return await versions_of(connection, tenant_id, name)

    # -- files in the store

    @asynccontextmanager
    async def keeping_files(self, digest: str) -> AsyncIterator[None]:
        """Keeps the files of this digest in the store while the context is open, for ten minutes at most.

        Raises Conflict, with ``retry_after_s``, while they are being removed.
        """
        keep_id = uuid.uuid4().hex
        async with self._change(_NOBODY, is_seen=False) as change:
            await files.keep_files(change, digest, keep_id)
        try:
            yield
        finally:
            with suppress(RegistryUnavailable):  # it expires by itself
                async with self._change(_NOBODY, is_seen=False) as change:
                    await files.release_files(change, keep_id)

    async def unused_files(self) -> Mapping[str, UnusedFiles]:
        """The digests that no adapter uses any more, and that may still have files somewhere.

        An adapter of the config file may have one of them, since it needs no files in the store.
        """
        async with self._database.reading() as connection:
            return await files.unused_files(connection, self._clock())

    async def past_owners(self, digest: str) -> frozenset[str]:
        """Tenant ids of deleted or replaced adapters with these bytes."""
        async with self._database.reading() as connection:
            return await files.past_owners(connection, digest)

    async def claim_files(self, digest: str, by: str) -> bool:
        """Claims the files of this digest for removal from the store, for a minute. Returns whether ``by`` has the
        claim.

        Files that an adapter or a registration uses can't be claimed. Unknown files can.
        """
        async with self._change(by, is_seen=False) as change:
            return await files.claim_files(change, digest, by)

    async def record_files_removed(self, digest: str, by: str) -> None:
        """Records that the files claimed by ``by`` are gone."""
        async with self._change(by, is_seen=False) as change:
            await files.record_removed(change, digest, by)

    # -- tenants and keys, by name

    async def put_tenant(
        self,
        name: str,
        quota: TenantQuota,
        *,
        max_adapters: int | None = None,
        max_adapter_bytes: int | None = None,
        suspended: bool = False,
        slo: Slo = NO_SLO,
        by: str,
    ) -> Tenant:
        """Creates a tenant, or sets all of its terms: what is not given is unlimited, or not promised.

        Raises InvalidRequest.
        """
        terms = {
            **structs.asdict(quota),
            "max_adapters": max_adapters,
            "max_adapter_bytes": max_adapter_bytes,
            "suspended": suspended,
            "slo_first_token_s": slo.first_token_s,
            "slo_time_per_token_s": slo.time_per_token_s,
        }
        async with self._change(by) as change:
            return await tenant_changes.put_tenant(change, name, terms)

    async def patch_tenant(self, name: str, terms: Terms, *, must_exist: bool = True, by: str) -> Tenant:
        """Changes only the given terms. For an unknown name raises NotFound, or creates the tenant. Raises
        InvalidRequest.
        """
        async with self._change(by) as change:
            return await tenant_changes.patch_tenant(change, name, terms, must_exist=must_exist)

    async def delete_tenant(self, name: str, *, force: bool = False, by: str) -> Tenant:
        """Deletes a tenant with its keys and grants. A later tenant of the same name is a different one.

        Raises NotFound, Conflict while it has adapters, and, unless ``force``, LastAdminKey if no other tenant has an
        admin key.
        """
        async with self._change(by) as change:
            return await tenant_changes.delete_tenant(change, name, force=force)

    async def make_key(
        self, tenant: str, role: Role, name: str, expires_s: float | None = None, *, by: str
    ) -> tuple[ApiKey, str]:
        """Creates a key and returns it with its secret, which can't be retrieved later. Raises InvalidRequest."""
        async with self._change(by) as change:
            return await tenant_changes.make_key(change, tenant, role, name, expires_s)

    async def revoke_key(self, key_id: str, *, force: bool = False, by: str) -> ApiKey:
        """Raises NotFound, and, unless ``force``, LastAdminKey for the last valid admin key."""
        async with self._change(by) as change:
            return await tenant_changes.revoke_key(change, key_id, force=force)

    # -- usage and audit log

    async def add_usage(self, rows: Sequence[Usage], *, source: str, number: int) -> None:
        """Adds a batch. ``source`` is a process and ``number`` counts its batches, so that none is counted twice.

        A caller that got no confirmation sends the same batch again.
        """
        async with self._database.writing() as connection:
            await usage.add_usage(connection, rows, source=source, number=number, now_s=self._clock())

    async def usage(self, tenant_id: str | None, since_s: float, until_s: float) -> tuple[Usage, ...]:
        """Usage by hour, tenant and adapter version, for hours that began in the given time. None means all tenants,
        deleted ones included.
        """
        if tenant_id is not None and not is_tenant_id(tenant_id):
            return ()
        async with self._database.reading() as connection:
            rows = (await connection.execute(usage.usage_between(tenant_id, since_s, until_s))).all()
        return tuple(usage.usage_of(row) for row in rows)

    async def audit_log(
        self, limit: int, before: int | None = None, *, tenant_id: str | None = None
    ) -> tuple[AuditEntry, ...]:
        """The newest entries first; ``before`` is the ``entry_id`` of the last one seen."""
        if tenant_id is not None and not is_tenant_id(tenant_id):
            return ()
        async with self._database.reading() as connection:
            rows = (await connection.execute(audit_log.entries(limit, before, tenant_id))).all()
        return tuple(audit_log.entry_of(row) for row in rows)

    async def remove_usage(self, before_s: float, max_rows: int) -> int:
        """Removes the oldest rows, of hours that began before a time, ``max_rows`` at most. Returns how many."""
        async with self._change(_NOBODY, is_seen=False) as change:
            return await usage.remove_usage(change.connection, before_s, max_rows)

    async def remove_audit(self, before_s: float, max_rows: int) -> int:
        """Removes the oldest entries, written before a time, ``max_rows`` at most. Returns how many."""
        async with self._change(_NOBODY, is_seen=False) as change:
            return await audit_log.remove_entries(change.connection, before_s, max_rows)

    # -- internal

    @asynccontextmanager
    async def _change(self, by: str, *, is_seen: bool = True) -> AsyncIterator[Change]:
        """A transaction for one change. If ``is_seen``, the snapshot includes the change when this ends."""
        async with self._database.writing() as connection:
            yield await Change.begin(connection, self._clock(), by)
        if is_seen:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Updates the snapshot, unless the database is known to be down; ``follow`` notices when it is back."""
        if not self.is_away:
            with suppress(RegistryUnavailable):
                await self.refresh()

    def _check_not_shared(self, tenant_id: str, name: str) -> None:
        """Refuses changes of the config file's adapters. The shared tenant's id is its name."""
        if self._shared.has(tenant_id, name):
            raise Conflict(
                f"adapter {full_name(tenant_id, name)!r} comes from the config file; change it there", param="name"
            )
