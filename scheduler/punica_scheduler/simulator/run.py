"""Runs a simulation from a config to its results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from punica_scheduler.factory import scheduler_of
from punica_scheduler.simulator.cluster import SimulatedCluster
from punica_scheduler.simulator.request_times import request_times
from punica_scheduler.simulator.simulated_prompts import SimulatedPrompts
from punica_scheduler.simulator.slos import slos_for
from punica_scheduler.simulator.summary import Summary, summarize
from punica_serve.adapters.dummy import dummy_adapters
from punica_serve.adapters.expected_rank import engine_of
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.scheduler_section import SchedulerConfig
from punica_serve.config.simulation_section import SloConfig
from punica_serve.errors import ConfigError
from punica_serve.performance.cluster_model import ClusterModel
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.process.memory_tuning import tuned_gc
from punica_serve.protocol import SIMULATED_DEVICE, AdapterRef, Slo
from punica_serve.simulation.arrivals import Arrivals, arrivals_of
from punica_serve.simulation.attainment import RequestTimes, attainment
from punica_serve.simulation.timeline import Timeline
from punica_serve.simulation.worker import simulated_gpu_info
from punica_serve.workload import RequestLength

#: Simulated time begins at 0; an incarnation is a start time, and 0 means none.
_INCARNATION = 1


@dataclass(frozen=True, slots=True)
class Result:
    timeline: Timeline
    summary: Summary
    #: Why requests failed -> how many.
    failures: Mapping[str, int]
    times: RequestTimes


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
    simulation, engine = config.simulation, engine_of(config)
    model = read_model_config(config.engine.model)
    adapters = tuple(dummy_adapters(config.dummy_adapters, model).values())
    # All join before the first request: nothing is to be waited for.
    step_times = StepTimeModel(load_profile(simulation.profile))
    gpu_model = ClusterModel(step_times, prefill_budget_of(model, config.engine.prefill_budget_tokens))
    scheduler = scheduler_of(config.scheduler.model_copy(update={"settle_s": 0.0}), _INCARNATION, gpu_model)
    num_gpus = len(config.runner.workers)
    width = len(str(simulation.num_runners * num_gpus - 1))
    runners = {
        f"runner-{runner}": [
            simulated_gpu_info(engine, model, f"SIM-{number:0{width}}")
            for number in range(runner * num_gpus, (runner + 1) * num_gpus)
        ]
        for runner in range(simulation.num_runners)
    }
    shared_tokens = simulation.arrivals.shared_prefix_tokens if simulation.arrivals else 0
    cluster = SimulatedCluster(
        scheduler,
        runners,
        gpu_model,
        arrivals,
        adapters,
        slos_of(config, arrivals, adapters),
        SimulatedPrompts(is_sharing=engine.prefix_caching, shared_prefix_tokens=shared_tokens),
        vocab_size=model.vocab_size,
        link_latency_s=simulation.link_latency_ms / 1e3,
        interval_s=simulation.interval_s,
    )
    with tuned_gc():
        cluster.run(on_progress)
    snapshot = scheduler.snapshot(round(cluster.now_s * 1e9))
    times = request_times(arrivals, cluster.audit)
    summary = summarize(cluster, snapshot, times)
    return Result(cluster.recorder.timeline(cluster.now_s), summary, cluster.audit.failures, times)


def slos_of(
    config: ClusterConfig, arrivals: Arrivals, adapters: tuple[AdapterRef, ...] | None = None
) -> tuple[Slo, ...]:
    """The SLO of each request. ``adapters`` are the config's dummies, if they are there already."""
    if adapters is None:
        adapters = tuple(dummy_adapters(config.dummy_adapters, read_model_config(config.engine.model)).values())
    return slos_for(config, arrivals, adapters, partial(unloaded_s, config, mean_length(arrivals)))


def judged(result: Result, slos: Sequence[Slo]) -> Result:
    """The result held against other promises, for a schedule that does not depend on them."""
    return replace(result, summary=replace(result.summary, attained=attainment(result.times, slos)))


def unloaded_s(config: ClusterConfig, length: RequestLength, rank: int) -> float:
    """Time per token of a request of this length and rank, 0 for the base model, that is alone on one of the GPUs.

    Raises ConfigError if it can't run there.
    """
    alone = {"num_runners": 1, "slo": SloConfig()}
    changed = {
        "dummy_adapters": config.dummy_adapters.model_copy(update={"count": min(rank, 1), "rank": (rank,)}),
        "runner": config.runner.model_copy(update={"devices": (SIMULATED_DEVICE,), "tensor_parallel": 1}),
        "scheduler": SchedulerConfig(),
        "simulation": config.simulation.model_copy(update=alone),
    }
    result = simulate(config.model_copy(update=changed), Arrivals((0.0,), (length,), (0,) if rank else ()))
    for reason in result.failures:
        message = f"`simulation.slo.scale`: a request of mean length can't run on a GPU of its own: {reason}"
        raise ConfigError(message, param="simulation.slo.scale")
    return result.summary.time_per_token_mean_s


def mean_length(arrivals: Arrivals) -> RequestLength:
    """The mean prompt, and the mean answer of at least two tokens."""
    prompts, outputs = zip(*arrivals.lengths, strict=True)
    return RequestLength(round(sum(prompts) / len(prompts)), max(2, round(sum(outputs) / len(outputs))))
