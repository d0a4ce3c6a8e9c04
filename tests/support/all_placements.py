"""Every placement policy, those by cost with the shipped model of an H200."""

from collections.abc import Callable, Mapping

from punica_scheduler.core.consolidate_slo import ConsolidateSloPlacement
from punica_scheduler.core.placement import PLACEMENTS, Placement
from punica_scheduler.core.rank_aware import RankAwarePlacement
from punica_serve.performance.cluster_model import ClusterModel
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.prefill_chunks import PrefillBudget


def step_times(profile: str = "h200-7b") -> StepTimeModel:
    return StepTimeModel(load_profile(profile))


def gpu_model(profile: str = "h200-7b") -> ClusterModel:
    """GPUs that chunk prompts at 512 tokens."""
    return ClusterModel(step_times(profile), PrefillBudget(512))


_COSTS = StepTimeColumns(step_times())

ALL_PLACEMENTS: Mapping[str, Callable[[], Placement]] = {
    **PLACEMENTS,
    "rank_aware": lambda: RankAwarePlacement(_COSTS),
    "consolidate_slo": lambda: ConsolidateSloPlacement(_COSTS),
}
