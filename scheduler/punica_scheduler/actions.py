"""What the scheduler wants done: orders, in the imperative, each with its address."""

from dataclasses import dataclass

from punica_serve.protocol import AdapterRef, AssignmentId, Deliveries, Limits, Request, ScaleAdvice, WireError


@dataclass(frozen=True, slots=True)
class Start:
    """Run the request on this GPU, from where it is. ``seq`` counts the commands to the GPU since it joined."""

    gpu_uuid: str
    seq: int
    assignment: AssignmentId
    request: Request


@dataclass(frozen=True, slots=True)
class Stop:
    """Drop this assignment and free its pages."""

    gpu_uuid: str
    seq: int
    assignment: AssignmentId


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand a frontend what an event has for its requests: tokens, and ends. Once for each frontend, before all else."""

    frontend_id: str
    deliveries: Deliveries


@dataclass(frozen=True, slots=True)
class AnnounceLimits:
    """Tell a frontend what the cluster can hold now."""

    frontend_id: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class RunnerDrained:
    """Tell a runner that asked for it that nothing is left on its GPUs."""

    runner_id: str


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """Tell a frontend that what it called for was done, or has begun, or why not."""

    frontend_id: str
    call_id: int
    error: WireError | None = None


@dataclass(frozen=True, slots=True)
class Warm:
    """Bring an adapter to a GPU and its worker's host memory."""

    gpu_uuid: str
    adapter: AdapterRef
    pin: bool | None


@dataclass(frozen=True, slots=True)
class Forget:
    """Have a runner and its workers drop an adapter that no request uses."""

    runner_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class Advise:
    """Tell whoever runs the cluster what it should become. Only what differs from before is said."""

    advice: ScaleAdvice


Action = Start | Stop | Deliver | AnnounceLimits | RunnerDrained | CallAnswered | Warm | Forget | Advise
