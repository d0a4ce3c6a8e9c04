"""What the scheduler wants done: orders, in the imperative, each with its address."""

from msgspec import Struct

from punica_serve.protocol import AdapterRef, AssignmentId, Deliveries, Limits, Request, ScaleAdvice, WireError


class Start(Struct, frozen=True):
    """Run the request on this GPU, from where it is. ``seq`` counts the commands to the GPU since it joined."""

    gpu_uuid: str
    seq: int
    assignment: AssignmentId
    request: Request


class Stop(Struct, frozen=True):
    """Drop this assignment and free its pages."""

    gpu_uuid: str
    seq: int
    assignment: AssignmentId


class Deliver(Struct, frozen=True):
    """Hand a frontend what an event has for its requests: tokens, and ends. Once for each frontend, before all else."""

    frontend_id: str
    deliveries: Deliveries


class AnnounceLimits(Struct, frozen=True):
    """Tell a frontend what the cluster can hold now."""

    frontend_id: str
    limits: Limits


class RunnerDrained(Struct, frozen=True):
    """Tell a runner that asked for it that nothing is left on its GPUs."""

    runner_id: str


class CallAnswered(Struct, frozen=True):
    """Tell a frontend that what it called for was done, or has begun, or why not."""

    frontend_id: str
    call_id: int
    error: WireError | None = None


class Warm(Struct, frozen=True):
    """Bring an adapter to a GPU and its worker's host memory."""

    gpu_uuid: str
    adapter: AdapterRef
    pin: bool | None


class Forget(Struct, frozen=True):
    """Have a runner and its workers drop an adapter that no request uses."""

    runner_id: str
    digest: str


class Advise(Struct, frozen=True):
    """Tell whoever runs the cluster what it should become. Only what differs from before is said."""

    advice: ScaleAdvice


Action = Start | Stop | Deliver | AnnounceLimits | RunnerDrained | CallAnswered | Warm | Forget | Advise
