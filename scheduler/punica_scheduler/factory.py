"""From a config file to a scheduler: the one place where the core's settings are read from the config."""

from punica_scheduler.core.advice import ScaleRule
from punica_scheduler.core.consolidation import ConsolidationRule
from punica_scheduler.core.placement import PLACEMENTS
from punica_scheduler.core.scheduler import Scheduler
from punica_scheduler.core.settings import SchedulerSettings
from punica_serve.config.cluster import SchedulerConfig


def scheduler_of(config: SchedulerConfig, incarnation: int) -> Scheduler:
    """A scheduler as configured; ``incarnation`` is its start time, in nanoseconds."""
    return Scheduler(incarnation, settings_of(config))


def settings_of(config: SchedulerConfig) -> SchedulerSettings:
    """The core's part of a config. Emptying a GPU is migration, so there is none without."""
    return SchedulerSettings(
        placement=PLACEMENTS[config.placement](),
        queue=config.queue,
        migration=config.migration,
        max_queue=config.max_queue,
        queue_timeout_ns=_ns(config.queue_timeout_s),
        store_patience_ns=_ns(config.store_patience_s),
        settle_ns=_ns(config.settle_s),
        consolidation=_consolidation_of(config) if config.consolidation.enabled and config.migration else None,
        scale=ScaleRule(
            min_gpus=config.scale.min_gpus,
            light_load=config.light_load,
            busy_ns=_ns(config.scale.busy_s),
            idle_ns=_ns(config.scale.idle_s),
        ),
        audit_every=config.audit_every if config.audit else 0,
    )


def _consolidation_of(config: SchedulerConfig) -> ConsolidationRule:
    return ConsolidationRule(
        interval_ns=_ns(config.consolidation.interval_s),
        light_load=config.light_load,
        prefill_tokens_per_s=config.consolidation.prefill_tokens_per_s,
        idle_s=config.consolidation.idle_s,
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
