"""Figures of policies side by side."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from punica_scheduler.simulator.comparison import faster_by, first_tokens_s, times_per_token_s, write_cdfs
from punica_scheduler.simulator.run import Result, arrivals_for, simulate
from punica_serve.config.cluster import ClusterConfig
from punica_serve.simulation.attainment import RequestTimes

MakeConfig = Callable[..., ClusterConfig]


@pytest.fixture
def result(make_config: MakeConfig) -> Result:
    """A real result, with times of four requests that are easy to read."""
    config = make_config(rate=[[0, 4], [1, 4]])
    times = RequestTimes(np.arange(4), np.array([3.0, 1.0, 2.0, 4.0]), np.array([0.2, np.nan, 0.1, 0.3]))
    return replace(simulate(config, arrivals_for(config, seed=1)), times=times)


def test_faster_is_one_less_the_ratio_of_means(result: Result) -> None:
    fast, slow = (replace(result.summary, time_per_token_mean_s=mean_s) for mean_s in (0.03, 0.04))
    assert faster_by(fast, slow) == pytest.approx(0.25)
    assert faster_by(slow, fast) == pytest.approx(-1 / 3)
    assert faster_by(fast, replace(slow, time_per_token_mean_s=0.0)) == 0.0


def test_distributions_are_sorted_and_leave_out_what_has_no_time(result: Result) -> None:
    assert first_tokens_s(result.times).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert times_per_token_s(result.times).tolist() == [0.1, 0.2, 0.3]


def test_a_table_has_a_row_for_each_share(result: Result, tmp_path: Path) -> None:
    nobody = replace(result, times=RequestTimes(np.arange(0), np.array([]), np.array([])))
    with write_cdfs({"a": result, "b": nobody}, tmp_path / "cdfs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 201
    assert (rows[0]["a_first_token_s"], rows[100]["a_first_token_s"], rows[200]["a_first_token_s"]) == ("1", "2.5", "4")
    assert rows[100]["a_time_per_token_s"] == "0.2"
    assert {row["b_first_token_s"] for row in rows} == {""}
