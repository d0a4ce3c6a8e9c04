from typing import Any

import pytest

from all_placements import ALL_PLACEMENTS, gpu_model
from punica_scheduler.core.queues import QUEUES
from punica_scheduler.factory import scheduler_of, settings_of
from punica_serve.config.scheduler_section import SchedulerConfig


def config(**values: Any) -> SchedulerConfig:
    return SchedulerConfig.model_validate(values)


@pytest.mark.parametrize("placement", ALL_PLACEMENTS)
@pytest.mark.parametrize("queue", QUEUES)
def test_every_policy_can_be_configured(placement: str, queue: str) -> None:
    assert scheduler_of(config(placement=placement, queue=queue), 7, gpu_model()).snapshot(8).incarnation == 7


def test_seconds_become_nanoseconds() -> None:
    settings = settings_of(config(queue_timeout_s=1.5, settle_s=0.25, scale={"busy_s": 2.0, "idle_s": 3.0}))
    assert (settings.queue_timeout_ns, settings.settle_ns) == (1_500_000_000, 250_000_000)
    assert (settings.scale.busy_ns, settings.scale.idle_ns) == (2_000_000_000, 3_000_000_000)


def test_lightly_loaded_means_the_same_to_consolidation_and_to_advice() -> None:
    settings = settings_of(config(light_load=0.4))
    assert settings.consolidation is not None
    assert settings.consolidation.light_load == settings.scale.light_load == 0.4


@pytest.mark.parametrize("values", [{"migration": False}, {"consolidation": {"enabled": False}}])
def test_nothing_is_emptied_without_consolidation_or_without_migration(values: dict[str, Any]) -> None:
    assert settings_of(config(**values)).consolidation is None


def test_the_state_is_audited_only_when_asked_for() -> None:
    assert settings_of(config(audit_every=5)).audit_every == 0
    assert settings_of(config(audit=True, audit_every=5)).audit_every == 5


def test_latencies_and_chunks_are_those_of_the_gpus() -> None:
    settings = settings_of(config(), gpu_model())
    assert settings.prefill_budget.tokens == 512
    assert settings.least_first_token_s == pytest.approx(0.00374)
    assert settings.least_time_per_token_s == pytest.approx(0.00371, abs=2e-5)
    assert (settings_of(config()).least_first_token_s, settings_of(config()).least_time_per_token_s) == (0.0, 0.0)
