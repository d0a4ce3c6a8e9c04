"""The options of `bench frontend`."""

from dataclasses import dataclass
from typing import Literal

from punica_serve.errors import ConfigError

StreamApi = Literal["websocket", "http"]

#: Tokens of each answer; the demo's context holds a little more.
MAX_TOKENS = 900
#: Time before the measurement, in which every request begins.
WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class FrontendSettings:
    """A load. Raises ConfigError if its requests would end too early."""

    #: http: server-sent events of completions.
    api: StreamApi
    num_sockets: int
    requests_per_socket: int
    num_gpus: int
    tokens_per_s: float
    seconds: float

    def __post_init__(self) -> None:
        num_tokens = (self.seconds + WARM_UP_S) * self.tokens_per_s / self.num_requests
        if num_tokens > MAX_TOKENS:
            raise ConfigError(
                f"{num_tokens:.0f} tokens for each request exceed the {MAX_TOKENS} that an answer may have; "
                "measure for a shorter time, or with more requests",
                param="seconds",
            )

    @property
    def num_requests(self) -> int:
        return self.num_sockets * self.requests_per_socket

    @property
    def num_connections(self) -> int:
        return self.num_sockets if self.api == "websocket" else self.num_requests

    @property
    def step_s(self) -> float:
        """Duration of a step, in which each GPU makes a token for each of its requests."""
        return self.num_requests / self.tokens_per_s
