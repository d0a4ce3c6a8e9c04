"""A cluster in memory that answers at once, with the prompt."""

import asyncio
from collections.abc import Callable, Collection, Iterable

import msgspec
from msgspec.structs import asdict

from byte_tokens import EOS
from punica_frontend.api.errors import SlowReader
from punica_frontend.scheduler_link.live_request import Backlog, Delivery, LiveRequest
from punica_serve.errors import ClusterUnavailable, GpuNotFound
from punica_serve.protocol import (
    NO_PROMISES,
    AdapterRef,
    AdapterResidency,
    ClusterHistory,
    ClusterSnapshot,
    Ending,
    EndReason,
    GpuDetails,
    GpuHistory,
    GpuInfo,
    GpuSnapshot,
    Limits,
    Mark,
    Percentiles,
    PlacedRequest,
    PrefixCaching,
    PromiseCounts,
    RateLimits,
    RecentFigures,
    Request,
    ScaleAdvice,
    TenantQuota,
    TokenLogprobs,
    WireError,
)

#: Times that every request takes.
GPU_S = 0.25
QUEUE_S = 0.5
PREFILL_S = 0.25


class EchoCluster:
    """Answers each request with its prompt and an end of sequence; a SchedulerClient in memory."""

    def __init__(self) -> None:
        self.connected = True
        self.limits: Limits | None = Limits(num_gpus=1, max_request_tokens=None)
        self.last_request_tokens: int | None = None
        self.requests: list[Request] = []
        self.quotas: list[TenantQuota | None] = []
        self.live: set[str] = set()
        self.cancelled: list[str] = []
        self.failed: list[str] = []
        #: Tokens given out, all requests together.
        self.num_tokens = 0
        #: Requests wait for ``resumed`` before the token of this position.
        self.pause_at: int | None = None
        self.resumed = asyncio.Event()
        self.turns_per_token = 5
        self.answer: Callable[[Request], Iterable[int]] = lambda request: [*request.prompt_ids, EOS]
        #: The request ends with it instead of its token at ``fail_at``: an error of the cluster's, or a bug of ours.
        self.failure: WireError | Exception | None = None
        self.fail_at = 0
        #: The remaining limits that it reports for every tenant.
        self.rate_limits: RateLimits | None = None
        #: Cached tokens of every prompt; None: its GPU shares no pages.
        self.num_cached_tokens: int | None = None
        #: Tokens that its GPU looked up and found in cached pages; None: it shares no pages.
        self.prefix_tokens: tuple[int, int] | None = None
        #: Judged promises, as frontends report them.
        self.promises = NO_PROMISES
        self.drained: set[str] = set()
        #: Digests.
        self.resident_adapters: tuple[str, ...] = ("d1",)
        #: By digest.
        self.resident: dict[str, AdapterResidency] = {}
        self.pinned: set[str] = set()
        #: By the scheduler's clock.
        self.now_ns = 2
        self.marks: list[Mark] = []
        self.incarnation = 1
        self.batch_size_mean, self.batch_size_max = 1.0, 1
        self.step_time_ratio: float | None = None
        #: On its GPU.
        self.placed: list[PlacedRequest] = []
        #: How often it was asked for its past.
        self.num_histories = 0
        #: Digests of adapters that stay resident though they are to be evicted.
        self.in_use: set[str] = set()
        self._answering: dict[int, asyncio.Task[None]] = {}

    async def start(
        self,
        request: Request,
        quota: TenantQuota | None,
        on_ready: Callable[[], None],
        backlog: Backlog,
        account: Callable[[Ending], None],
    ) -> LiveRequest:
        self.requests.append(request)
        self.quotas.append(quota)
        self.live.add(request.request_id)
        live = LiveRequest(len(self.requests), request, quota, on_ready, backlog, account)
        live.num_cached_tokens = self.num_cached_tokens
        if limits := self.rate_limits:
            live.rate_limits = msgspec.structs.replace(limits, handle=live.handle)
            left = max(0, (limits.remaining_requests or 0) - 1)
            self.rate_limits = msgspec.structs.replace(limits, remaining_requests=left)
        self._answering[live.handle] = asyncio.create_task(self._answer(live))
        return live

    def stop(self, live: LiveRequest) -> None:
        self._answering.pop(live.handle).cancel()
        self.live.discard(live.request.request_id)
        if not live.is_finished:
            self.cancelled.append(live.request.request_id)

    def report_promises(self, promises: PromiseCounts) -> None:
        self.promises += promises

    @property
    def digests(self) -> list[str | None]:
        """Digests of the adapters of all requests so far; None is the base model."""
        return [request.adapter.digest if request.adapter else None for request in self.requests]

    async def _answer(self, live: LiveRequest) -> None:
        sampling = live.request.sampling
        for position, token_id in enumerate(self.answer(live.request)):
            if position == self.pause_at:
                await self.resumed.wait()
            if self.failure and position == self.fail_at:
                fail(live, self.failure)
                return
            self.num_tokens += 1
            logprobs = None if sampling.logprobs is None else TokenLogprobs(-0.5, (token_id,), (-0.5,))
            is_last = token_id == EOS or position + 1 == sampling.max_tokens
            try:
                live.accept(position, token_id, logprobs, is_last=is_last)
            except SlowReader as error:
                self.failed.append(live.request.request_id)
                live.fail(WireError.of(error))
                return
            if is_last:
                reason: EndReason = "stop" if token_id == EOS else "length"
                ending = Ending(live.handle, position + 1, reason, gpu_s=GPU_S, queue_s=QUEUE_S, prefill_s=PREFILL_S)
                live.end(ending)
                live.account(ending)
                return
            # Time for everybody on the way to the client to take it before the next one comes.
            for _ in range(self.turns_per_token):
                await asyncio.sleep(0)

    async def cluster(self) -> ClusterSnapshot:
        self._check_connected()
        sharing = None if self.prefix_tokens is None else PrefixCaching("model")
        info = GpuInfo("CPU-1", "cpu", 32, 16, 100, {"qkv": 8}, "host/0", prefix_caching=sharing)
        num_looked_up, num_found = self.prefix_tokens or (0, 0)
        is_draining = "CPU-1" in self.drained
        gpu = GpuSnapshot(
            gpu=info,
            runner_id="host",
            working_set=2,
            free_kv_pages=90,
            resident_adapters=self.resident_adapters,
            steps=7,
            tokens=11,
            is_draining=is_draining,
            adapters_used_ns=tuple(range(1, len(self.resident_adapters) + 1)),
            num_cached_adapters=5,
            batch_size_mean=self.batch_size_mean,
            batch_size_max=self.batch_size_max,
            num_known_kv_pages=num_found // info.page_size,
            prefix_cache_queries=num_looked_up,
            prefix_cache_hits=num_found,
            num_adapters=1,
            step_time_ratio=self.step_time_ratio,
        )
        counters = {"arrived": 3, "tokens": 11} | (asdict(self.promises) if self.promises else {})
        advice, recent = ScaleAdvice(1, ("host",)), RecentFigures(promises=self.promises)
        return ClusterSnapshot(
            self.incarnation, self.now_ns, (gpu,), 0, 1, 1, counters, advice, recent, tuple(self.marks)
        )

    async def history(self) -> ClusterHistory:
        self._check_connected()
        self.num_histories += 1
        times = (Percentiles(0.1, 0.2, 0.3),)
        return ClusterHistory(
            (1,), (2,), (10,), (0,), times, times, {"CPU-1": GpuHistory((1.0,), (1,), (10,), "host/0")}
        )

    async def gpu(self, gpu: str) -> GpuDetails:
        cluster = await self.cluster()
        found = next((seen for seen in cluster.gpus if gpu in (seen.gpu.uuid, seen.gpu.name)), None)
        if found is None:
            raise GpuNotFound(f"no GPU {gpu!r} is in the cluster")
        return GpuDetails(cluster.now_ns, found, {"qkv": 3}, tuple(self.placed))

    async def drain_gpu(self, gpu: str, *, drain: bool) -> None:
        if gpu != "CPU-1":
            raise GpuNotFound(f"no GPU {gpu!r}; there are CPU-1")
        (self.drained.add if drain else self.drained.discard)(gpu)

    async def prefetch(self, adapter: AdapterRef, gpus: Collection[str] = (), *, pin: bool | None = None) -> None:
        if unknown := set(gpus) - {"CPU-1"}:
            raise GpuNotFound(f"no GPU {min(unknown)!r}; there are CPU-1")
        self._check_connected()
        where = ("CPU-1",)
        self.resident[adapter.digest] = AdapterResidency(adapter.digest, gpus=where, hosts=where, disks=("host",))
        if pin is not None:
            (self.pinned.add if pin else self.pinned.discard)(adapter.digest)

    async def evict(self, digest: str) -> None:
        self._check_connected()
        self.pinned.discard(digest)
        if digest not in self.in_use:
            self.resident.pop(digest, None)

    async def residency(self, digests: Collection[str] = ()) -> tuple[AdapterResidency, ...]:
        self._check_connected()
        return tuple(self.resident[digest] for digest in digests or self.resident if digest in self.resident)

    def _check_connected(self) -> None:
        if not self.connected:
            raise ClusterUnavailable("the scheduler can't be reached; try again")


def fail(live: LiveRequest, failure: WireError | Exception) -> None:
    """Ends a request with an error. An exception that is none of ours comes up where its tokens are taken."""

    def raise_it() -> Delivery:
        assert isinstance(failure, Exception)
        raise failure

    if isinstance(failure, WireError):
        live.fail(failure)
    else:
        live.take = raise_it  # type: ignore[method-assign]
        live.fail(WireError("never", "seen"))
