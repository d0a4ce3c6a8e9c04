"""The config section `runner`: the workers of one host, or of the hosts that share one group."""

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from punica_serve.config.device_groups import grouped, on_hosts, ranks_of, why_no_group
from punica_serve.config.fields import ConfigModel, Device, PositiveInt, Seconds
from punica_serve.protocol.runner import MAX_RANKS

_WILDCARDS = ("0.0.0.0", "::")


def _checked_address(text: str) -> str:
    split_address(text)
    return text


def split_address(text: str) -> tuple[str, int]:
    """The host and the port of "HOST:PORT", or of "[HOST]:PORT" for IPv6. Raises ValueError."""
    try:
        url = urlsplit(f"//{text}")
        host, port = url.hostname, url.port
    except ValueError:
        host, port = None, None
    if not host or not port or url.netloc != text or "@" in text:
        raise ValueError("must be HOST:PORT, such as 10.0.0.1:29500")
    if host in _WILDCARDS:
        raise ValueError(f"{host} is no address that other hosts reach; name one of host 0's own, such as 10.0.0.1")
    return host, port


#: HOST:PORT.
Address = Annotated[str, Field(min_length=1), AfterValidator(_checked_address)]


class RunnerConfig(ConfigModel):
    """The workers of one host."""

    #: One worker for each: "cpu", "cuda:0", or "simulated", which only keeps accounts and runs no model. A group, such
    #: as "cuda:0,cuda:1", serves one copy of the model together: each GPU a share of it, in a process of its own.
    devices: Annotated[tuple[Device, ...], Field(min_length=1)] = ("cpu",)
    #: Makes groups of so many neighbouring `devices`.
    tensor_parallel: PositiveInt = 1
    #: Hosts of one group, each with these `devices`, which must be one worker's. Host 0 has the runner, and the others
    #: join it: `punica-serve runner --host-index 1`, and so on.
    hosts: Annotated[PositiveInt, Field(le=MAX_RANKS)] = 1
    #: For several hosts: an address of host 0, HOST:PORT, at which its runner waits for the others.
    rendezvous: Address | None = None
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
        groups = grouped(self.devices, self.tensor_parallel)
        return groups if self.hosts == 1 else tuple(on_hosts(group, self.hosts) for group in groups)

    @property
    def group_size(self) -> int:
        """Devices of each worker: all have as many."""
        return len(ranks_of(self.workers[0]))

    @model_validator(mode="after")
    def _groups_are_possible(self) -> Self:
        grouped(self.devices, self.tensor_parallel)
        return self

    @model_validator(mode="after")
    def _hosts_can_meet(self) -> Self:
        if self.hosts == 1:
            if self.rendezvous is not None:
                raise ValueError("`rendezvous` is for groups over several hosts; set `hosts`, or leave it out")
            return self
        if self.rendezvous is None:
            raise ValueError(
                f"`hosts` is {self.hosts} and `rendezvous` is not set; set it to an address of host 0 that the others"
                " reach, such as 10.0.0.1:29500"
            )
        if len(self.workers) > 1:
            raise ValueError(
                f"`hosts` is {self.hosts}, so `devices` must be one group, not {len(self.workers)} workers; set"
                f" `tensor_parallel` to {len(self.devices)}, or name fewer devices"
            )
        if reason := why_no_group(ranks_of(self.workers[0])):
            raise ValueError(f"`hosts` is {self.hosts}, each with `devices` {list(self.devices)}: {reason}")
        return self
