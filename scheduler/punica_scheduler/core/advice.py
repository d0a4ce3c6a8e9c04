"""How many GPUs the cluster should have (Punica, section 5.1).

No GPU is lightly loaded: ask for more. All GPUs of a runner are idle: it may be released. Both must have been so for a
while, and a release must leave a GPU that is lightly loaded, or the next look would ask for it back: advice does not
flap.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from punica_scheduler.core.gpu import GpuRecord
from punica_serve.protocol import ScaleAdvice


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """Which load is light, and how long it must last; see ``ScaleConfig``."""

    min_gpus: int = 1
    light_load: float = 0.25
    busy_ns: int = 5 * 10**9
    idle_ns: int = 60 * 10**9


class ScaleAdvisor:
    """Looks at the cluster now and then, and remembers since when it is short of GPUs."""

    def __init__(self, rule: ScaleRule) -> None:
        self._rule = rule
        self._short_since_ns: int | None = None
        #: While it is short: how many there should be, at the highest.
        self._num_wanted = 0
        self.advice = ScaleAdvice()

    def look(
        self,
        gpus: Collection[GpuRecord],
        queue_length: int,
        now_ns: int,
        *,
        keeps_promises: Callable[[GpuRecord], bool] = lambda _: True,
    ) -> ScaleAdvice:
        """The advice for this moment. A GPU that breaks promises is not lightly loaded, however few requests it has."""
        usable = [gpu for gpu in gpus if not gpu.is_draining]
        num_light = sum(gpu.load <= self._rule.light_load and keeps_promises(gpu) for gpu in usable)
        if num_light and len(usable) >= self._rule.min_gpus:
            self._short_since_ns, self._num_wanted = None, 0
            releasable = () if queue_length else self._releasable(usable, num_light, now_ns)
            self.advice = ScaleAdvice(releasable_runners=releasable)
        else:
            self.advice = ScaleAdvice(num_more_gpus=self._num_more(usable, queue_length, now_ns))
        return self.advice

    def _num_more(self, usable: list[GpuRecord], queue_length: int, now_ns: int) -> int:
        """Enough for those who wait and one to spare.

        For as long as GPUs are short, the number that there should be only rises; those that join are of that number.
        """
        if self._short_since_ns is None:
            self._short_since_ns = now_ns
        if now_ns - self._short_since_ns < self._rule.busy_ns:
            return 0
        num_running = sum(len(gpu.working_set) for gpu in usable)
        num_for_queue = -(-queue_length * len(usable) // num_running) if num_running else 0
        self._num_wanted = max(self._num_wanted, len(usable) + 1 + num_for_queue, self._rule.min_gpus)
        return self._num_wanted - len(usable)

    def _releasable(self, usable: list[GpuRecord], num_light: int, now_ns: int) -> tuple[str, ...]:
        """Runners that have been idle for long, by id, for as long as enough is left without them."""
        by_runner: defaultdict[str, list[GpuRecord]] = defaultdict(list)
        for gpu in usable:
            by_runner[gpu.runner_id].append(gpu)
        releasable = []
        num_left = len(usable)
        for runner_id, gpus in sorted(by_runner.items()):
            is_idle = all(not gpu.working_set and now_ns - gpu.idle_since_ns >= self._rule.idle_ns for gpu in gpus)
            if is_idle and num_left - len(gpus) >= self._rule.min_gpus and num_light > len(gpus):
                releasable.append(runner_id)
                num_left -= len(gpus)
                num_light -= len(gpus)
        return tuple(releasable)
