"""From a config to a simulation's results, and the same cluster with single parts of the scheduler exchanged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from punica_scheduler.factory import scheduler_of
from punica_scheduler.simulator.cluster import SimulatedCluster
from punica_scheduler.simulator.summary import Summary, summarize
from punica_serve.adapters.dummy import dummy_adapters
from punica_serve.base_model.model_config import read_model_config
from punica_serve.config.cluster import ClusterConfig, SchedulerConfig
from punica_serve.errors import ConfigError
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.process.memory_tuning import tuned_gc
from punica_serve.simulation.arrivals import Arrivals, arrivals_of
from punica_serve.simulation.timeline import Timeline
from punica_serve.simulation.worker import simulated_gpu_info

#: Simulated time begins at 0; an incarnation is a start time, and 0 means none.
_INCARNATION = 1

#: What an ablation changes in `scheduler:`.
ABLATIONS: dict[str, Mapping[str, Any]] = {
    "most_idle": {"placement": "most_idle"},
    "first_fit": {"placement": "first_fit"},
    "random": {"placement": "random"},
    "no migration": {"migration": False},
    "no consolidation": {"consolidation": {"enabled": False}},
}


@dataclass(frozen=True, slots=True)
class Result:
    timeline: Timeline
    summary: Summary
    #: Why requests failed -> how many.
    failures: Mapping[str, int]


def arrivals_for(config: ClusterConfig, seed: int, *, rate_scale: float = 1.0, trace: Path | None = None) -> Arrivals:
    """The requests of a simulation, or of a live replay of it; see ``arrivals_of``. Raises ConfigError."""
    section = config.simulation.arrivals
    if section is None:
        message = "the config has no `simulation.arrivals`; configs/sim/figure13.yaml is an example"
        raise ConfigError(message, param="simulation.arrivals")
    num_adapters = config.dummy_adapters.count
    arrivals = arrivals_of(section, num_adapters=num_adapters, seed=seed, rate_scale=rate_scale, trace=trace)
    if not arrivals:
        message = "not one request arrives; raise `simulation.arrivals.rate` or let it last longer"
        raise ConfigError(message, param="simulation.arrivals.rate")
    return arrivals


def simulate(
    config: ClusterConfig, arrivals: Arrivals, on_progress: Callable[[float], None] = lambda _now_s: None
) -> Result:
    """Runs the config's cluster over these arrivals; ``on_progress`` gets the simulated seconds now and then.

    Raises ConfigError. AssertionError: a stream did not come out exactly once, or state are wrong.
    """
    simulation = config.simulation
    model = read_model_config(config.engine.model)
    adapters = dummy_adapters(config.dummy_adapters, model)
    # All join before the first request: nothing is to be waited for.
    scheduler = scheduler_of(config.scheduler.model_copy(update={"settle_s": 0.0}), _INCARNATION)
    num_gpus = len(config.runner.devices)
    width = len(str(simulation.num_runners * num_gpus - 1))
    runners = {
        f"runner-{runner}": [
            simulated_gpu_info(config.engine, f"SIM-{number:0{width}}")
            for number in range(runner * num_gpus, (runner + 1) * num_gpus)
        ]
        for runner in range(simulation.num_runners)
    }
    cluster = SimulatedCluster(
        scheduler,
        runners,
        StepTimeModel(load_profile(simulation.profile)),
        arrivals,
        list(adapters.values()),
        prefill_budget_tokens=config.engine.prefill_budget_tokens,
        vocab_size=model.vocab_size,
        link_latency_s=simulation.link_latency_ms / 1e3,
        interval_s=simulation.interval_s,
    )
    with tuned_gc():
        cluster.run(on_progress)
    snapshot = scheduler.snapshot(round(cluster.now_s * 1e9))
    return Result(cluster.recorder.timeline(cluster.now_s), summarize(cluster, snapshot), cluster.audit.failures)


def ablated(config: ClusterConfig, name: str) -> ClusterConfig:
    """The config with what ABLATIONS says of this name."""
    fields = {**config.scheduler.model_dump(), **ABLATIONS[name]}
    return config.model_copy(update={"scheduler": SchedulerConfig.model_validate(fields)})
