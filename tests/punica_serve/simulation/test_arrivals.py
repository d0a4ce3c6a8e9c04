from collections import Counter
from pathlib import Path

import pytest

from punica_serve.config.cluster import parse_config
from punica_serve.config.simulation_section import ArrivalsConfig
from punica_serve.errors import ConfigError
from punica_serve.simulation.arrivals import arrivals_of

RAMP = ArrivalsConfig(rate=((0, 0), (100, 40), (200, 0)))


def test_the_rate_rises_and_falls_as_asked() -> None:
    arrivals = arrivals_of(RAMP, num_adapters=8, seed=1)
    assert list(arrivals.times_s) == sorted(arrivals.times_s)
    assert len(arrivals) == len(arrivals.lengths) == len(arrivals.adapters) == pytest.approx(4000, rel=0.1)
    quarters = Counter(int(time_s // 50) for time_s in arrivals.times_s)
    assert [quarters[quarter] for quarter in range(4)] == pytest.approx([500, 1500, 1500, 500], rel=0.2)


def test_the_same_seed_gives_the_same_requests() -> None:
    assert arrivals_of(RAMP, num_adapters=8, seed=1) == arrivals_of(RAMP, num_adapters=8, seed=1)
    assert arrivals_of(RAMP, num_adapters=8, seed=1) != arrivals_of(RAMP, num_adapters=8, seed=2)


def test_each_adapter_is_half_as_popular_again_as_the_next() -> None:
    requests = Counter(arrivals_of(RAMP, num_adapters=8, seed=1).adapters)
    assert requests[0] / requests[1] == pytest.approx(1.5, rel=0.2)
    assert requests[1] / requests[2] == pytest.approx(1.5, rel=0.2)


def test_other_populations_spread_as_they_say() -> None:
    def adapters(population: str) -> Counter[int]:
        return Counter(arrivals_of(RAMP.model_copy(update={"population": population}), num_adapters=4, seed=1).adapters)

    assert set(adapters("identical")) == {0}
    assert min(adapters("uniform").values()) > 800
    distinct = adapters("distinct")
    assert max(distinct.values()) - min(distinct.values()) <= 1


def test_without_adapters_all_run_the_base_model() -> None:
    assert arrivals_of(RAMP, num_adapters=0, seed=1).adapters == ()


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        ([[1, 5], [2, 5]], "must begin at second 0"),
        ([[0, 5], [0, 5]], "ascending seconds"),
        ([[0, 0], [9, 0]], "must be more than 0 at some point"),
        ([[0, 0]], "must have at least two points"),
        ([], "must have at least two points"),
    ],
)
def test_a_rate_that_makes_no_sense_is_refused_and_shown_alone(
    rate: list[list[float]], message: str, tmp_path: Path
) -> None:
    document = {"engine": {"model": "m"}, "simulation": {"arrivals": {"rate": rate}}}
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config(document, source="c.yaml", folder=tmp_path)
    assert caught.value.message.startswith("c.yaml: `simulation.arrivals.rate`: must ")
    assert caught.value.message.endswith(f", got {rate}")
