from collections import Counter
from pathlib import Path

import pytest

from punica_serve.config.cluster import parse_config
from punica_serve.config.simulation_section import ArrivalsConfig, LongPrompts
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
        ([[0, 5], [0, 5]], "must have ascending seconds, but point 1 is at 0 behind 0"),
        ([[0, 5], [9, 5], [4, 5]], "must have ascending seconds, but point 2 is at 4 behind 9"),
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


def test_a_point_of_a_rate_with_too_many_numbers_is_told_by_its_place(tmp_path: Path) -> None:
    document = {"engine": {"model": "m"}, "simulation": {"arrivals": {"rate": [[0, 5], [9, 5, 1]]}}}
    with pytest.raises(
        ConfigError, match=r"`simulation.arrivals.rate.1`: must be a list of at most 2, got \[9, 5, 1\]$"
    ):
        parse_config(document, source="c.yaml", folder=tmp_path)


def test_serverless_popularity_and_short_instructions() -> None:
    config = RAMP.model_copy(update={"population": "maf_like", "lengths": "alpaca"})
    arrivals = arrivals_of(config, num_adapters=40_000, seed=1)
    counts = Counter(arrivals.adapters)
    assert 100 < len(counts) < 2000, "most adapters are never asked for"
    assert sum(count for _, count in counts.most_common(100)) > 0.4 * len(arrivals)
    prompts = [length.prompt for length in arrivals.lengths]
    assert sum(prompts) / len(prompts) == pytest.approx(19.3, rel=0.1)
    shorter = arrivals_of(config.model_copy(update={"longest_prompt": 20}), num_adapters=40_000, seed=1)
    assert max(length.prompt for length in shorter.lengths) == 20


def test_instructions_have_no_earlier_turns(tmp_path: Path) -> None:
    arrivals = {"rate": [[0, 1], [1, 1]], "lengths": "alpaca", "earlier_turns": 2.0}
    with pytest.raises(ConfigError, match="`earlier_turns` needs `lengths: sharegpt`"):
        parse_config({"engine": {"model": "m"}, "simulation": {"arrivals": arrivals}}, source="c.yaml", folder=tmp_path)


def test_a_scaled_rate_has_as_many_more_requests() -> None:
    doubled = arrivals_of(RAMP, num_adapters=8, seed=1, rate_scale=2.0)
    assert len(doubled) == pytest.approx(8000, rel=0.1)
    assert max(doubled.times_s) < 200


def _trace(folder: Path, *rows: tuple[int, ...]) -> Path:
    heading = ["HashOwner", "HashApp", "HashFunction", "Trigger", *map(str, range(1, 1441))]
    lines = [["o", "a", "f", "http", *map(str, row), *["0"] * (1440 - len(row))] for row in rows]
    file = folder / "day.csv"
    file.write_text("".join(",".join(line) + "\n" for line in (heading, *lines)))
    return file


def test_a_trace_is_replayed_minute_by_minute(tmp_path: Path) -> None:
    trace = _trace(tmp_path, (50, 0), (7, 0), (0, 300))
    config = RAMP.model_copy(update={"rate": ((0, 1), (120, 1))})
    arrivals = arrivals_of(config, num_adapters=2, seed=1, trace=trace)
    assert list(arrivals.times_s) == sorted(arrivals.times_s) and len(arrivals.lengths) == 357
    minutes = Counter(
        (int(time_s // 60), adapter) for time_s, adapter in zip(arrivals.times_s, arrivals.adapters, strict=True)
    )
    assert minutes == {(0, 0): 50, (0, 1): 7, (1, 0): 300}
    assert arrivals == arrivals_of(config, num_adapters=2, seed=1, trace=trace)


def test_a_trace_lasts_as_long_as_the_rate_and_can_be_scaled(tmp_path: Path) -> None:
    trace = _trace(tmp_path, (1000, 1000))
    config = RAMP.model_copy(update={"rate": ((0, 1), (90, 1))})
    arrivals = arrivals_of(config, num_adapters=0, seed=1, trace=trace, rate_scale=0.1)
    assert max(arrivals.times_s) < 90 and arrivals.adapters == ()
    assert len(arrivals) == pytest.approx(150, rel=0.2)


def test_a_share_of_the_prompts_is_long_and_the_others_are_as_without() -> None:
    long = RAMP.model_copy(update={"long_prompts": LongPrompts(share=0.1, tokens=32_000)})
    usual, mixed = (arrivals_of(config, num_adapters=8, seed=1) for config in (RAMP, long))
    assert mixed.times_s == usual.times_s and mixed.adapters == usual.adapters
    changed = [(old, new) for old, new in zip(usual.lengths, mixed.lengths, strict=True) if old != new]
    assert len(changed) / len(usual) == pytest.approx(0.1, rel=0.2)
    assert all(new == (32_000, old.output) for old, new in changed)
