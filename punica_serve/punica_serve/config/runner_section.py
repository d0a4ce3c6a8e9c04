"""The config section `runner`: the workers of one host."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from punica_serve.config.device_groups import grouped, ranks_of
from punica_serve.config.fields import ConfigModel, Device, PositiveInt, Seconds


class RunnerConfig(ConfigModel):
    """The workers of one host."""

    #: One worker for each: "cpu", "cuda:0", or "simulated", which only keeps accounts and runs no model. A group, such
    #: as "cuda:0,cuda:1", serves one copy of the model together: each GPU a share of it, in a process of its own.
    devices: Annotated[tuple[Device, ...], Field(min_length=1)] = ("cpu",)
    #: Makes groups of so many neighbouring `devices`.
    tensor_parallel: PositiveInt = 1
    #: A worker that is not ready by then is killed and restarted.
    ready_timeout_s: Seconds = 300.0
    #: A worker that answers no ping for this long, as after SIGSTOP, is killed and restarted.
    silence_timeout_s: Seconds = 10.0
    #: A worker that answers but completes no step for this long, although a request could run, is killed and restarted.
    #: Must exceed the longest step, kernel compilation included. Requests awaiting their adapter don't count.
    step_timeout_s: Seconds = 60.0
    #: How long a slow store may keep a request on a GPU awaiting its adapter; after that the request tries another GPU.
    #: Then no request waits on a GPU until the store has delivered again. The adapter is still loaded.
    fetch_timeout_s: Seconds = 10.0
    #: How long a worker may take to stop before it is killed.
    stop_timeout_s: Seconds = 5.0
    #: After SIGTERM, how long requests have to move to other runners before the workers stop anyway.
    drain_timeout_s: Seconds = 30.0

    @property
    def workers(self) -> tuple[str, ...]:
        """The device or group of each worker."""
        return grouped(self.devices, self.tensor_parallel)

    @property
    def group_size(self) -> int:
        """Devices of each worker: all have as many."""
        return len(ranks_of(self.workers[0]))

    @model_validator(mode="after")
    def _groups_are_possible(self) -> Self:
        grouped(self.devices, self.tensor_parallel)
        return self
