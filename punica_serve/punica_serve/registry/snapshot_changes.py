"""The rows that have changed since a snapshot, and how its records follow them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from punica_serve.registry.records import AdapterVersion, ApiKey, Grant, Tenant

T = TypeVar("T")

#: (owner's id, name)
AdapterKey = tuple[str, str]


@dataclass(frozen=True)
class Changes:
    """Changes since an earlier revision: each record, and whether it still exists."""

    revision: int
    tenants: tuple[tuple[Tenant, bool], ...] = ()
    adapters: tuple[tuple[AdapterVersion, bool], ...] = ()
    #: Key digest, key, and whether it still exists.
    keys: tuple[tuple[str, ApiKey, bool], ...] = ()
    grants: tuple[tuple[Grant, bool], ...] = ()

    def tenants_after(self, before: Mapping[str, Tenant]) -> Mapping[str, Tenant]:
        """The tenants by id."""
        return _updated(before, ((tenant.tenant_id, tenant, is_there) for tenant, is_there in self.tenants))

    def keys_after(self, before: Mapping[str, ApiKey]) -> Mapping[str, ApiKey]:
        """The keys by digest."""
        return _updated(before, self.keys)

    def grants_after(self, before: frozenset[Grant]) -> frozenset[Grant]:
        """The grants that have not ended."""
        if not self.grants:
            return before
        gone = {grant for grant, is_there in self.grants if not is_there}
        granted = {grant for grant, is_there in self.grants if is_there}
        return (before - gone) | granted

    def adapters_after(self, before: Mapping[AdapterKey, AdapterVersion]) -> Mapping[AdapterKey, AdapterVersion]:
        """Adds a version if it is newer than the known one. The end of the newest version removes the adapter."""
        after = dict(before)
        for version, is_there in self.adapters:
            key = (version.tenant_id, version.name)
            current = after.get(key)
            if current and version.version < current.version:
                continue
            if is_there:
                after[key] = version
            else:
                after.pop(key, None)
        return after


def _updated(before: Mapping[str, T], changes: Iterable[tuple[str, T, bool]]) -> Mapping[str, T]:
    after = dict(before)
    for key, record, is_there in changes:
        if is_there:
            after[key] = record
        else:
            after.pop(key, None)
    return after
