"""The options of `bench serving`."""

from dataclasses import dataclass
from typing import Literal

from punica_serve.bench.serving.served_times import ServiceLevel
from punica_serve.bench.serving.serving_workloads import PopulationName, WorkloadName
from punica_serve.errors import ConfigError

#: engine: none of the stack, the bare engine in this process.
ApiName = Literal["http", "websocket", "engine"]

#: Deadline of one request; its answer counts as failed after it.
REQUEST_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """One run."""

    workloads: tuple[WorkloadName, ...]
    populations: tuple[PopulationName, ...]
    apis: tuple[ApiName, ...]
    #: By workload.
    num_requests: tuple[int, ...]
    #: Clients of the closed loop; of no meaning with ``rate_per_s``.
    num_clients: int
    level: ServiceLevel
    #: Poisson arrivals in a second instead of a closed loop.
    rate_per_s: float | None = None
    #: With Poisson arrivals: the requests of one prefix arrive together.
    groups_together: bool = False
    rank: int = 16
    #: Tokens of the prompts that one more client sends beside each load; None: there is none.
    long_prompt: int | None = None
    #: Requests in one step of a cluster that is started; None leaves the config's.
    batch_size: int | None = None
    #: The server to measure; None starts a cluster.
    url: str | None = None
    #: Its names for adapters, with ``{}`` for their numbers.
    adapter_name: str = "dummy-{}"

    def __post_init__(self) -> None:
        """Raises ConfigError for what a bare engine can't do."""
        others = (("--url", self.url), ("--rate", self.rate_per_s), ("--long-prompt", self.long_prompt))
        for option, value in others if "engine" in self.apis else ():
            if value is not None:
                message = f"`--apis engine` runs a closed loop on an engine of its own; leave `{option}` out"
                raise ConfigError(message, param="apis")

    @property
    def served_apis(self) -> tuple[ApiName, ...]:
        """The APIs of the server."""
        return tuple(api for api in self.apis if api != "engine")

    @property
    def load(self) -> str:
        """The load in words."""
        if self.rate_per_s is not None:
            return f"Poisson arrivals, {self.rate_per_s:g} requests/s"
        return f"closed loop of {self.num_clients} clients"

    @property
    def adapters(self) -> str:
        """The adapters in words. The rank is unknown for another server."""
        return f"rank {self.rank}" if self.url is None else f"the adapters {self.adapter_name!r} of {self.url}"
