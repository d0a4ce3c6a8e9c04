"""The performance model of a live cluster, from its config."""

from typing import NamedTuple

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import ConfigError
from punica_serve.performance.profile import PerformanceProfile, load_profile, shipped_profiles
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import SIMULATED_DEVICE

#: Placements that compare what a request would cost.
PLACEMENTS_BY_COST = frozenset({"rank_aware", "consolidate_slo"})
_KEY = "scheduler.profile"


class ClusterModel(NamedTuple):
    """All GPUs of a cluster are alike."""

    step_times: StepTimeModel
    #: By which they chunk prompts.
    prefill_budget: PrefillBudget


def cluster_model(config: ClusterConfig) -> ClusterModel | None:
    """The model of `scheduler.profile` and `engine`; None without a profile.

    Raises ConfigError if the placement needs one and there is none, for one of another model or data type, and, unless
    all devices are simulated, for one of groups of another size and for one with prefills in steps of their own.
    """
    scheduler = config.scheduler
    if scheduler.profile is None:
        if scheduler.placement in PLACEMENTS_BY_COST:
            names = ", ".join(shipped_profiles())
            message = (
                f"`scheduler.placement: {scheduler.placement}` needs to know how long steps take; set `{_KEY}` to a "
                f"profile of this model and device: {names}, or a file written by `punica-serve profile`"
            )
            raise ConfigError(message, param=_KEY)
        return None
    profile = load_profile(scheduler.profile, param=_KEY)
    if any(device != SIMULATED_DEVICE for device in config.runner.devices):
        _check_fits_engine(profile, config.runner.group_size)
    model = read_model_config(config.engine.model)
    profile.check_holds_for(model, config.engine.dtype_of(model), param=_KEY)
    return ClusterModel(StepTimeModel(profile), prefill_budget_of(model, config.engine.prefill_budget_tokens))


def _check_fits_engine(profile: PerformanceProfile, group_size: int) -> None:
    """Whether the times are of what real workers do. Raises ConfigError."""
    if profile.prefills == "apart":
        message = (
            f"the profile {profile.name!r} has prefills in steps of their own (`prefills: apart`), and the engine runs "
            "them beside decodes; measure one with `punica-serve profile`"
        )
    elif profile.group_size != group_size:
        message = (
            f"the profile {profile.name!r} is of {_of_workers(profile.group_size)}, and `runner` has "
            f"{_of_workers(group_size)}; measure one with `punica-serve profile --tensor-parallel {group_size}`"
        )
    else:
        return
    raise ConfigError(message, param=_KEY)


def _of_workers(group_size: int) -> str:
    return "workers of one device" if group_size == 1 else f"groups of {group_size}"
