"""Predicts when copies to the device will have arrived, and so how long a step that starts before would wait.

Copies share one stream, first come, first served. One that fills pages which a step may still read begins when that
step has ended (its fence).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from punica_serve.engine.adapters.adapter_peers import GroupCopy
from punica_serve.engine.adapters.layer_arrival import LayerArrival

#: Recent copies that count: their median is the usual rate, and a hiccup is forgotten after so many.
_NUM_RATES = 9


@dataclass(frozen=True, slots=True)
class StepForecast:
    """The step that would be launched now: when the device begins it, and how long it lasts at least, in seconds."""

    starts_in_s: float
    lasts_s: float


@dataclass(frozen=True, slots=True)
class CopyUnderWay:
    """A copy of an adapter to the device, and to those of its peers."""

    arrival: LayerArrival
    num_groups: int
    num_bytes: int
    fences: tuple[torch.cuda.Event, ...]
    group: GroupCopy
    #: The bytes of all layers that are still to arrive, where these come together, with the last of them.
    bytes_to_come: Callable[[], int] | None = None

    @property
    def is_fenced(self) -> bool:
        """Whether it waits for a step to end."""
        return not self.group.done.done() and any(not fence.query() for fence in self.fences)

    def bytes_left(self, num_groups: int, rate: float) -> float:
        """Bytes of the first groups that are still to arrive on the last rank: none once the copy has ended, even
        badly. A peer tells only that its copy has begun; since then it had ``rate`` at least, in bytes per second.
        """
        if self.group.done.done():
            return 0.0
        return max(self._own_bytes_left(num_groups), self._peers_bytes_left(num_groups, rate))

    def _own_bytes_left(self, num_groups: int) -> float:
        num_missing = max(0, num_groups - self.arrival.num_arrived)
        if self.bytes_to_come is not None:
            return self.bytes_to_come() if num_missing else 0.0
        return num_missing * self.num_bytes / self.num_groups

    def _peers_bytes_left(self, num_groups: int, rate: float) -> float:
        num_bytes, queued_s = num_groups * self.num_bytes / self.num_groups, self.group.queued_s
        return num_bytes if queued_s is None else num_bytes - rate * (time.perf_counter() - queued_s)


class CopyForecast:
    """The copies under way and their rate. Used by the step loop, but for ``record_rate``."""

    def __init__(self) -> None:
        self._under_way: list[CopyUnderWay] = []
        #: Bytes per second of the newest copies; unknown at first.
        self._rates: tuple[float, ...] = ()

    def add(self, copy: CopyUnderWay) -> None:
        """Adds a copy that was queued behind the others."""
        self._under_way = [other for other in self._under_way if not other.group.done.done()]
        self._under_way.append(copy)

    def record_rate(self, num_bytes: int, duration_s: float) -> None:
        """Records the time of a copy that had the link for itself. Any thread may call it."""
        if duration_s > 0:
            self._rates = (*self._rates, num_bytes / duration_s)[-_NUM_RATES:]

    def hold_s(self, arrival: LayerArrival, step: StepForecast) -> float | None:
        """The longest time that the step would wait for layers of this copy; None if that is unknown.

        Its decodes are held as long, so the slowest recent copy counts.
        """
        arrives_in_s = self._arrives_in_s(arrival, step, min(self._rates, default=0.0))
        return None if arrives_in_s is None else hold_s(arrives_in_s, step)

    def arrives_in_s(self, arrival: LayerArrival, step: StepForecast) -> list[float] | None:
        """Seconds until each group of layers is there, 0 once it is; None if that is unknown.

        For a choice between waiting and doing without the copy, so it is taken to be as fast as usual: the slowest rate
        would favour the latter for nine copies after a slow one, as the first often is.
        """
        return self._arrives_in_s(arrival, step, median(self._rates or (0.0,)))

    def _arrives_in_s(self, arrival: LayerArrival, step: StepForecast, rate: float) -> list[float] | None:
        bytes_ahead, is_fenced = 0.0, False
        for copy in self._under_way:
            is_fenced |= copy.is_fenced
            if copy.arrival is arrival:
                if not rate:
                    return None
                left = (copy.bytes_left(number + 1, rate) for number in range(copy.num_groups))
                begins_s = step.starts_in_s if is_fenced else 0.0
                return [begins_s + (bytes_ahead + own) / rate if own else 0.0 for own in left]
            bytes_ahead += copy.bytes_left(copy.num_groups, rate)
        return []


def hold_s(arrives_in_s: Sequence[float], step: StepForecast) -> float:
    """The longest time that a step would wait: it reaches the group g of n after g / n of its time."""
    share_s = step.lasts_s / max(1, len(arrives_in_s))
    reached_s = (step.starts_in_s + share_s * number for number in range(len(arrives_in_s)))
    return max((late - due for late, due in zip(arrives_in_s, reached_s, strict=True)), default=0.0)
