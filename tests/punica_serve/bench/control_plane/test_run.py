import json
from collections import Counter
from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.control_plane.parts import ChurnEvent, churn_us, parts_us
from punica_serve.bench.control_plane.placement import placement_times
from punica_serve.bench.control_plane.run import ControlPlaneMeasured, run
from punica_serve.bench.control_plane.settings import ControlPlaneSettings
from punica_serve.bench.report import write_json
from punica_serve.errors import ConfigError

SMALL = ControlPlaneSettings(
    num_gpus=9,
    batch_size=4,
    tokens_per_s=1_000.0,
    seconds=0.5,
    settling_s=0.5,
    answer_tokens=(3, 6),
    num_queued=100,
    placement_sizes=(4, 6),
    num_placements=10,
    num_part_steps=20,
)


def test_ages_are_read_off_by_the_share_of_tokens_that_have_come() -> None:
    measurement = ControlPlaneMeasured("steady", 2.0, 0.5, 250_000, 0, Counter({10: 98, 50: 1, 2_000: 1}), 0.4)
    assert (measurement.age_ms(0.5), measurement.age_ms(0.99), measurement.age_ms(1.0)) == (1.0, 5.0, 200.0)
    assert measurement.us_per_token == 2.0


def test_a_load_without_a_step_in_its_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes 2 s, longer than the"):
        ControlPlaneSettings(num_gpus=1, batch_size=2, tokens_per_s=1.0, seconds=0.5)


def test_every_placement_is_timed() -> None:
    times = placement_times(SMALL)
    assert {time.num_gpus for time in times} == {4, 6}
    assert {time.policy for time in times} == {"punica", "most_idle", "rank_aware", "consolidate_slo"}
    assert len(times) == 8 and min(min(time.us, time.full_us) for time in times) > 0


def test_every_part_takes_its_time() -> None:
    parts = parts_us(SMALL)
    assert min(parts.decode, parts.handle, parts.encode) > 0


def test_every_event_of_churn_takes_its_time() -> None:
    times = churn_us(SMALL)
    assert set(times) == set(ChurnEvent) and min(times.values()) > 0


@pytest.mark.slow
def test_a_small_fleet_through_the_real_scheduler(tmp_path: Path) -> None:
    with Progress(disable=True) as progress:
        report = run(SMALL, progress)
    loads, parts, churn, placements, goals = (table.records for table in report.tables)
    assert [load["load"] for load in loads] == ["steady", "churn"]
    assert all(isinstance(load["tokens_per_s"], float) and load["tokens_per_s"] > 0 for load in loads)
    assert all(isinstance(load["idle_share"], float) and 0 <= load["idle_share"] <= 1.01 for load in loads)
    assert loads[0]["requests_per_s"] == 0.0 and loads[1]["requests_per_s"]
    assert len(churn) == len(ChurnEvent)
    assert len(parts) == 3 and all(part["us_per_token"] for part in parts)
    assert len(placements) == 8 and all(placement["us"] for placement in placements)
    assert len(goals) == 5 and all(goal["measured"] for goal in goals)
    assert json.loads(write_json(report, tmp_path).read_text())["benchmark"] == "control-plane"
