"""Variants of a config: the same cluster with single parts of the scheduler exchanged."""

from collections.abc import Mapping
from typing import Any

from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.placement_name import PlacementName, is_own
from punica_serve.config.scheduler_section import SchedulerConfig

#: Settings of `scheduler:` that an ablation changes.
ABLATIONS: dict[str, Mapping[str, Any]] = {
    "most_idle": {"placement": "most_idle"},
    "first_fit": {"placement": "first_fit"},
    "random": {"placement": "random"},
    "no migration": {"migration": False},
    "no consolidation": {"consolidation": {"enabled": False}},
}

#: Shipped policies of which emptying GPUs is a part.
_CONSOLIDATING: frozenset[PlacementName] = frozenset({"punica", "consolidate_slo"})
#: Shipped policies that place by what requests are promised.
_PROMISE_KEEPING: frozenset[PlacementName] = frozenset({"rank_aware", "consolidate_slo"})


def ablated(config: ClusterConfig, name: str) -> ClusterConfig:
    """The config with what ABLATIONS says of this name."""
    fields = {**config.scheduler.model_dump(), **ABLATIONS[name]}
    return config.model_copy(update={"scheduler": SchedulerConfig.model_validate(fields)})


def with_policy(config: ClusterConfig, policy: PlacementName) -> ClusterConfig:
    """The config with this placement, and consolidation only where the policy is to pack requests, or may be."""
    scheduler = config.scheduler
    enabled = scheduler.consolidation.enabled and (policy in _CONSOLIDATING or is_own(policy))
    consolidation = scheduler.consolidation.model_copy(update={"enabled": enabled})
    scheduler = scheduler.model_copy(update={"placement": policy, "consolidation": consolidation})
    return config.model_copy(update={"scheduler": scheduler})


def with_slo_scale(config: ClusterConfig, scale: float) -> ClusterConfig:
    """The config whose promised time per token is so many times the unloaded one."""
    slo = config.simulation.slo.model_copy(update={"scale": scale, "time_per_token_s": None})
    return config.model_copy(update={"simulation": config.simulation.model_copy(update={"slo": slo})})


def depends_on_promises(config: ClusterConfig) -> bool:
    """Whether other promises may change the schedule, and not only the share that is kept."""
    placement = config.scheduler.placement
    return placement in _PROMISE_KEEPING or is_own(placement) or config.scheduler.queue == "deadline"
