"""Makes a scheduler from a config file: the one place where the core's settings are read from the config."""

from punica_scheduler.core.advice import ScaleRule
from punica_scheduler.core.consolidate_slo import ConsolidateSloPlacement
from punica_scheduler.core.consolidation import ConsolidationRule
from punica_scheduler.core.placement import PLACEMENTS, Placement
from punica_scheduler.core.rank_aware import RankAwarePlacement
from punica_scheduler.core.scheduler import Scheduler
from punica_scheduler.core.settings import SchedulerSettings
from punica_scheduler.own_placement import load_placement
from punica_serve.config.placement_name import is_own
from punica_serve.config.scheduler_section import SchedulerConfig
from punica_serve.errors.invariants import require
from punica_serve.performance.cluster_model import ClusterModel
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.prefill_chunks import WHOLE_PROMPTS


def scheduler_of(config: SchedulerConfig, incarnation: int, model: ClusterModel | None = None) -> Scheduler:
    """A scheduler as configured; ``incarnation`` is its start time, in nanoseconds.

    ``model`` is the performance model of its GPUs; placements by cost need one.
    """
    return Scheduler(incarnation, settings_of(config, model))


def _placement_of(config: SchedulerConfig, model: ClusterModel | None) -> Placement:
    if config.placement in PLACEMENTS:
        return PLACEMENTS[config.placement]()
    costs = StepTimeColumns(model.step_times) if model is not None else None
    if is_own(config.placement):
        return load_placement(config.placement, costs)
    require(costs is not None, f"the placement {config.placement} got no performance model")
    assert costs is not None
    if config.placement == "rank_aware":
        return RankAwarePlacement(costs, config.adapters_on_host)
    return ConsolidateSloPlacement(costs, config.slo_margin)


def settings_of(config: SchedulerConfig, model: ClusterModel | None = None) -> SchedulerSettings:
    """The core's part of a config. Emptying a GPU is migration, so there is none without."""
    return SchedulerSettings(
        placement=_placement_of(config, model),
        queue=config.queue,
        least_first_token_s=model.step_times.step_s(1, 0, 0) if model else 0.0,
        least_time_per_token_s=model.step_times.step_s(0, 1, 1) if model else 0.0,
        prefill_budget=model.prefill_budget if model else WHOLE_PROMPTS,
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
