"""The arrival of an adapter on the device by groups of layers, first layers first.

A prefill needs a layer's LoRA weights only when it reaches that layer. So it may start while the adapter is still being
copied, if each layer waits for its own weights: on a GPU the device waits, between kernels, and no thread does. This is
the pipelined loading of CaraServe (section 4.1; Toppings, section 4.2), without its help from the CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from threading import Condition
from typing import Protocol

import torch

#: Most groups of layers. Each costs a step with a prefill a microsecond or two on a GPU.
_MAX_GROUPS = 8
#: A copy on a CPU that has not gone on for this long has failed, as far as a step that waits for it is concerned.
_TIMEOUT_S = 10.0


#: Copies whose words are apart.
_NUM_SLOTS = 64


class ArrivalFailed(Exception):
    """The copy that a step waits for has failed, or is much too slow. The step can be planned again without it."""


def layer_groups(num_layers: int) -> tuple[range, ...]:
    """The layers of each group, as even as can be."""
    count = min(_MAX_GROUPS, num_layers)
    bounds = [number * num_layers // count for number in range(count + 1)]
    return tuple(range(first, last) for first, last in pairwise(bounds))


class LayerArrival(Protocol):
    """One copy of an adapter to the device, as the step loop and the thread that copies see it."""

    @property
    def is_awaitable(self) -> bool:
        """Whether a step that is launched now will find every group, late or not."""
        ...

    @property
    def num_arrived(self) -> int:
        """Groups that are on the device. Never waits."""
        ...

    def mark(self) -> None:
        """The thread that copies has queued all of the next group (on a CPU: has copied it)."""
        ...


class CpuArrival:
    """The arrival of an adapter in the memory of a CPU, for which steps wait as they run."""

    def __init__(self, num_layers: int, on_progress: Callable[[], None]) -> None:
        """``on_progress`` is called once, on the thread that copies, when steps may wait for it."""
        self._groups = layer_groups(num_layers)
        self._on_progress = on_progress
        self._condition = Condition()
        self._num_arrived = 0
        self._has_failed = False

    @property
    def is_awaitable(self) -> bool:
        return self._num_arrived > 0 and not self._has_failed

    @property
    def num_arrived(self) -> int:
        return self._num_arrived

    def mark(self) -> None:
        with self._condition:
            self._num_arrived += 1
            self._condition.notify_all()
        if self._num_arrived == 1:
            self._on_progress()

    def fail(self) -> None:
        """Lets go of a step that waits; it raises ArrivalFailed."""
        with self._condition:
            self._has_failed = True
            self._condition.notify_all()

    def has(self, layer: int) -> bool:
        """Whether a layer has arrived."""
        return self._num_arrived > self._group_of(layer)

    def wait(self, layer: int) -> None:
        """Waits until a layer has arrived. Raises ArrivalFailed if it will not, or not in time."""
        group = self._group_of(layer)
        with self._condition:
            has_come = self._condition.wait_for(lambda: self._has_failed or self._num_arrived > group, _TIMEOUT_S)
        if self._has_failed or not has_come:
            raise ArrivalFailed

    def _group_of(self, layer: int) -> int:
        return next(number for number, layers in enumerate(self._groups) if layer in layers)


class CudaArrival:
    """The arrival of an adapter on a GPU: an event of the copies' stream after each group."""

    def __init__(self, num_layers: int, on_progress: Callable[[], None], ticket: "ArrivalTicket | None" = None) -> None:
        """``on_progress`` is called once, on the thread that copies, when steps may wait for it.

        ``ticket``: for steps that look which groups are there.
        """
        self._on_progress = on_progress
        self.ticket = ticket
        self.events = tuple(torch.cuda.Event() for _ in layer_groups(num_layers))
        self._num_queued = 0
        self._num_arrived = 0

    @property
    def is_awaitable(self) -> bool:
        """An event that was not recorded yet would let a step pass."""
        return self._num_queued == len(self.events)

    @property
    def num_arrived(self) -> int:
        while self._num_arrived < self._num_queued and self.events[self._num_arrived].query():
            self._num_arrived += 1
        return self._num_arrived

    def mark(self) -> None:
        if self.ticket is not None:
            self.ticket.mark(self._num_queued)
        self.events[self._num_queued].record()
        self._num_queued += 1
        if self.is_awaitable:
            self._on_progress()


class ArrivalWords:
    """Words on a GPU that tell which groups of layers have arrived, for steps that look at them as they run."""

    def __init__(self, num_layers: int, device: torch.device) -> None:
        #: int32 [slots, groups]: the number of the copy that filled the group.
        self.words = torch.zeros(_NUM_SLOTS, len(layer_groups(num_layers)), dtype=torch.int32, device=device)
        self._number = 0

    def ticket(self) -> "ArrivalTicket":
        """The words of the next copy. An older copy's words are used again; a step that looks for that copy finds it
        missing.
        """
        self._number += 1
        slot = self._number % _NUM_SLOTS
        return ArrivalTicket(slot, self._number, self.words[slot])


@dataclass(frozen=True, slots=True)
class ArrivalTicket:
    """Where one copy reports its groups, and the number that it writes."""

    slot: int
    number: int
    words: torch.Tensor

    def mark(self, group: int) -> None:
        """Queues the word of a group on the current stream, behind its copies."""
        self.words[group].fill_(self.number)


Arrival = CpuArrival | CudaArrival


def make_arrival(
    num_layers: int, device: torch.device, on_progress: Callable[[], None], words: ArrivalWords | None = None
) -> Arrival:
    """The arrival of an adapter that will be copied to this device. ``words``: of the steps that look at it."""
    if device.type == "cpu":
        return CpuArrival(num_layers, on_progress)
    return CudaArrival(num_layers, on_progress, words.ticket() if words is not None else None)
