"""The registry in memory at one revision, and the access rules. Pure: no database, no clock.

A snapshot never changes. The next one is built from it and the changed rows, so following a registry of thousands of
adapters costs only what changes.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from punica_serve.errors import AdapterNotFound, AdapterRejected, InvalidRequest
from punica_serve.protocol import TenantQuota
from punica_serve.registry.names import (
    BUILTIN_TENANTS,
    MAX_SHOWN_CHARS,
    SHARED_TENANT,
    full_name,
    no_such_tenant,
    tenant_is_gone,
)
from punica_serve.registry.records import AdapterVersion, ApiKey, Grant, Tenant
from punica_serve.registry.shared_adapters import SharedAdapters
from punica_serve.registry.snapshot_changes import AdapterKey, Changes


@dataclass(frozen=True)
class RegistrySnapshot:
    """Which callers may use which adapters, and which keys are valid.

    Callers and owners are identified by tenant id, so that a tenant is never mistaken for an earlier one of the same
    name. Names are for people.
    """

    revision: int = 0
    shared: SharedAdapters = field(default_factory=SharedAdapters)
    #: By id, like all mappings below.
    _tenants: Mapping[str, Tenant] = field(default_factory=dict)
    _adapters: Mapping[AdapterKey, AdapterVersion] = field(default_factory=dict)
    _keys: Mapping[str, ApiKey] = field(default_factory=dict)
    _grants: frozenset[Grant] = frozenset()

    def after(self, changes: Changes) -> "RegistrySnapshot":
        """The snapshot with the changes applied. Applying some of them again changes nothing."""
        return replace(
            self,
            revision=changes.revision,
            _tenants=changes.tenants_after(self._tenants),
            _adapters=changes.adapters_after(self._adapters),
            _keys=changes.keys_after(self._keys),
            _grants=changes.grants_after(self._grants),
        )

    # -- adapters

    def adapter(self, caller_id: str, name: str, *, is_admin: bool = False) -> AdapterVersion:
        """The adapter that ``name`` means to a caller: its own, else one granted to it, else a shared one.

        The full form `tenant/name` says which; an administrator may use it for any tenant's. Raises AdapterNotFound
        with the same message whether the adapter does not exist or belongs to somebody else; AdapterRejected for an
        adapter of the config file that can't be served; InvalidRequest for a short name that was granted by two
        tenants.
        """
        owner, slash, short = name.partition("/")
        if slash:
            owner_id = self._id_of(owner)
            found = self._named(owner_id, short) if self._may_use(caller_id, owner_id, short, is_admin) else None
        else:
            found = self._short_named(caller_id, name)
        if found is None:
            raise AdapterNotFound(
                f"there is no adapter {name[:MAX_SHOWN_CHARS]!r}; GET /v1/models lists those that are served",
                param="lora_id",
            )
        return found

    def adapters(self, caller_id: str, *, is_admin: bool = False) -> tuple[AdapterVersion, ...]:
        """All adapters that the caller may use: the config file's first, then by full name."""
        rows = [
            adapter
            for key, adapter in self._sorted_adapters
            if self._may_use(caller_id, *key, is_admin) and not self.shared.has(*key)
        ]
        return (*self.shared.versions.values(), *rows)

    def name_for(self, caller_id: str, adapter: AdapterVersion) -> str:
        """The shortest name by which the caller gets exactly this adapter."""
        try:
            found = self._short_named(caller_id, adapter.name)
        except (InvalidRequest, AdapterRejected):
            found = None
        return adapter.name if found == adapter else adapter.full_name

    def shadowed_by(self, caller_id: str, adapter: AdapterVersion) -> tuple[str, ...]:
        """Full names of the other adapters that this one's short name would otherwise mean to a tenant."""
        if self.name_for(caller_id, adapter) != adapter.name:
            return ()
        owner_ids = (*self._granted.get((caller_id, adapter.name), ()), SHARED_TENANT)
        hidden = (owner_id for owner_id in owner_ids if self._is_hidden(owner_id, adapter))
        return tuple(full_name(self.tenant_of(owner_id).name, adapter.name) for owner_id in hidden)

    def pinned(self) -> tuple[AdapterVersion, ...]:
        """Those of this service's base model."""
        return tuple(adapter for adapter in self._adapters.values() if adapter.pinned and self.shared.serves(adapter))

    def digests(self) -> frozenset[str]:
        """Digests of all served adapters."""
        return self._digests

    def stored_digests(self) -> frozenset[str]:
        """Digests of all adapters with files in the store. The config file's adapters are elsewhere."""
        return self._stored_digests

    # -- tenants, keys and grants

    def tenant(self, name: str) -> Tenant:
        """The tenant of this name. Raises NotFound."""
        if (tenant := self._known(self._id_of(name))) is not None:
            return tenant
        raise no_such_tenant(name)

    def tenant_of(self, tenant_id: str) -> Tenant:
        """The tenant of this id. Raises NotFound."""
        if (tenant := self._known(tenant_id)) is not None:
            return tenant
        raise tenant_is_gone()

    def tenants(self) -> tuple[Tenant, ...]:
        return tuple(sorted(self._tenants.values(), key=lambda tenant: tenant.name))

    def key_of(self, secret: str, now_s: float) -> ApiKey | None:
        """The key of a secret; None if it is unknown, revoked or expired."""
        key = self._keys.get(digest_of(secret))
        return key if key and key.is_valid(now_s) else None

    def key(self, key_id: str, now_s: float) -> ApiKey | None:
        """The key of an id, the secret's public part; None if it is unknown, revoked or expired."""
        key = self._keys_by_id.get(key_id)
        return key if key and key.is_valid(now_s) else None

    def keys(self, tenant: str | None = None) -> tuple[ApiKey, ...]:
        """The keys of one tenant, given by name, or of all; expired ones too."""
        keys = (key for key in self._keys.values() if tenant in (None, key.tenant))
        return tuple(sorted(keys, key=lambda key: (key.tenant, key.created_s, key.key_id)))

    def grants(self) -> tuple[Grant, ...]:
        """All grants, by owner and name; tenants unknown to this snapshot come first."""

        def name_of(tenant_id: str) -> str:
            tenant = self._known(tenant_id)
            return tenant.name if tenant else ""

        return tuple(sorted(self._grants, key=lambda grant: (name_of(grant.tenant_id), grant.name, grant.to_id)))

    # -- internal

    def _known(self, tenant_id: str | None) -> Tenant | None:
        """The tenant of this id; built-in ones exist even without a row."""
        if tenant_id is None:
            return None
        if (tenant := self._tenants.get(tenant_id)) is None and tenant_id in BUILTIN_TENANTS:
            return Tenant(tenant_id, tenant_id, TenantQuota(), None, None, suspended=False, created_s=0.0)
        return tenant

    def _id_of(self, name: str) -> str | None:
        """The id of a tenant's name; None if there is no such tenant."""
        return name if name in BUILTIN_TENANTS else self._ids.get(name)

    def _named(self, owner_id: str | None, name: str) -> AdapterVersion | None:
        """An owner's adapter, regardless of the caller. The config file takes precedence over rows of the same name."""
        if owner_id is None:
            return None
        if owner_id == SHARED_TENANT:
            if rejected := self.shared.rejected.get(name):
                raise AdapterRejected(f"adapter {name!r} is not served: {rejected.message}", param="lora_id")
            if version := self.shared.versions.get(name):
                return version
        return self._adapters.get((owner_id, name))

    def _short_named(self, caller_id: str, name: str) -> AdapterVersion | None:
        granted = self._granted.get((caller_id, name), ())
        return self._named(caller_id, name) or self._one_of(granted, name) or self._named(SHARED_TENANT, name)

    def _is_hidden(self, owner_id: str, adapter: AdapterVersion) -> bool:
        """Whether the adapter's short name means another one for this owner."""
        is_there = (owner_id, adapter.name) in self._adapters or self.shared.has(owner_id, adapter.name)
        return owner_id != adapter.tenant_id and is_there

    def _one_of(self, owner_ids: tuple[str, ...], name: str) -> AdapterVersion | None:
        if len(owner_ids) > 1:
            choices = " and ".join(full_name(self.tenant_of(owner_id).name, name) for owner_id in owner_ids)
            raise InvalidRequest(f"adapter {name!r} could be {choices}; give the full name", param="lora_id")
        return self._named(owner_ids[0], name) if owner_ids else None

    def _may_use(self, caller_id: str, owner_id: str | None, name: str, is_admin: bool) -> bool:
        if owner_id is None:
            return False
        return is_admin or owner_id in (caller_id, SHARED_TENANT) or Grant(owner_id, name, caller_id) in self._grants

    @cached_property
    def _ids(self) -> Mapping[str, str]:
        """Tenant name -> id."""
        return {tenant.name: tenant.tenant_id for tenant in self._tenants.values()}

    @cached_property
    def _sorted_adapters(self) -> list[tuple[AdapterKey, AdapterVersion]]:
        """All adapters by full name."""
        return sorted(self._adapters.items(), key=lambda item: (item[1].tenant, item[1].name))

    @cached_property
    def _granted(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """(receiver, adapter name) -> owners who granted it."""
        owner_ids: dict[tuple[str, str], tuple[str, ...]] = {}
        for grant in self.grants():
            key = (grant.to_id, grant.name)
            owner_ids[key] = (*owner_ids.get(key, ()), grant.tenant_id)
        return MappingProxyType(owner_ids)

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
    """The stored digest of a key. Secrets are 256 random bits, which can't be guessed, so one round is enough."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
