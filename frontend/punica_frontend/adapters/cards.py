"""Adapters as the API shows them."""

from typing import Any, Literal

import msgspec

from punica_frontend.api.caller import Caller
from punica_serve.protocol import AdapterResidency
from punica_serve.registry.records import AdapterVersion


class Residency(msgspec.Struct, frozen=True):
    """Where an adapter is."""

    #: Requests that use it, running or waiting.
    num_requests: int = 0
    #: UUIDs of the GPUs with it in their memory.
    gpus: tuple[str, ...] = ()
    #: UUIDs of the GPUs whose workers have it in host memory.
    hosts: tuple[str, ...] = ()
    #: Runners with it in their adapter cache on disk. Mounted stores don't count.
    disks: tuple[str, ...] = ()

    @classmethod
    def of(cls, where: AdapterResidency | None) -> "Residency":
        """Converts the scheduler's report; None means nowhere."""
        return cls(where.num_live, where.gpus, where.hosts, where.disks) if where else cls()


class AdapterCard(msgspec.Struct, frozen=True, kw_only=True):
    """One version of an adapter."""

    object: Literal["adapter"] = "adapter"
    name: str
    full_name: str
    owner: str
    version: int
    digest: str
    #: The highest rank of each module.
    ranks: dict[str, int]
    #: The size of its weights.
    num_bytes: int
    base_model: str | None
    #: The base model that it was registered for; null if that is unknown.
    registered_for: str | None
    #: Visible only to its owner; null for an upload.
    source_uri: str | None
    pinned: bool
    created_at: int


class RegisteredAdapter(AdapterCard, frozen=True, kw_only=True):
    """An adapter that was just registered."""

    #: Full names that the short name would mean to the owner without this adapter.
    shadows: tuple[str, ...]


class PlacedAdapter(AdapterCard, frozen=True, kw_only=True):
    """An adapter and where it is."""

    #: Whether requests may name it here: another service of the same registry may have another base model.
    served: bool
    #: Null while the scheduler can't be reached.
    residency: Residency | None


class AdapterDetail(PlacedAdapter, frozen=True, kw_only=True):
    """An adapter, where it is, and its versions."""

    #: Newest first, which is the one served. Older versions exist only for requests that began with them.
    versions: list[AdapterCard]


class AdapterList(msgspec.Struct, frozen=True):
    """A page of adapters."""

    data: list[PlacedAdapter]
    has_more: bool
    object: Literal["list"] = "list"


class Deletion(msgspec.Struct, frozen=True):
    """The progress of a deletion."""

    digest: str
    #: "deleting" while anything is left of it on a GPU, a host, a disk or in the store.
    status: Literal["deleting", "deleted"]
    status_url: str
    #: Full names of other adapters that you may use with the same bytes, which therefore stay.
    shared_with: tuple[str, ...] = ()
    #: Where it still is, while it is being deleted and the scheduler can be reached.
    residency: Residency | None = None


class Prefetch(msgspec.Struct, frozen=True):
    """An adapter that is being loaded."""

    full_name: str
    #: Null: all GPUs.
    gpus: list[str] | None


def card_of(adapter: AdapterVersion, caller: Caller) -> AdapterCard:
    """Returns what the caller may see. Only the owner sees the source: a URI may reveal storage details."""
    return AdapterCard(**_fields(adapter, caller))


def registered_card(adapter: AdapterVersion, caller: Caller, shadows: tuple[str, ...]) -> RegisteredAdapter:
    return RegisteredAdapter(**_fields(adapter, caller), shadows=shadows)


def placed(adapter: AdapterVersion, caller: Caller, residency: Residency | None, *, served: bool) -> PlacedAdapter:
    return PlacedAdapter(**_fields(adapter, caller), served=served, residency=residency)


def detail_of(
    adapter: AdapterVersion,
    caller: Caller,
    residency: Residency | None,
    versions: tuple[AdapterVersion, ...],
    *,
    served: bool,
) -> AdapterDetail:
    cards = [card_of(version, caller) for version in versions]
    return AdapterDetail(**_fields(adapter, caller), served=served, residency=residency, versions=cards)


def _fields(adapter: AdapterVersion, caller: Caller) -> dict[str, Any]:
    is_owner = caller.is_admin or caller.tenant_id == adapter.tenant_id
    return {
        "name": adapter.name,
        "full_name": adapter.full_name,
        "owner": adapter.tenant,
        "version": adapter.version,
        "digest": adapter.ref.digest,
        "ranks": adapter.ref.ranks,
        "num_bytes": adapter.ref.num_bytes,
        "base_model": adapter.base_model,
        "registered_for": adapter.registered_for.name if adapter.registered_for else None,
        "source_uri": adapter.source_uri if is_owner else None,
        "pinned": adapter.pinned,
        "created_at": int(adapter.created_s),
    }
