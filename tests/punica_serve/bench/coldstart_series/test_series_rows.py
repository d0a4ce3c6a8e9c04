from typing import get_args

import pytest

from punica_serve.bench.coldstart_series.series_rows import parse_series_rows
from punica_serve.config.engine_section import ColdStart
from punica_serve.errors import ConfigError


def test_every_mode_of_the_engine_has_a_row() -> None:
    names = [row.name for row in parse_series_rows(None)]
    assert names == ["cached", "on_demand", *get_args(ColdStart)]


def test_rows_are_chosen_by_name_and_keep_their_order() -> None:
    cached, wait = parse_series_rows("wait, cached,wait")
    assert cached.is_cached and not cached.is_blocking and cached.mode == "wait"
    assert not (wait.is_cached or wait.is_blocking) and wait.mode == "wait"


def test_unknown_rows_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="row 'warm' does not exist; there are cached, on_demand, wait"):
        parse_series_rows("cached,warm")
