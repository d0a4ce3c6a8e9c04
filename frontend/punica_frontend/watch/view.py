"""What a caller may see of the cluster: objects of a snapshot's fields, and the names behind its digests."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from punica_frontend.caller import Caller
from punica_serve.protocol import ClusterSnapshot, GpuInfo, GpuSnapshot, Mark, Percentiles, RecentFigures, ScaleAdvice
from punica_serve.registry.registry import Registry
from punica_serve.registry.snapshot import RegistrySnapshot


class SeenAdapter(msgspec.Struct, frozen=True):
    """What stands behind a digest."""

    #: By which the caller gets it; None for one that is served no more.
    name: str | None
    #: Its highest.
    rank: int | None


class ClusterView(ClusterSnapshot, frozen=True):
    """The cluster as its scheduler sees it, less other tenants' adapters.

    Counters count since the incarnation began.
    """

    #: By digest: those that are resident on any GPU.
    adapters: dict[str, SeenAdapter] = msgspec.field(default_factory=dict)


#: What the cluster is told with. Between processes they travel as arrays.
CLUSTER_STRUCTS = (
    ClusterView,
    SeenAdapter,
    GpuSnapshot,
    GpuInfo,
    ScaleAdvice,
    RecentFigures,
    Percentiles,
    Mark,
)

_encode = msgspec.json.Encoder().encode

_UNKNOWN = SeenAdapter(None, None)


class Viewer:
    """One caller's eyes. What the registry lets them see is looked up once for each of its snapshots."""

    def __init__(self, caller: Caller, registry: Registry) -> None:
        self.caller = caller
        self._registry = registry
        self._snapshot: RegistrySnapshot | None = None
        self._adapters: Mapping[str, SeenAdapter] = {}

    def view(self, cluster: ClusterSnapshot) -> ClusterView:
        """Digests tell whether others have an adapter of the same bytes: administrators see all, tenants their own."""
        known = self._known()
        if not self.caller.is_admin:
            cluster = replace(cluster, gpus=tuple(_less_others(gpu, known) for gpu in cluster.gpus))
        resident = {digest for gpu in cluster.gpus for digest in gpu.resident_adapters}
        adapters = {digest: known.get(digest, _UNKNOWN) for digest in sorted(resident)}
        return ClusterView(**asdict(cluster), adapters=adapters)

    def _known(self) -> Mapping[str, SeenAdapter]:
        if (snapshot := self._registry.snapshot) is not self._snapshot:
            tenant, is_admin = self.caller.tenant, self.caller.is_admin
            self._adapters = {
                adapter.ref.digest: SeenAdapter(
                    snapshot.name_for(tenant, adapter), max(adapter.ref.ranks.values(), default=None)
                )
                for adapter in reversed(snapshot.adapters(tenant, is_admin=is_admin))
            }
            self._snapshot = snapshot
        return self._adapters


def _less_others(gpu: GpuSnapshot, known: Mapping[str, SeenAdapter]) -> GpuSnapshot:
    rows = zip(gpu.resident_adapters, gpu.adapters_used_ns, strict=True)
    kept = [(digest, used_ns) for digest, used_ns in rows if digest in known]
    return replace(
        gpu,
        resident_adapters=tuple(digest for digest, _ in kept),
        adapters_used_ns=tuple(used_ns for _, used_ns in kept),
    )


def encode(value: msgspec.Struct) -> bytes:
    """As JSON. What tells of many GPUs takes so long that it is for a thread."""
    return _encode(_as_objects(value))


def _as_objects(value: Any) -> Any:
    """Structs, which travel as arrays between processes, to objects with named fields."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        return tag | {name: _as_objects(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        if any(isinstance(item, msgspec.Struct) for item in value):
            return [_as_objects(item) for item in value]
        return value  # long columns are of plain numbers
    if isinstance(value, dict):
        return {key: _as_objects(item) for key, item in value.items()}
    return value
