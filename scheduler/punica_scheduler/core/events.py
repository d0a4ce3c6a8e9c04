"""Events: facts that the scheduler learns, in the past tense."""

from msgspec import Struct

from punica_serve import protocol


class FrontendJoined(Struct, frozen=True):
    """A frontend's link is up. An older link of the same id counts as lost."""

    frontend_id: str


class FrontendLost(Struct, frozen=True):
    """A frontend's link is down: nobody receives its requests' tokens any more."""

    frontend_id: str


class RequestArrived(Struct, frozen=True):
    """A frontend added a request: a new one, or again one that it owns, with the tokens it holds."""

    frontend_id: str
    #: The frontend's own number of it.
    handle: int
    request: protocol.Request
    #: The quota of the request's tenant.
    quota: protocol.TenantQuota | None = None
    #: False: its frontend has added it before, so it is not refused for a quota.
    is_new: bool = True


class RequestCancelled(Struct, frozen=True):
    frontend_id: str
    request_id: str


class RunnerJoined(Struct, frozen=True):
    """A runner's link is up. An older link of the same id counts as lost."""

    runner_id: str


class RunnerLost(Struct, frozen=True):
    """A runner's link is down: all its GPUs are lost at once."""

    runner_id: str


class RunnerDrainRequested(Struct, frozen=True):
    """A runner is about to stop, and waits for its GPUs to be empty."""

    runner_id: str


class GpuDrainRequested(Struct, frozen=True):
    """An operator asked to drain a GPU, or to use it again."""

    frontend_id: str
    #: The frontend's number for this call.
    call_id: int
    #: Its UUID or its name.
    gpu: str
    drain: bool


class GpuJoined(Struct, frozen=True):
    """A worker is ready, with an empty working set. An older GPU of the same UUID counts as lost."""

    runner_id: str
    gpu: protocol.GpuInfo


class GpuLost(Struct, frozen=True):
    """A runner reported that a worker died or was given up."""

    gpu_uuid: str


class StepFinished(Struct, frozen=True):
    report: protocol.StepReport


class AssignmentsFailed(Struct, frozen=True):
    failure: protocol.AssignmentsFailed


class AdaptersCached(Struct, frozen=True):
    """Adapters entered or left a worker's host memory, or a runner's disk."""

    runner_id: str
    change: protocol.AdaptersCached


class WarmingRequested(Struct, frozen=True):
    """An adapter is to be prefetched to GPUs."""

    frontend_id: str
    call: protocol.WarmAdapter


class ForgettingRequested(Struct, frozen=True):
    """An adapter is to be evicted everywhere."""

    frontend_id: str
    call: protocol.ForgetAdapter


class Tick(Struct, frozen=True):
    """Time has passed; nothing else."""


Event = (
    FrontendJoined
    | FrontendLost
    | RequestArrived
    | RequestCancelled
    | RunnerJoined
    | RunnerLost
    | RunnerDrainRequested
    | GpuDrainRequested
    | GpuJoined
    | GpuLost
    | StepFinished
    | AssignmentsFailed
    | AdaptersCached
    | WarmingRequested
    | ForgettingRequested
    | Tick
)
