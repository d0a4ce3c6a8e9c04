"""The registry in memory at one revision, and who may use what. Pure: no database, no clock.

A snapshot never changes. The next one is made from it and from the rows that changed, so that following a registry of
thousands of adapters costs what changes, not what there is.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

from punica_serve.errors import AdapterNotFound, AdapterRejected, InvalidRequest
from punica_serve.protocol import TenantQuota
from punica_serve.registry.names import BUILTIN_TENANTS, MAX_SHOWN_CHARS, SHARED_TENANT, full_name, no_such_tenant
from punica_serve.registry.records import AdapterVersion, ApiKey, Grant, Tenant

T = TypeVar("T")

#: (tenant, name)
_AdapterKey = tuple[str, str]


@dataclass(frozen=True)
class SharedAdapters:
    """The adapters of the config file, and why some of them are not served. Never in the database."""

    versions: Mapping[str, AdapterVersion] = field(default_factory=dict)
    rejected: Mapping[str, AdapterRejected] = field(default_factory=dict)

    def has(self, tenant: str, name: str) -> bool:
        return tenant == SHARED_TENANT and (name in self.versions or name in self.rejected)


@dataclass(frozen=True)
class Changes:
    """What is not as it was at an earlier revision: each record, and whether it is still there."""

    revision: int
    tenants: tuple[tuple[Tenant, bool], ...] = ()
    adapters: tuple[tuple[AdapterVersion, bool], ...] = ()
    #: By the digest of the secret.
    keys: tuple[tuple[str, ApiKey, bool], ...] = ()
    grants: tuple[tuple[Grant, bool], ...] = ()


@dataclass(frozen=True)
class RegistrySnapshot:
    """Who may use which adapter, by which key."""

    revision: int = 0
    shared: SharedAdapters = SharedAdapters()
    _tenants: Mapping[str, Tenant] = field(default_factory=dict)
    _adapters: Mapping[_AdapterKey, AdapterVersion] = field(default_factory=dict)
    _keys: Mapping[str, ApiKey] = field(default_factory=dict)
    _grants: frozenset[Grant] = frozenset()

    def after(self, changes: Changes) -> "RegistrySnapshot":
        """The snapshot with the changes. Applying some of them once more changes nothing."""
        tenants = _updated(self._tenants, ((tenant.name, tenant, is_there) for tenant, is_there in changes.tenants))
        gone = {grant for grant, is_there in changes.grants if not is_there}
        granted = {grant for grant, is_there in changes.grants if is_there}
        return replace(
            self,
            revision=changes.revision,
            _tenants=tenants,
            _adapters=_newest(self._adapters, changes.adapters),
            _keys=_updated(self._keys, changes.keys),
            _grants=(self._grants - gone) | granted if changes.grants else self._grants,
        )

    # -- adapters

    def adapter(self, caller_tenant: str, name: str, *, is_admin: bool = False) -> AdapterVersion:
        """What ``name`` means to a caller: its own adapter, else one granted to it, else a shared one.

        In full, `tenant/name`, it says which, and an admin may so name anybody's. Raises AdapterNotFound with one and
        the same message whether there is none or it is somebody else's; AdapterRejected for an adapter of the config
        file that can't be served; InvalidRequest for a short name that was granted twice.
        """
        owner, slash, short = name.partition("/")
        if slash:
            found = self._named(owner, short) if self._may_use(caller_tenant, owner, short, is_admin) else None
        else:
            found = self._short_named(caller_tenant, name)
        if found is None:
            raise AdapterNotFound(
                f"no adapter is called {name[:MAX_SHOWN_CHARS]!r}; GET /v1/models lists those that are served",
                param="lora_id",
            )
        return found

    def adapters(self, caller_tenant: str, *, is_admin: bool = False) -> tuple[AdapterVersion, ...]:
        """All that the caller may use: those of the config file first, then by full name."""
        rows = [
            adapter
            for key, adapter in sorted(self._adapters.items())
            if self._may_use(caller_tenant, *key, is_admin) and not self.shared.has(*key)
        ]
        return (*self.shared.versions.values(), *rows)

    def name_for(self, caller_tenant: str, adapter: AdapterVersion) -> str:
        """The shortest name by which the caller gets just this adapter."""
        try:
            found = self._short_named(caller_tenant, adapter.name)
        except (InvalidRequest, AdapterRejected):
            found = None
        return adapter.name if found == adapter else adapter.full_name

    def shadowed_by(self, caller_tenant: str, adapter: AdapterVersion) -> tuple[str, ...]:
        """What else the short name of an adapter could mean to a tenant that gets this one by it, in full."""
        if self.name_for(caller_tenant, adapter) != adapter.name:
            return ()
        owners = (*self._granted.get((caller_tenant, adapter.name), ()), SHARED_TENANT)
        return tuple(full_name(owner, adapter.name) for owner in owners if self._is_hidden(owner, adapter))

    def pinned(self) -> tuple[AdapterVersion, ...]:
        return tuple(adapter for adapter in self._adapters.values() if adapter.pinned)

    def digests(self) -> frozenset[str]:
        """Of all that are served."""
        return self._digests

    def stored_digests(self) -> frozenset[str]:
        """Of those whose files are in the store. The config file's adapters lie elsewhere."""
        return self._stored_digests

    # -- tenants, keys and grants

    def tenant(self, name: str) -> Tenant:
        """Those that exist always do so without a row, too. Raises NotFound."""
        if tenant := self._tenants.get(name):
            return tenant
        if name in BUILTIN_TENANTS:
            return Tenant(name, TenantQuota(), None, None, suspended=False, created_s=0.0)
        raise no_such_tenant(name)

    def tenants(self) -> tuple[Tenant, ...]:
        return tuple(sorted(self._tenants.values(), key=lambda tenant: tenant.name))

    def key_of(self, secret: str, now_s: float) -> ApiKey | None:
        """None: unknown, revoked or expired."""
        key = self._keys.get(digest_of(secret))
        return key if key and key.is_valid(now_s) else None

    def key(self, key_id: str, now_s: float) -> ApiKey | None:
        """By the part of the secret that may be shown. None: unknown, revoked or expired."""
        key = self._keys_by_id.get(key_id)
        return key if key and key.is_valid(now_s) else None

    def keys(self, tenant: str | None = None) -> tuple[ApiKey, ...]:
        """Of one tenant, or of all; expired ones too."""
        keys = (key for key in self._keys.values() if tenant in (None, key.tenant))
        return tuple(sorted(keys, key=lambda key: (key.tenant, key.created_s, key.key_id)))

    def grants(self, tenant: str | None = None) -> tuple[Grant, ...]:
        """Of one tenant's adapters, or of all."""
        grants = (grant for grant in self._grants if tenant in (None, grant.tenant))
        return tuple(sorted(grants, key=lambda grant: (grant.tenant, grant.name, grant.to)))

    # -- inside

    def _named(self, tenant: str, name: str) -> AdapterVersion | None:
        """Whoever asks. The config file comes before rows of the same name."""
        if tenant == SHARED_TENANT:
            if rejected := self.shared.rejected.get(name):
                raise AdapterRejected(f"adapter {name!r} is not served: {rejected.message}", param="lora_id")
            if version := self.shared.versions.get(name):
                return version
        return self._adapters.get((tenant, name))

    def _short_named(self, caller_tenant: str, name: str) -> AdapterVersion | None:
        granted = self._granted.get((caller_tenant, name), ())
        return self._named(caller_tenant, name) or self._one_of(granted, name) or self._named(SHARED_TENANT, name)

    def _is_hidden(self, owner: str, adapter: AdapterVersion) -> bool:
        """Whether ``owner`` has another adapter of this name."""
        is_there = (owner, adapter.name) in self._adapters or self.shared.has(owner, adapter.name)
        return owner != adapter.tenant and is_there

    def _one_of(self, owners: tuple[str, ...], name: str) -> AdapterVersion | None:
        if len(owners) > 1:
            choices = " and ".join(full_name(owner, name) for owner in owners)
            raise InvalidRequest(f"adapter {name!r} may be {choices}; say which in full", param="lora_id")
        return self._named(owners[0], name) if owners else None

    def _may_use(self, caller_tenant: str, owner: str, name: str, is_admin: bool) -> bool:
        return is_admin or owner in (caller_tenant, SHARED_TENANT) or Grant(owner, name, caller_tenant) in self._grants

    @cached_property
    def _granted(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """(who may use it, name) -> whose it is."""
        owners: dict[tuple[str, str], tuple[str, ...]] = {}
        for grant in self.grants():
            owners[grant.to, grant.name] = (*owners.get((grant.to, grant.name), ()), grant.tenant)
        return MappingProxyType(owners)

    @cached_property
    def _keys_by_id(self) -> Mapping[str, ApiKey]:
        return {key.key_id: key for key in self._keys.values()}

    @cached_property
    def _stored_digests(self) -> frozenset[str]:
        return frozenset(adapter.ref.digest for adapter in self._adapters.values())

    @cached_property
    def _digests(self) -> frozenset[str]:
        return self._stored_digests.union(adapter.ref.digest for adapter in self.shared.versions.values())


def digest_of(secret: str) -> str:
    """What is kept of a key. Secrets are 256 random bits: there is nothing to guess, so one round is enough."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _updated(before: Mapping[str, T], changes: Iterable[tuple[str, T, bool]]) -> Mapping[str, T]:
    after = dict(before)
    for key, record, is_there in changes:
        if is_there:
            after[key] = record
        else:
            after.pop(key, None)
    return after


def _newest(
    before: Mapping[_AdapterKey, AdapterVersion], changes: Iterable[tuple[AdapterVersion, bool]]
) -> Mapping[_AdapterKey, AdapterVersion]:
    """A version takes the place of older ones; the end of a version is news only while it is the newest."""
    after = dict(before)
    for version, is_there in changes:
        key = (version.tenant, version.name)
        current = after.get(key)
        if current and version.version < current.version:
            continue
        if is_there:
            after[key] = version
        else:
            after.pop(key, None)
    return after
