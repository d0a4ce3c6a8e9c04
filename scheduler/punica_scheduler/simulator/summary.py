"""A simulation in a few figures, and the paper's claims held against them (Punica, section 7.3, figure 13)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from punica_scheduler.simulator.cluster import SimulatedCluster
from punica_serve.protocol import ClusterSnapshot
from punica_serve.simulation.attainment import Attainment, RequestTimes, attainment

#: A batch is full from this share of the largest one on: requests that end are replaced some steps later.
FULL_SHARE = 0.9
#: A GPU that is idle for longer could have been given back meanwhile.
RELEASE_S = 60.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Shares are of GPU time: all GPUs, from the first arrival to the last end."""

    num_requests: int
    num_failed: int
    num_tokens: int
    duration_s: float
    #: The durations of all steps, in seconds.
    gpu_time_s: float
    #: GPUs that have run nothing.
    num_unused_gpus: int
    #: Mean over steps, each weighted by its duration.
    mean_batch_size: float
    #: Share in steps.
    busy_share: float
    #: Share of the time in steps that has full batches.
    full_share: float
    #: Share idle beyond the first RELEASE_S of each stretch.
    releasable_share: float
    #: Share of the idle time in stretches longer than RELEASE_S.
    long_idle_share: float
    #: Tokens for each second in steps.
    tokens_per_busy_s: float
    evictions: int
    migrations: int
    consolidations: int
    queue_delay_mean_s: float
    queue_delay_p50_s: float
    queue_delay_p99_s: float
    first_token_p50_s: float
    first_token_p99_s: float
    #: From a request's first token to its last, for each token after the first.
    time_per_token_mean_s: float
    time_per_token_p50_s: float
    time_per_token_p99_s: float
    #: Promises kept, of finished requests; None if there are no promises.
    attained: Attainment | None


@dataclass(frozen=True, slots=True)
class Check:
    """A claim of the paper, the measured figure, and whether it bears the claim out."""

    claim: str
    seen: str
    holds: bool


def summarize(cluster: SimulatedCluster, snapshot: ClusterSnapshot, times: RequestTimes) -> Summary:
    """Summarizes a cluster that has run; ``snapshot`` is its scheduler's at the end."""
    recorder, audit = cluster.recorder, cluster.audit
    request_s = sum(batch_size * seconds for batch_size, seconds in recorder.busy_s.items())
    per_token_s = times.time_per_token_s[~np.isnan(times.time_per_token_s)].tolist()
    busy_s = sum(recorder.busy_s.values())
    gpu_s = cluster.now_s * len(snapshot.gpus)
    least = FULL_SHARE * recorder.max_batch_size
    full_s = sum(seconds for batch_size, seconds in recorder.busy_s.items() if batch_size >= least)
    stretches_s = np.array(recorder.idle_stretches_s)
    long_s = stretches_s[stretches_s > RELEASE_S]
    delays_s = [delay_s for delay_s in cluster.queue_delay_s if delay_s is not None]
    first_tokens_s = audit.first_token_s - np.array(cluster.arrivals.times_s)
    first_tokens_s = first_tokens_s[~np.isnan(first_tokens_s)]
    counters = snapshot.counters
    return Summary(
        num_requests=len(cluster.arrivals),
        num_failed=audit.failures.total(),
        num_tokens=audit.num_tokens,
        duration_s=cluster.now_s,
        gpu_time_s=busy_s,
        num_unused_gpus=recorder.num_unused_gpus,
        mean_batch_size=_over(request_s, busy_s),
        busy_share=_over(busy_s, gpu_s),
        full_share=_over(full_s, busy_s),
        releasable_share=_over(float((long_s - RELEASE_S).sum()), gpu_s),
        long_idle_share=_over(float(long_s.sum()), float(stretches_s.sum())),
        tokens_per_busy_s=_over(audit.num_tokens, busy_s),
        evictions=counters["evictions"],
        migrations=counters["migrations"],
        consolidations=counters.get("consolidations", 0),
        queue_delay_mean_s=_mean(delays_s),
        queue_delay_p50_s=_percentile(delays_s, 50),
        queue_delay_p99_s=_percentile(delays_s, 99),
        first_token_p50_s=_percentile(first_tokens_s.tolist(), 50),
        first_token_p99_s=_percentile(first_tokens_s.tolist(), 99),
        time_per_token_mean_s=_mean(per_token_s),
        time_per_token_p50_s=_percentile(per_token_s, 50),
        time_per_token_p99_s=_percentile(per_token_s, 99),
        attained=attainment(times, cluster.slos),
    )


def checks(summary: Summary) -> list[Check]:
    """The claims of section 7.3."""
    return [
        Check(
            "a GPU that is not idle mostly runs full batches",
            f"{summary.full_share:.0%} of the time in steps",
            summary.full_share > 0.5,
        ),
        Check(
            "an idle GPU tends to stay idle",
            f"{summary.long_idle_share:.0%} of the idle time in stretches of over {RELEASE_S:g} s",
            summary.long_idle_share > 0.5,
        ),
        Check(
            "now and then a GPU runs out of KvCache and its newest request migrates",
            f"{summary.evictions} evictions, {summary.migrations} migrations",
            summary.evictions > 0 and summary.migrations > 0,
        ),
    ]


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else 0.0
