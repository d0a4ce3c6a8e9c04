"""What a config file says of simulated GPUs and of the requests that come to them."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator

from punica_serve.config_fields import ConfigModel, NameOrFile, NonNegative, PositiveInt, Seconds

#: Of a rate over time: where it begins and where it ends.
_MIN_POINTS = 2


class ArrivalsConfig(ConfigModel):
    """Requests over time: a Poisson process, with lengths like ShareGPT's."""

    #: [second, requests per second], joined by straight lines; the last second ends the arrivals.
    rate: tuple[tuple[NonNegative, NonNegative], ...]
    #: How requests spread over the dummy adapters: see `punica_serve.workload.Population`.
    population: Literal["distinct", "uniform", "skewed", "identical"] = "skewed"
    #: Turns of its conversation that come before a prompt and are part of it, on average.
    earlier_turns: NonNegative = 0.0
    #: Prompts are cut to their last so many tokens.
    longest_prompt: PositiveInt = 1024

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, rate: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        seconds = [second for second, _ in rate]
        if len(rate) < _MIN_POINTS:
            raise ValueError("must have two points or more, each [second, requests per second]")
        if seconds[0] != 0 or any(first >= second for first, second in pairwise(seconds)):
            raise ValueError("must begin at second 0, and its seconds must ascend")
        if not any(per_s for _, per_s in rate):
            raise ValueError("must be more than 0 somewhere")
        return rate

    @property
    def duration_s(self) -> float:
        return self.rate[-1][0]


class SimulationConfig(ConfigModel):
    """Simulated GPUs: of the size that ``engine`` says, and as fast as a performance profile."""

    #: One that comes with the package (a100-40g-7b, h200-7b), or a YAML file of `punica-serve profile`.
    profile: NameOrFile = "a100-40g-7b"
    #: Simulated seconds in a second, for workers in a live cluster: slower, so that a small machine can follow many
    #: GPUs, or faster.
    speed: Annotated[float, Field(strict=True, gt=0)] = 1.0
    #: Runners of the cluster of `punica-serve simulate`, each with the config's `runner.devices`.
    num_runners: PositiveInt = 1
    #: There: from any process to any other.
    link_latency_ms: NonNegative = 0.5
    #: A row of the table over time is the mean of so long.
    interval_s: Seconds = 10.0
    #: The requests that come, for `punica-serve simulate`.
    arrivals: ArrivalsConfig | None = None
