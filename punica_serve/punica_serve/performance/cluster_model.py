"""The performance model of a live cluster, from its config."""

from typing import NamedTuple

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import ConfigError
from punica_serve.performance.profile import load_profile, shipped_profiles
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

    Raises ConfigError if the placement needs one and there is none, for one of another model or data type,
    and for one with prefills in steps of their own unless all devices are simulated.
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
    if profile.prefills == "apart" and any(device != SIMULATED_DEVICE for device in config.runner.devices):
        message = (
            f"the profile {profile.name!r} has prefills in steps of their own (`prefills: apart`), and the engine runs "
            "them beside decodes; measure one with `punica-serve profile`"
        )
        raise ConfigError(message, param=_KEY)
    model = read_model_config(config.engine.model)
    profile.check_holds_for(model, config.engine.dtype_of(model), param=_KEY)
    return ClusterModel(StepTimeModel(profile), prefill_budget_of(model, config.engine.prefill_budget_tokens))
