"""From a config file to a scheduler: the one place where the core's settings are read from the config."""

from punica_scheduler.placement import PLACEMENTS
from punica_scheduler.scheduler import Scheduler
from punica_serve.config import SchedulerConfig


def scheduler_of(config: SchedulerConfig, incarnation: int) -> Scheduler:
    """A scheduler as configured; ``incarnation`` is its start time, in nanoseconds."""
    return Scheduler(
        incarnation,
        placement=PLACEMENTS[config.placement],
        max_queue=config.max_queue,
        queue_timeout_ns=round(config.queue_timeout_s * 1e9),
        settle_ns=round(config.settle_s * 1e9),
    )
