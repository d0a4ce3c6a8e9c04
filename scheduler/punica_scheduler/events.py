"""What the scheduler is told: facts, in the past tense."""

from dataclasses import dataclass

from punica_serve import protocol


@dataclass(frozen=True, slots=True)
class FrontendJoined:
    """A frontend's link is up. One of the same id counts as lost."""

    frontend_id: str


@dataclass(frozen=True, slots=True)
class FrontendLost:
    """A frontend's link is down: nobody hears its requests any more."""

    frontend_id: str


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A frontend added a request: a new one, or again one that it owns, with the tokens it holds."""

    frontend_id: str
    #: The frontend's own number of it.
    handle: int
    request: protocol.Request
    #: Of the request's tenant.
    quota: protocol.TenantQuota | None = None
    #: False: its frontend has added it before, so it is not refused for a quota.
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    frontend_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class RunnerJoined:
    """A runner's link is up. One of the same id counts as lost."""

    runner_id: str


@dataclass(frozen=True, slots=True)
class RunnerLost:
    """A runner's link is down: all its GPUs are lost at once."""

    runner_id: str


@dataclass(frozen=True, slots=True)
class RunnerDrainRequested:
    """A runner is about to stop, and waits for its GPUs to be empty."""

    runner_id: str


@dataclass(frozen=True, slots=True)
class GpuDrainRequested:
    """Someone wants a GPU drained, or used again."""

    frontend_id: str
    #: What the frontend calls its question.
    call_id: int
    gpu_uuid: str
    drain: bool


@dataclass(frozen=True, slots=True)
class GpuJoined:
    """A worker is ready, with an empty working set. One of the same UUID counts as lost."""

    runner_id: str
    gpu: protocol.GpuInfo


@dataclass(frozen=True, slots=True)
class GpuLost:
    """A worker has died or was given up, says its runner."""

    gpu_uuid: str


@dataclass(frozen=True, slots=True)
class StepFinished:
    report: protocol.StepReport


@dataclass(frozen=True, slots=True)
class AssignmentsFailed:
    failure: protocol.AssignmentsFailed


@dataclass(frozen=True, slots=True)
class AdaptersCached:
    """What a worker's host memory, or a runner's disk, has now that it had not, and the other way round."""

    runner_id: str
    change: protocol.AdaptersCached


@dataclass(frozen=True, slots=True)
class WarmingRequested:
    """Someone wants an adapter on GPUs before a request does."""

    frontend_id: str
    call: protocol.WarmAdapter


@dataclass(frozen=True, slots=True)
class ForgettingRequested:
    """Someone wants an adapter gone from everywhere."""

    frontend_id: str
    call: protocol.ForgetAdapter


@dataclass(frozen=True, slots=True)
class Tick:
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
