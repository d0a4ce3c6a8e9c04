"""The options of `bench frontend`."""

import math
from dataclasses import dataclass
from typing import Literal

from punica_serve.errors import ConfigError

StreamApi = Literal["websocket", "http", "chat", "generate"]

#: Time before the measurement, in which every client begins.
WARM_UP_S = 1.0


_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class FrontendSettings:
    """A load of clients that ask again as soon as their answers end."""

    #: http, chat, generate: server-sent events of completions, of chat completions, of the native API.
    api: StreamApi
    num_sockets: int
    requests_per_socket: int
    num_gpus: int
    tokens_per_s: float
    seconds: float
    #: Lengths of each request. A chat's prompt is one message of as many letters.
    prompt_tokens: int
    answer_tokens: int
    #: Requests take them in turn; 0: the base model serves all.
    num_adapters: int = 0

    def __post_init__(self) -> None:
        """Raises ConfigError if the measured seconds may have no token."""
        # The rates and times that the message advises are rounded.
        if self.longest_pause_s <= self.seconds * (1 + _ROUNDING):
            return
        pause_s, seconds = self.longest_pause_s, self.seconds
        least_rate, least_s = _raised(self.tokens_per_s * pause_s / seconds), _raised(pause_s)
        message = (
            f"`--tokens-per-s` {self.tokens_per_s:g} may bring no token for {pause_s:.3g} s, and `--seconds` is"
            f" {seconds:g}; give `--tokens-per-s` {least_rate} or more, or `--seconds` {least_s} or more"
        )
        raise ConfigError(message, param="tokens_per_s")

    @property
    def num_requests(self) -> int:
        """Requests that run at the same time."""
        return self.num_sockets * self.requests_per_socket

    @property
    def num_connections(self) -> int:
        return self.num_sockets if self.api == "websocket" else self.num_requests

    @property
    def step_s(self) -> float:
        """Duration of a step, in which each GPU makes a token for each of its requests."""
        return self.num_requests / self.tokens_per_s

    @property
    def longest_pause_s(self) -> float:
        """Longest time without a token. GPUs take turns in a step, and those without a request bring none."""
        num_idle = max(0, self.num_gpus - self.num_requests)
        return self.step_s * (num_idle + 1) / self.num_gpus


def _raised(value: float) -> str:
    """The value with two decimals, rounded up, so that it is enough."""
    return f"{math.ceil(value * 100) / 100:.12g}"
