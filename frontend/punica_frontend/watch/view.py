"""A caller's view of the cluster: snapshots as JSON objects, with the names behind digests."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from punica_frontend.api.caller import Caller
from punica_serve.protocol import (
    ClusterSnapshot,
    GpuDetails,
    GpuInfo,
    GpuSnapshot,
    Mark,
    Percentiles,
    PlacedRequest,
    PrefixCaching,
    PromiseCounts,
    RecentFigures,
    ScaleAdvice,
    TokenHistogram,
)
from punica_serve.registry.registry import Registry
from punica_serve.registry.snapshot import RegistrySnapshot


class SeenAdapter(msgspec.Struct, frozen=True):
    """The adapter behind a digest."""

    #: The caller's name for it; None if it is no longer served.
    name: str | None
    #: The tenant that owns it: "shared" for one of the config file.
    owner: str | None
    #: Its highest rank.
    rank: int | None


class ClusterView(ClusterSnapshot, frozen=True):
    """The scheduler's view of the cluster, without other tenants' adapters.

    Counters count since the scheduler started.
    """

    #: The adapters on any GPU, by digest.
    adapters: dict[str, SeenAdapter] = msgspec.field(default_factory=dict)
    #: The caller's: adapters of other owners are not its own.
    tenant: str = ""


class GpuView(GpuDetails, frozen=True):
    """One GPU with the requests on it that the caller may see: its tenant's; an administrator sees all."""

    #: Requests of other tenants.
    num_other_requests: int = 0
    #: The adapters on the GPU and of these requests, by digest.
    adapters: dict[str, SeenAdapter] = msgspec.field(default_factory=dict)
    #: The caller's.
    tenant: str = ""


#: Structs of the views. Between processes they travel as arrays.
GPU_STRUCTS = (GpuView, PlacedRequest)
CLUSTER_STRUCTS = (
    ClusterView,
    SeenAdapter,
    GpuSnapshot,
    GpuInfo,
    PrefixCaching,
    ScaleAdvice,
    RecentFigures,
    Percentiles,
    PromiseCounts,
    Mark,
    TokenHistogram,
)

_encode = msgspec.json.Encoder().encode

_UNKNOWN = SeenAdapter(None, None, None)


class Viewer:
    """One caller's view. Looks up the caller's adapters once for each snapshot of the registry."""

    def __init__(self, caller: Caller, registry: Registry) -> None:
        self.caller = caller
        self._registry = registry
        self._snapshot: RegistrySnapshot | None = None
        self._adapters: Mapping[str, SeenAdapter] = {}

    def view(self, cluster: ClusterSnapshot) -> ClusterView:
        """Returns the view. Tenants see only their own digests: others' would reveal adapters with the same bytes."""
        known = self._known()
        if not self.caller.is_admin:
            cluster = replace(cluster, gpus=tuple(_without_others_adapters(gpu, known) for gpu in cluster.gpus))
        resident = {digest for gpu in cluster.gpus for digest in gpu.resident_adapters}
        return ClusterView(**asdict(cluster), adapters=_named(resident, known), tenant=self.caller.tenant)

    def gpu(self, details: GpuDetails) -> GpuView:
        """Returns the view of one GPU."""
        known = self._known()
        gpu, requests = details.gpu, details.requests
        if not self.caller.is_admin:
            gpu = _without_others_adapters(gpu, known)
            requests = tuple([request for request in requests if request.tenant_id == self.caller.tenant_id])
        digests = {*gpu.resident_adapters, *(request.digest for request in requests if request.digest is not None)}
        return GpuView(
            details.now_ns,
            gpu,
            details.used_lora_pages,
            requests,
            num_other_requests=len(details.requests) - len(requests),
            tenant=self.caller.tenant,
            adapters=_named(digests, known),
        )

    def _known(self) -> Mapping[str, SeenAdapter]:
        if (snapshot := self._registry.snapshot) is not self._snapshot:
            tenant_id, is_admin = self.caller.tenant_id, self.caller.is_admin
            self._adapters = {
                adapter.ref.digest: SeenAdapter(
                    snapshot.name_for(tenant_id, adapter),
                    adapter.tenant,
                    max(adapter.ref.ranks.values(), default=None),
                )
                for adapter in reversed(snapshot.adapters(tenant_id, is_admin=is_admin))
            }
            self._snapshot = snapshot
        return self._adapters


def _named(digests: Iterable[str], known: Mapping[str, SeenAdapter]) -> dict[str, SeenAdapter]:
    return {digest: known.get(digest, _UNKNOWN) for digest in sorted(digests)}


def _without_others_adapters(gpu: GpuSnapshot, known: Mapping[str, SeenAdapter]) -> GpuSnapshot:
    rows = zip(gpu.resident_adapters, gpu.adapters_used_ns, strict=True)
    kept = [(digest, used_ns) for digest, used_ns in rows if digest in known]
    return replace(
        gpu,
        resident_adapters=tuple(digest for digest, _ in kept),
        adapters_used_ns=tuple(used_ns for _, used_ns in kept),
        # Host caches are only counted, so a tenant's own share is unknown.
        num_cached_adapters=None,
    )


def encode(value: msgspec.Struct) -> bytes:
    """Encodes as JSON. For many GPUs this is slow enough for a thread."""
    return _encode(_as_objects(value))


def _as_objects(value: Any) -> Any:
    """Turns structs, which travel as arrays between processes, into objects with named fields."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        return tag | {name: _as_objects(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        if any(isinstance(item, msgspec.Struct) for item in value):
            return [_as_objects(item) for item in value]
        return value  # long columns have plain numbers
    if isinstance(value, dict):
        return {key: _as_objects(item) for key, item in value.items()}
    return value
