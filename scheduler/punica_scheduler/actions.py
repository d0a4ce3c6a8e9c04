"""What the scheduler wants done: orders, in the imperative, each with its address."""

from dataclasses import dataclass

from punica_serve.protocol import AssignmentId, Delivery, Limits, Request


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
    """Hand tokens, the end of a request, or both to the frontend that owns it."""

    frontend_id: str
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class AnnounceLimits:
    """Tell a frontend what the cluster can hold now."""

    frontend_id: str
    limits: Limits


Action = Start | Stop | Deliver | AnnounceLimits
