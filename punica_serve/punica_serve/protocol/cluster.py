"""Snapshots and history of the cluster, and the answers to unary calls."""

from typing import Literal

from msgspec import Raw

from punica_serve.protocol.base import LoraGroup, Message, Struct
from punica_serve.protocol.request import WireError
from punica_serve.protocol.runner import GpuInfo
from punica_serve.protocol.slo import NO_PROMISES, PromiseCounts


class GpuSnapshot(Struct, frozen=True):
    """One GPU in /v1/cluster."""

    gpu: GpuInfo
    runner_id: str
    #: Requests placed and not stopped.
    working_set: int
    free_kv_pages: int
    resident_adapters: tuple[str, ...]
    steps: int
    tokens: int
    #: Nothing new is placed there, and its requests are moved.
    is_draining: bool = False
    #: When a request last used each resident adapter: now, while one uses it; 0 for never.
    adapters_used_ns: tuple[int, ...] = ()
    #: Adapters of all tenants in the worker's host memory; None if the caller may not know.
    num_cached_adapters: int | None = 0
    #: Requests in a step, over the steps of the last second: their mean and the most. 0 if it ran none.
    batch_size_mean: float = 0.0
    batch_size_max: int = 0
    #: The most distinct adapters in one of these steps.
    num_adapters: int = 0
    #: Measured time of steps over the time that the scheduler's profile predicts, a moving mean; None without a profile
    #: and until enough steps were compared.
    step_time_ratio: float | None = None
    #: KvCache pages that a request could find, also free ones.
    num_known_kv_pages: int = 0
    #: Since its worker started: tokens of requests that began to share pages, and those of them that were found and so
    #: not computed.
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


class Percentiles(Struct, frozen=True):
    """Percentiles in seconds."""

    p50: float
    p90: float
    p99: float


class RecentFigures(Struct, frozen=True):
    """Rolling statistics of the cluster over the newest ``window_s`` seconds. A window of 0 has no data."""

    window_s: float = 0.0
    requests_per_s: float = 0.0
    tokens_per_s: float = 0.0
    #: From a request's admission to its first token; None if no request got one.
    first_token_s: Percentiles | None = None
    #: Between successive tokens of a request that stays on its GPU.
    inter_token_s: Percentiles | None = None
    #: Promises that frontends judged within the window.
    promises: PromiseCounts = NO_PROMISES


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
    """A cluster event that happened ``count`` times within a second. The count may grow until the second is over."""

    #: Counts the marks of this incarnation, from 1.
    number: int
    at_ns: int
    kind: MarkKind
    #: The GPUs, each once, and no more than the first few hundred; empty for an event of none.
    gpu_uuids: tuple[str, ...]
    count: int


class ScaleAdvice(Struct, frozen=True):
    """How the fleet should change."""

    num_more_gpus: int = 0
    #: Runners whose GPUs are all idle.
    releasable_runners: tuple[str, ...] = ()


class TokenHistogram(Struct, frozen=True):
    """Numbers of tokens, counted in buckets. A number belongs to the first bucket whose bound is not below it."""

    #: Upper bounds; one more bucket follows, without a bound.
    bounds: tuple[int, ...] = ()
    counts: tuple[int, ...] = (0,)
    #: All numbers added up.
    sum: int = 0


class ClusterSnapshot(Struct, frozen=True):
    """The scheduler's whole view. Counters count since the incarnation began."""

    incarnation: int
    now_ns: int
    gpus: tuple[GpuSnapshot, ...]
    queue_length: int
    num_frontends: int
    num_runners: int
    #: "arrived", "finished", "cancelled", "failed", "tokens", "evictions", "migrations", "consolidations",
    #: "gpus_lost"; and those of PromiseCounts, as far as frontends have told of them.
    counters: dict[str, int]
    advice: ScaleAdvice = ScaleAdvice()
    recent: RecentFigures = RecentFigures()
    #: The newest cluster events, oldest first.
    marks: tuple[Mark, ...] = ()
    #: Tokens that each step of all GPUs computed: prompt tokens of its prefill, and one for each request that decoded.
    step_tokens: TokenHistogram = TokenHistogram()


class ClusterReply(Message, frozen=True):
    call_id: int
    cluster: ClusterSnapshot


class GpuHistory(Struct, frozen=True):
    """Columns of one GPU. None: the GPU was not in the cluster then."""

    #: Over the steps of the second; see GpuSnapshot.
    batch_size_mean: tuple[float | None, ...]
    batch_size_max: tuple[int | None, ...]
    used_kv_pages: tuple[int | None, ...]
    name: str = ""


class ClusterHistory(Struct, frozen=True):
    """The last minutes in columns, with a row for each second, oldest first."""

    at_ns: tuple[int, ...]
    #: Values of the counters with these names.
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


class PlacedRequest(Struct, frozen=True):
    """A request on a GPU."""

    request_id: str
    #: None, here and for ``tenant``: the request has no tenant.
    tenant_id: str | None
    tenant: str | None
    #: Digest of its adapter; None runs the base model.
    digest: str | None
    num_prompt_tokens: int
    num_generated_tokens: int
    max_tokens: int
    #: When the scheduler got it.
    admitted_ns: int


class GpuDetails(Struct, frozen=True):
    """One GPU with the requests that are placed on it, oldest first: at most ``max_batch_size``."""

    now_ns: int
    gpu: GpuSnapshot
    #: Pages of the LoRA pool that adapters of these requests take, in each group.
    used_lora_pages: dict[LoraGroup, int]
    requests: tuple[PlacedRequest, ...]


class GpuReply(Message, frozen=True):
    call_id: int
    details: GpuDetails


class AdapterResidency(Struct, frozen=True):
    """The places where an adapter is."""

    digest: str
    #: Requests that use it, running or waiting.
    num_live: int = 0
    #: UUIDs of the GPUs that have it in their memory.
    gpus: tuple[str, ...] = ()
    #: UUIDs of the GPUs whose workers hold it in host memory.
    hosts: tuple[str, ...] = ()
    #: Runners that have it on disk.
    disks: tuple[str, ...] = ()


class ResidencyReply(Message, frozen=True):
    """The requested adapters that are somewhere or in use."""

    call_id: int
    adapters: tuple[AdapterResidency, ...] = ()


class CallReply(Message, frozen=True):
    """The answer to calls without a result. ``error`` is None if the work is done, or has begun."""

    call_id: int
    error: WireError | None = None
