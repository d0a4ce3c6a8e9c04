"""The deadlines of a group of ranks."""

from dataclasses import dataclass


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

    def exchange_limit_s(self, device: str) -> float:
        """The longest exchange of a process group. Ranks on GPUs compile kernels between two of them at the start.

        Later on CUDA graphs make them, without any limit.
        """
        return self.exchange_timeout_s if device == "cpu" else self.ready_timeout_s
