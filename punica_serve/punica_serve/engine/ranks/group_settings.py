"""The deadlines of a group of ranks, and where its hosts meet."""

from dataclasses import dataclass, field

from punica_serve.config.runner_section import RunnerConfig, split_address

#: The share of the time for a worker's start after which a group says which rank is late, before the worker's
#: supervisor kills it.
_SOONER = 0.9


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the leader of a group waits for the other hosts."""

    host: str
    port: int
    #: The cluster's token, by which the hosts know each other.
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, address: str, token: str) -> "Rendezvous":
        """``address``: HOST:PORT."""
        return cls(*split_address(address), token.encode())

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Seconds; a runner has its own in ``RunnerConfig``."""

    #: Until all ranks have loaded the model and captured their graphs.
    ready_timeout_s: float = 600.0
    #: A rank that answers no ping for this long is lost.
    silence_timeout_s: float = 10.0
    #: An exchange between CPUs that takes longer fails.
    exchange_timeout_s: float = 60.0
    #: Until the ranks have ended; after that they are killed.
    stop_timeout_s: float = 5.0
    #: The ranks' processes are called this and a number in their logs.
    name: str = "rank"
    log_level: str = "warning"
    log_format: str = "text"
    #: For a group over several hosts.
    rendezvous: Rendezvous | None = None

    @classmethod
    def of_runner(
        cls, runner: RunnerConfig, name: str, log_level: str, log_format: str, rendezvous: Rendezvous | None
    ) -> "GroupSettings":
        """The deadlines of a runner's group, within those of its workers."""
        return cls(
            ready_timeout_s=_SOONER * runner.ready_timeout_s,
            silence_timeout_s=runner.silence_timeout_s,
            exchange_timeout_s=runner.step_timeout_s,
            stop_timeout_s=runner.stop_timeout_s,
            name=name,
            log_level=log_level,
            log_format=log_format,
            rendezvous=rendezvous,
        )

    def exchange_limit_s(self, device: str) -> float:
        """The longest exchange of a process group. Ranks on GPUs compile kernels between two of them at the start.

        Later on CUDA graphs make them, without any limit.
        """
        return self.exchange_timeout_s if device == "cpu" else self.ready_timeout_s
