"""The config section `simulation`: simulated GPUs, and the requests they get."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from punica_serve.config.fields import (
    ConfigModel,
    Name,
    NameOrFile,
    NonNegative,
    NonNegativeInt,
    PositiveInt,
    Seconds,
)
from punica_serve.config.placement_name import PlacementName
from punica_serve.protocol.slo import PROMISE_RANGE

#: Seconds of a promised latency.
PromisedSeconds = Annotated[float, Field(strict=True, **PROMISE_RANGE.as_constraints())]

#: A rate over time needs at least a start and an end.
_MIN_POINTS = 2


#: How requests spread over the dummy adapters: as `punica_serve.workload.Population`, or as serverless functions are
#: invoked.
ArrivalPopulation = Literal["distinct", "uniform", "skewed", "identical", "maf_like"]


class LongPrompts(ConfigModel):
    """Some of the requests, drawn at random, have prompts of this length instead."""

    share: Annotated[float, Field(strict=True, gt=0, le=1)]
    tokens: PositiveInt


class ArrivalsConfig(ConfigModel):
    """Requests over time: a Poisson process."""

    #: Points [second, requests per second], interpolated linearly; arrivals end at the last one.
    rate: tuple[tuple[NonNegative, NonNegative], ...]
    population: ArrivalPopulation = "skewed"
    #: Lengths like ShareGPT's conversations or like Alpaca's short instructions.
    lengths: Literal["sharegpt", "alpaca"] = "sharegpt"
    #: Mean number of earlier conversation turns that a prompt includes, with the lengths of ShareGPT.
    earlier_turns: NonNegative = 0.0
    #: Longest prompt in tokens; longer ones keep only their end.
    longest_prompt: PositiveInt = 1024
    #: None: all prompts are as `lengths` has them.
    long_prompts: LongPrompts | None = None
    #: With `engine.prefix_caching`: the first tokens of a prompt, which all requests of its adapter share.
    shared_prefix_tokens: NonNegativeInt = 0

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, rate: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        seconds = [second for second, _ in rate]
        if len(rate) < _MIN_POINTS:
            raise ValueError("must have at least two points, each [second, requests per second]")
        if seconds[0] != 0:
            raise ValueError(f"must begin at second 0, not at {seconds[0]:g}")
        for index, (before, second) in enumerate(pairwise(seconds), start=1):
            if before >= second:
                raise ValueError(f"must have ascending seconds, but point {index} is at {second:g} behind {before:g}")
        if not any(per_s for _, per_s in rate):
            raise ValueError("must be more than 0 at some point")
        return rate

    @model_validator(mode="after")
    def _has_turns_of_conversations(self) -> Self:
        if self.earlier_turns and self.lengths != "sharegpt":
            raise ValueError("`earlier_turns` needs `lengths: sharegpt`: instructions have no earlier turns")
        return self

    @property
    def duration_s(self) -> float:
        return self.rate[-1][0]


class SloConfig(ConfigModel):
    """The latencies that every request of a simulation is promised. By default nothing is promised."""

    #: Seconds to the first token; and how many more for each 1,000 tokens of the prompt.
    first_token_s: PromisedSeconds | None = None
    first_token_s_per_1000_tokens: NonNegative = 0.0
    #: Mean seconds from one token to the next.
    time_per_token_s: PromisedSeconds | None = None
    #: Instead of `time_per_token_s`: how many times as long as for a request of mean length and the same rank that is
    #: alone on a GPU.
    scale: Annotated[float, Field(strict=True, gt=0, le=1000)] | None = None

    @model_validator(mode="after")
    def _promises_once(self) -> Self:
        if self.time_per_token_s is not None and self.scale is not None:
            raise ValueError("`time_per_token_s` and `scale` both promise a time per token; keep one of them")
        return self


#: A share, or a multiple.
_Share = Annotated[float, Field(strict=True, ge=0)]


class PolicyGoals(ConfigModel):
    """The results that a policy of a comparison has to reach."""

    #: Least share of requests whose promises are all kept.
    kept: _Share | None = None
    #: Least share by which the mean time per token is shorter than another policy's.
    faster_than: dict[PlacementName, _Share] = Field(default_factory=dict)
    #: At most so many times `most_idle`'s GPU time in steps, and its p99 of the first token.
    gpu_time: _Share | None = None
    first_token_p99: _Share | None = None


class SimulationConfig(ConfigModel):
    """Simulated GPUs: the size comes from `engine`, the speed from a performance profile."""

    #: A profile that ships with the package (docs/profiles.md), or a YAML file written by `punica-serve profile`.
    profile: NameOrFile = "a100-40g-7b"
    #: Simulated seconds per real second, for workers in a live cluster. Less than 1 lets a small machine simulate many
    #: GPUs.
    speed: Annotated[float, Field(strict=True, gt=0)] = 1.0
    #: Number of runners in `punica-serve simulate`, each with the config's `runner.devices`.
    num_runners: PositiveInt = 1
    #: Latency between any two processes in `punica-serve simulate`.
    link_latency_ms: NonNegative = 0.5
    #: Interval over which each row of the timeline is averaged.
    interval_s: Seconds = 10.0
    slo: SloConfig = SloConfig()
    #: Placement policies that `punica-serve simulate` compares, under the same arrivals. The first is the one whose
    #: requests are called faster or slower than those of the others.
    compare: tuple[PlacementName, ...] = ()
    #: By profile and policy: what a comparison with this profile is held against. `punica-serve simulate` ends with
    #: code 1 if a goal is missed.
    goals: dict[Name, dict[PlacementName, PolicyGoals]] = Field(default_factory=dict)
    #: The requests of `punica-serve simulate`.
    arrivals: ArrivalsConfig | None = None
