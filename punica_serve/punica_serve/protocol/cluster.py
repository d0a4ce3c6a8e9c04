"""The cluster as people see it, and the answers to the unary calls that ask for it."""

from typing import Literal

from msgspec import Raw

from punica_serve.protocol.base import Message, Struct
from punica_serve.protocol.request import WireError
from punica_serve.protocol.runner import GpuInfo


class GpuSnapshot(Struct, frozen=True):
    """One GPU in /v1/cluster."""

    gpu: GpuInfo
    runner_id: str
    #: Requests placed and not stopped.
    working_set: int
    #: Requests in the newest step, and different adapters among them.
    batch_size: int
    num_adapters: int
    free_kv_pages: int
    resident_adapters: tuple[str, ...]
    steps: int
    tokens: int
    #: Nothing new is placed there, and what runs there is moved.
    is_draining: bool = False
    #: Of each resident adapter, when a request last used it: now, while one does; 0 for never.
    adapters_used_ns: tuple[int, ...] = ()
    #: Adapters in its worker's host memory.
    num_cached_adapters: int = 0


class Percentiles(Struct, frozen=True):
    """The times that half, nine tenths and all but a hundredth of them did not exceed, in seconds."""

    p50: float
    p90: float
    p99: float


class RecentFigures(Struct, frozen=True):
    """Of the cluster in the newest ``window_s`` seconds. A window of no length says nothing."""

    window_s: float = 0.0
    requests_per_s: float = 0.0
    tokens_per_s: float = 0.0
    #: From a request's admission to its first token; None where no request got one.
    first_token_s: Percentiles | None = None
    #: Between two tokens of a request that stays on its GPU.
    inter_token_s: Percentiles | None = None


MarkKind = Literal[
    "scheduler_started",
    "gpu_joined",
    "gpu_left",
    "gpu_lost",
    "gpu_drained",
    "gpu_taken_back",
    "evicted",
    "migrated",
    "consolidated",
]


class Mark(Struct, frozen=True):
    """Something that happened, ``count`` times within a second. Until that is over, the count may grow."""

    #: Of this incarnation, from 1.
    number: int
    at_ns: int
    kind: MarkKind
    #: Where; None: on several, or on none.
    gpu_uuid: str | None
    count: int


class ScaleAdvice(Struct, frozen=True):
    """What the fleet should become."""

    num_more_gpus: int = 0
    #: Runners whose GPUs are all idle.
    releasable_runners: tuple[str, ...] = ()


class ClusterSnapshot(Struct, frozen=True):
    """The scheduler's whole view. Counters count since the incarnation began."""

    incarnation: int
    now_ns: int
    gpus: tuple[GpuSnapshot, ...]
    queue_length: int
    num_frontends: int
    num_runners: int
    #: "arrived", "finished", "cancelled", "failed", "tokens", "evictions", "migrations", "consolidations",
    #: "gpus_lost".
    counters: dict[str, int]
    advice: ScaleAdvice = ScaleAdvice()
    recent: RecentFigures = RecentFigures()
    #: The newest, oldest first.
    marks: tuple[Mark, ...] = ()


class ClusterReply(Message, frozen=True):
    call_id: int
    cluster: ClusterSnapshot


class GpuHistory(Struct, frozen=True):
    """None where the GPU was not in the cluster."""

    batch_size: tuple[int | None, ...]
    used_kv_pages: tuple[int | None, ...]


class ClusterHistory(Struct, frozen=True):
    """The last minutes in columns, a row a second, oldest first."""

    at_ns: tuple[int, ...]
    #: The counters of these names.
    arrived: tuple[int, ...]
    tokens: tuple[int, ...]
    queue_length: tuple[int, ...]
    first_token_s: tuple[Percentiles | None, ...]
    inter_token_s: tuple[Percentiles | None, ...]
    #: By UUID.
    gpus: dict[str, GpuHistory]


class HistoryReply(Message, frozen=True):
    call_id: int
    #: A ClusterHistory, which its sender encodes once for many replies.
    history: Raw


class AdapterResidency(Struct, frozen=True):
    """Where an adapter is."""

    digest: str
    #: Requests that run or wait for it.
    num_live: int = 0
    #: UUIDs of the GPUs in whose memory it is.
    gpus: tuple[str, ...] = ()
    #: UUIDs of the GPUs whose workers hold it in host memory.
    hosts: tuple[str, ...] = ()
    #: Runners that have it on disk.
    disks: tuple[str, ...] = ()


class ResidencyReply(Message, frozen=True):
    """Of the digests that were asked for, those that are anywhere or in use."""

    call_id: int
    adapters: tuple[AdapterResidency, ...] = ()


class CallReply(Message, frozen=True):
    """The answer to calls that give nothing back. ``error`` is None where it was done, or has begun."""

    call_id: int
    error: WireError | None = None
