"""The cluster, as the frontend's routes know it. `wire_scheduler_client` implements it over a websocket."""

from collections.abc import Callable, Collection
from typing import Protocol

from punica_frontend.scheduler_link.live_request import Backlog, LiveRequest
from punica_serve.protocol import (
    AdapterRef,
    AdapterResidency,
    ClusterHistory,
    ClusterSnapshot,
    Ending,
    GpuDetails,
    Limits,
    PromiseCounts,
    Request,
    TenantQuota,
)


class SchedulerClient(Protocol):
    """The cluster, as the routes see it."""

    @property
    def connected(self) -> bool:
        """Whether the scheduler can be reached now."""

    @property
    def limits(self) -> Limits | None:
        """The cluster's capacity; None until the scheduler has sent it."""

    @property
    def last_request_tokens(self) -> int | None:
        """``Limits.max_request_tokens`` when the cluster last had a GPU; None if it has had none."""

    async def start(
        self,
        request: Request,
        quota: TenantQuota | None,
        on_ready: Callable[[], None],
        backlog: Backlog,
        account: Callable[[Ending], None],
    ) -> LiveRequest:
        """Adds a request to the cluster. The caller must ``stop`` it in the end. Raises ClusterUnavailable.

        The scheduler enforces ``quota``, the tenant's. ``on_ready`` is called whenever the request has output to take;
        untaken output counts towards ``backlog``. ``account`` receives the request's resource usage when it has ended
        in the cluster, which may be after an early ``stop``.
        """

    def stop(self, live: LiveRequest) -> None:
        """Forgets a request, and cancels it unless it has finished. Idempotent."""

    def report_promises(self, promises: PromiseCounts) -> None:
        """Adds judged promises to those that the cluster's pages show."""

    async def cluster(self) -> ClusterSnapshot:
        """Returns the scheduler's current view. Raises ClusterUnavailable."""

    async def history(self) -> ClusterHistory:
        """Returns the last minutes of the cluster's history. Raises ClusterUnavailable."""

    async def gpu(self, gpu: str) -> GpuDetails:
        """Returns a GPU, by UUID or name, with its requests. Raises GpuNotFound or ClusterUnavailable."""

    async def drain_gpu(self, gpu: str, *, drain: bool) -> None:
        """Drains a GPU, by UUID or name, or puts it back to use.

        Raises GpuNotFound, InvalidRequest or ClusterUnavailable.
        """

    async def prefetch(self, adapter: AdapterRef, gpus: Collection[str] = (), *, pin: bool | None = None) -> None:
        """Loads an adapter to these GPUs, by UUIDs or names, or to all, before a request asks for it.

        ``pin`` True or False also pins or unpins it; see WarmAdapter. Returns once the scheduler has passed the command
        on. Raises GpuNotFound or ClusterUnavailable.
        """

    async def evict(self, digest: str) -> None:
        """Evicts an adapter everywhere as soon as no request uses it. Raises ClusterUnavailable."""

    async def residency(self, digests: Collection[str] = ()) -> tuple[AdapterResidency, ...]:
        """Returns where these adapters are, or where all adapters are. Raises ClusterUnavailable."""
