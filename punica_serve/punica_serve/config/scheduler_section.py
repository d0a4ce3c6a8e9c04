"""The config section `scheduler`: its address and its policies, consolidation and advice on scale among them."""

from typing import Annotated, Literal

from pydantic import Field

from punica_serve.config.fields import (
    ConfigModel,
    Flag,
    Name,
    NameOrFile,
    NonNegative,
    Port,
    PositiveInt,
    Seconds,
    SecondsOrZero,
)
from punica_serve.config.placement_name import PlacementName


class ConsolidationConfig(ConfigModel):
    """Emptying lightly loaded GPUs: their requests move to busier ones, which recompute their KvCache.

    A GPU is emptied when that prefill takes less GPU time than emptying saves. The saving is the time until its
    requests would have finished anyway, `idle_s` at most.
    """

    enabled: Flag = True
    #: How often to look for a GPU to empty; one is emptied at a time.
    interval_s: Seconds = 5.0
    #: Prefill speed of a GPU, which prices a move: the request's tokens divided by this. `punica-serve profile`
    #: measures it.
    prefill_tokens_per_s: PositiveInt = 5000
    #: How long an emptied GPU typically stays idle, that is, until load rises again.
    idle_s: Seconds = 30.0


class ScaleConfig(ConfigModel):
    """Advice on the number of GPUs. Advice needs more than one observation, so that it does not flap."""

    #: Advice never goes below this many GPUs, and asks for more while there are fewer.
    min_gpus: PositiveInt = 1
    #: Ask for more GPUs when none has been lightly loaded for this long.
    busy_s: Seconds = 5.0
    #: Offer a runner for release when all its GPUs have been idle for this long.
    idle_s: Seconds = 60.0
    #: Command and arguments to run when the advice changes; it gets the advice as JSON on standard input.
    hook: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    #: Timeout of the hook, after which it is killed.
    hook_timeout_s: Seconds = 60.0


class SchedulerConfig(ConfigModel):
    """The scheduler's address and its policies."""

    host: Name = "127.0.0.1"
    #: With 0, `punica-serve up` chooses a free port.
    port: Port = 8100
    #: Which GPU with room gets a request. punica: the one with the largest working set. The others are for comparison:
    #: the smallest working set, the first by UUID, one drawn from the request's id. With `profile`, rank_aware: where a
    #: request costs all requests the least time (CaraServe); consolidate_slo: punica, while promised latencies hold.
    #: FILE.py:CLASS is a policy of your own (docs/scheduling.md).
    placement: PlacementName = "punica"
    #: How long steps take on these GPUs: a profile that ships with the package, or a YAML file written by
    #: `punica-serve profile`.
    profile: NameOrFile | None = None
    #: For consolidate_slo: the share by which predicted times are taken to be longer.
    slo_margin: NonNegative = 0.15
    #: For rank_aware: GPUs that have the adapter, or whose worker has it in host memory, go before all others.
    adapters_on_host: Flag = False
    #: Queue order. fcfs: first come, first served. vtc: the tenant served least so far (virtual token counters).
    #: deadline: the earliest promise of a first token (`slo`); a request without one is due at `queue_timeout_s`.
    queue: Literal["fcfs", "vtc", "deadline"] = "fcfs"
    #: Move requests that lack KvCache pages to other GPUs. If false, they wait for their own GPU; for comparison only.
    migration: Flag = True
    #: A GPU is lightly loaded when its requests use at most this share of its batch and of its KvCache.
    light_load: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.25
    consolidation: ConsolidationConfig = ConsolidationConfig()
    scale: ScaleConfig = ScaleConfig()
    #: Requests that may wait for a GPU; further ones are refused with 429.
    max_queue: PositiveInt = 10_000
    #: A request that finds no GPU for this long fails with 429.
    queue_timeout_s: Seconds = 600.0
    #: How long a request is queued, without blocking others, for an adapter that the store has failed to deliver twice.
    store_patience_s: Seconds = 30.0
    #: After a start, how long the scheduler waits for runners and frontends to reconnect before it places requests.
    settle_s: SecondsOrZero = 0.5
    #: Audit the scheduler's accounting after every `audit_every`th event; an inconsistency ends the process.
    audit: Flag = False
    audit_every: PositiveInt = 1
