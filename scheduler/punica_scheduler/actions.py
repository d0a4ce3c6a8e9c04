"""What the scheduler wants done: orders, in the imperative, each with its address."""

from dataclasses import dataclass

from punica_serve.protocol import AssignmentId, Deliveries, Limits, Request, ScaleAdvice, WireError


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
class DrainAnswered:
    """Tell a frontend that a GPU is being drained, or is used again, or why not."""

    frontend_id: str
    call_id: int
    error: WireError | None = None


@dataclass(frozen=True, slots=True)
class Advise:
    """Tell whoever runs the cluster what it should become. Only what differs from before is said."""

    advice: ScaleAdvice


Action = Start | Stop | Deliver | AnnounceLimits | RunnerDrained | DrainAnswered | Advise
