"""Variants of a config."""

from collections.abc import Callable

import pytest

from punica_scheduler.simulator.variants import depends_on_promises, with_policy, with_slo_scale
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.placement_name import PlacementName

MakeConfig = Callable[..., ClusterConfig]


@pytest.mark.parametrize(("policy", "consolidates"), [("punica", True), ("most_idle", False), ("rank_aware", False)])
def test_only_packing_policies_consolidate(policy: PlacementName, consolidates: bool, make_config: MakeConfig) -> None:
    scheduler = with_policy(make_config(), policy).scheduler
    assert scheduler.placement == policy
    assert scheduler.consolidation.enabled is consolidates
    off = make_config({"consolidation": {"enabled": False}})
    assert not with_policy(off, policy).scheduler.consolidation.enabled, "as the config says"


def test_a_scale_replaces_the_promised_time_per_token(make_config: MakeConfig) -> None:
    config = make_config()
    slo = config.simulation.slo.model_copy(update={"time_per_token_s": 0.1, "first_token_s": 1.0})
    config = config.model_copy(update={"simulation": config.simulation.model_copy(update={"slo": slo})})
    scaled = with_slo_scale(config, 1.3).simulation.slo
    assert (scaled.first_token_s, scaled.time_per_token_s, scaled.scale) == (1.0, None, 1.3)


def test_promises_change_the_schedule_of_some(make_config: MakeConfig) -> None:
    config = make_config()
    assert not depends_on_promises(with_policy(config, "punica"))
    assert depends_on_promises(with_policy(config, "rank_aware"))
    assert depends_on_promises(make_config({"queue": "deadline"}))
