"""Looks at a growing file: soon after something has come, seldom while nothing does, and not for ever."""

import pytest

from punica_serve.engine.adapters.growth_wait import GrowthWait


def num_looks(duration_s: float, grows_each_s: float = 1e9) -> int:
    """How many are taken at a file that grows so often."""
    wait, now_s, count, grew_s = GrowthWait(0.0, 1e9), 0.0, 0, 0.0
    while now_s < duration_s:
        count += 1
        if now_s - grew_s >= grows_each_s:
            wait.grew(now_s)
            grew_s = now_s
        now_s += wait.next_s(now_s)
    return count


def test_a_slow_store_costs_few_looks() -> None:
    assert num_looks(60.0) < 650
    assert num_looks(60.0, grows_each_s=1.0) < 60 * 40
    assert num_looks(0.8, grows_each_s=0.008) <= 400


@pytest.mark.parametrize("silent_s", [0.0, 0.008, 0.1, 1.0, 10.0])
def test_what_comes_is_noticed_soon(silent_s: float) -> None:
    assert 0 < GrowthWait(0.0, 30.0).next_s(silent_s) <= min(max(0.002, 0.25 * silent_s), 0.1)


@pytest.mark.parametrize("grew_s", [0.0, 20.0])
def test_it_is_over_when_nothing_has_come_for_too_long(grew_s: float) -> None:
    wait = GrowthWait(0.0, 30.0)
    wait.grew(grew_s)
    assert not wait.is_over(grew_s + 30.0) and wait.is_over(grew_s + 30.1)
