"""Several simulations at once give what each gives alone."""

from collections.abc import Callable

import pytest

from punica_scheduler.simulator.parallel import simulate_all
from punica_scheduler.simulator.run import arrivals_for, simulate
from punica_scheduler.simulator.variants import with_policy
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import ConfigError

MakeConfig = Callable[..., ClusterConfig]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_results_and_progress_are_those_of_each_alone(num_processes: int, make_config: MakeConfig) -> None:
    config = make_config(rate=[[0, 4], [3, 4]])
    configs = {"a": with_policy(config, "punica"), "b": with_policy(config, "most_idle")}
    arrivals = arrivals_for(config, seed=1)
    told: dict[str, float] = {}
    results = simulate_all(configs, arrivals, told.__setitem__, num_processes)
    assert list(results) == ["a", "b"]
    for name, result in results.items():
        assert result.summary == simulate(configs[name], arrivals).summary
        assert told[name] == pytest.approx(result.summary.duration_s, abs=config.simulation.interval_s)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_an_error_is_raised_as_it_is(num_processes: int, make_config: MakeConfig) -> None:
    config = make_config(rate=[[0, 4], [3, 4]])
    wrong = config.model_copy(update={"simulation": config.simulation.model_copy(update={"profile": "none"})})
    with pytest.raises(ConfigError, match="no performance profile 'none'") as raised:
        simulate_all({"a": config, "b": wrong}, arrivals_for(config, seed=1), lambda _name, _now_s: None, num_processes)
    assert raised.value.param == "simulation.profile"
