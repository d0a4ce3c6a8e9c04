"""Whole simulations: audited by themselves to the last token, conserving requests, and the same every time."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from punica_scheduler.simulator.run import arrivals_for, simulate
from punica_scheduler.simulator.variants import ABLATIONS, ablated
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import ConfigError
from punica_serve.simulation.timeline import write_csv

MakeConfig = Callable[..., ClusterConfig]

#: Enough that GPUs run out of KvCache.
LONG_PROMPTS = {"earlier_turns": 2.0, "longest_prompt": 900}


def test_every_stream_comes_out_exactly_once_though_gpus_run_out_of_memory(make_config: MakeConfig) -> None:
    config = make_config({"audit": True, "audit_every": 10}, **LONG_PROMPTS)
    arrivals = arrivals_for(config, seed=3)
    result = simulate(config, arrivals)  # the audit is part of it
    summary = result.summary
    assert summary.num_requests == len(arrivals)
    assert summary.num_failed == 0
    assert summary.num_tokens == sum(length.output for length in arrivals.lengths)
    assert summary.evictions > 0
    assert summary.migrations > 0
    assert summary.queue_delay_p99_s > 0
    assert 0.5 < summary.busy_share < 1


def test_requests_that_share_pages_are_audited_too_and_take_less_time(make_config: MakeConfig) -> None:
    config = make_config({"audit": True, "audit_every": 10}, **LONG_PROMPTS, shared_prefix_tokens=300)
    without = config.model_copy(update={"engine": config.engine.model_copy(update={"prefix_caching": False})})
    arrivals = arrivals_for(config, seed=3)
    alone, shared = (simulate(each, arrivals).summary for each in (without, config))
    assert shared.num_failed == 0
    assert shared.num_tokens == alone.num_tokens == sum(length.output for length in arrivals.lengths)
    assert shared.busy_share < alone.busy_share


@pytest.mark.parametrize("is_sharing", [False, True])
def test_behind_windows_the_same_load_runs_in_a_quarter_of_the_pages(
    make_config: MakeConfig, tmp_path: Path, is_sharing: bool
) -> None:
    config = make_config({"audit": True, "audit_every": 10}, **LONG_PROMPTS, shared_prefix_tokens=300 * is_sharing)
    shape = json.loads((config.engine.model / "config.json").read_text())
    shape |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 128}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    engine = config.engine.model_copy(update={"model": tmp_path, "num_kv_pages": 28, "prefix_caching": is_sharing})
    arrivals = arrivals_for(config, seed=3)
    summary = simulate(config.model_copy(update={"engine": engine}), arrivals).summary
    assert summary.num_failed == 0
    assert summary.num_tokens == sum(length.output for length in arrivals.lengths)
    assert max(length.prompt + length.output for length in arrivals.lengths) > 28 * 16, "all fit without windows"


def test_the_timeline_adds_up(make_config: MakeConfig) -> None:
    config = make_config()
    arrivals = arrivals_for(config, seed=1)
    result = simulate(config, arrivals)
    timeline, summary = result.timeline, result.summary
    assert sum(timeline.requests_per_s) * timeline.interval_s == pytest.approx(len(arrivals))
    assert sum(timeline.tokens_per_s) * timeline.interval_s == pytest.approx(summary.num_tokens)
    assert list(timeline.batch_sizes) == ["SIM-0", "SIM-1", "SIM-2", "SIM-3"]
    assert max(max(sizes) for sizes in timeline.batch_sizes.values()) <= timeline.max_batch_size * 1.1
    assert len(timeline.times_s) == len(timeline.queue_length) == math.floor(summary.duration_s) + 1


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(**LONG_PROMPTS)

    def table(name: str, seed: int) -> bytes:
        return write_csv(simulate(config, arrivals_for(config, seed)).timeline, tmp_path / name).read_bytes()

    assert table("a", 1) == table("b", 1) != table("c", 2)


def test_requests_are_packed_onto_few_gpus_unless_placement_is_exchanged(make_config: MakeConfig) -> None:
    config = make_config(rate=[[0, 4], [10, 4]])
    arrivals = arrivals_for(config, seed=1)

    def num_used_gpus(config: ClusterConfig) -> int:
        return sum(any(sizes) for sizes in simulate(config, arrivals).timeline.batch_sizes.values())

    assert num_used_gpus(config) < num_used_gpus(ablated(config, "most_idle")) == 4


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_changes_what_it_says_and_loses_nothing(name: str, make_config: MakeConfig) -> None:
    config = ablated(make_config(**LONG_PROMPTS), name)
    for field, value in ABLATIONS[name].items():
        found = getattr(config.scheduler, field)
        assert found == value if not isinstance(value, dict) else found.enabled is value["enabled"]
    summary = simulate(config, arrivals_for(config, seed=3)).summary
    assert summary.num_failed == 0
    if name == "no migration":
        assert summary.evictions > 0
        assert summary.migrations == 0


def test_a_config_without_arrivals_is_refused(make_config: MakeConfig) -> None:
    config = make_config()
    config = config.model_copy(update={"simulation": config.simulation.model_copy(update={"arrivals": None})})
    with pytest.raises(ConfigError, match=r"no `simulation.arrivals`"):
        arrivals_for(config, seed=1)


def test_a_rate_at_which_nobody_comes_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="not one request arrives"):
        arrivals_for(make_config(rate=[[0, 0.001], [1, 0.001]]), seed=1)
