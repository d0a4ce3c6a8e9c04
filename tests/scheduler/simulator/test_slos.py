"""Promises by `simulation.slo`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from punica_scheduler.simulator.run import arrivals_for, simulate, unloaded_s
from punica_scheduler.simulator.slos import slos_for
from punica_serve.adapters.dummy import dummy_adapters
from punica_serve.config.cluster import ClusterConfig, parse_config
from punica_serve.errors import ConfigError
from punica_serve.protocol import Slo
from punica_serve.shapes import shape_of
from punica_serve.simulation.arrivals import Arrivals
from punica_serve.workload import RequestLength

MakeConfig = Callable[..., ClusterConfig]
LENGTH = RequestLength(20, 50)


def _promising(config: ClusterConfig, ranks: tuple[int, ...] = (16,), **slo: Any) -> ClusterConfig:
    section = config.simulation.slo.model_validate(slo)
    return config.model_copy(
        update={
            "simulation": config.simulation.model_copy(update={"slo": section}),
            "dummy_adapters": config.dummy_adapters.model_copy(update={"rank": ranks}),
        }
    )


def test_all_requests_get_the_promised_seconds(make_config: MakeConfig) -> None:
    config = _promising(make_config(), first_token_s=1.0, time_per_token_s=0.05)
    arrivals = Arrivals((0.0, 1.0), (LENGTH, LENGTH), ())
    assert slos_for(config, arrivals, (), lambda rank: 1.0) == (Slo(1.0, 0.05),) * 2


def test_a_scaled_promise_is_one_for_each_rank(make_config: MakeConfig) -> None:
    config = _promising(make_config(), (8, 64), scale=1.5, first_token_s=2.0)
    refs = tuple(dummy_adapters(config.dummy_adapters, shape_of("llama-2-7b")).values())
    arrivals = Arrivals((0.0,) * 8, (LENGTH,) * 8, tuple(range(8)))
    slos = slos_for(config, arrivals, refs, lambda rank: rank / 1000)
    assert [slo.time_per_token_s for slo in slos] == [1.5 * ref.ranks["q_proj"] / 1000 for ref in refs]
    assert {slo.first_token_s for slo in slos} == {2.0}
    base = Arrivals((0.0,), (LENGTH,), ())
    assert slos_for(config, base, (), lambda rank: 1.0 + rank) == (Slo(2.0, 1.5),)


def test_a_longer_prompt_is_promised_a_later_first_token(make_config: MakeConfig) -> None:
    config = _promising(make_config(), first_token_s=0.25, first_token_s_per_1000_tokens=0.5)
    arrivals = Arrivals((0.0, 1.0), (RequestLength(500, 50), RequestLength(32_000, 50)), ())
    assert slos_for(config, arrivals, (), lambda rank: 1.0) == (Slo(0.5), Slo(16.25))


def test_an_unloaded_request_takes_the_profiles_time(make_config: MakeConfig) -> None:
    config = make_config()
    base_s = unloaded_s(config, LENGTH, 0)
    assert 0.01 < base_s < unloaded_s(config, LENGTH, 64) < 2 * base_s


def test_a_mean_request_that_can_not_run_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"`simulation.slo.scale`: a request of mean length can't run"):
        unloaded_s(make_config(), RequestLength(5000, 50), 0)


def test_promises_are_kept_less_the_tighter_they_are(make_config: MakeConfig) -> None:
    config = make_config()
    arrivals = arrivals_for(config, seed=1)
    kept = []
    for scale in (1.0, 1.3, 20.0):
        attained = simulate(_promising(config, scale=scale), arrivals).summary.attained
        assert attained is not None and attained.first_token == 1.0
        assert attained.both == attained.time_per_token
        kept.append(attained.both)
    assert kept == sorted(kept) and kept[0] < 0.5 and kept[-1] == 1.0


@pytest.mark.parametrize(
    ("slo", "message"),
    [
        ({"first_token_s": 0.0}, "slo.first_token_s`: must be more than 0"),
        ({"time_per_token_s": -1.0}, "slo.time_per_token_s`: must be more than 0"),
        ({"time_per_token_s": float("inf")}, "slo.time_per_token_s`: must be"),
        ({"scale": 0.0}, "slo.scale`: must be more than 0"),
        ({"scale": 1.5, "time_per_token_s": 0.1}, "both promise a time per token"),
    ],
)
def test_a_promise_that_can_not_be_is_refused(slo: dict[str, float], message: str, tmp_path: Path) -> None:
    document = {"engine": {"model": "m"}, "simulation": {"slo": slo}}
    with pytest.raises(ConfigError) as raised:
        parse_config(document, source="c.yaml", folder=tmp_path)
    assert message in raised.value.message
