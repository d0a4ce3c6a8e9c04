import pytest

from punica_scheduler.factory import scheduler_of
from punica_scheduler.placement import PLACEMENTS
from punica_serve.config import SchedulerConfig


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_can_be_configured(placement: str) -> None:
    config = SchedulerConfig.model_validate({"placement": placement})
    assert scheduler_of(config, 7).snapshot(8).incarnation == 7
