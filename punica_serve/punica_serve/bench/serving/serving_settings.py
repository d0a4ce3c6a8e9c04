"""The options of `bench serving`."""

from dataclasses import dataclass
from typing import Literal

from punica_serve.bench.serving.served_times import ServiceLevel
from punica_serve.bench.serving.serving_workloads import PopulationName, WorkloadName

ApiName = Literal["http", "websocket"]
APIS: tuple[ApiName, ...] = ("http", "websocket")

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

    @property
    def load(self) -> str:
        """The load in words."""
        if self.rate_per_s is not None:
            return f"Poisson arrivals, {self.rate_per_s:g} requests/s"
        return f"closed loop of {self.num_clients} clients"
