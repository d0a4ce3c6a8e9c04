"""The options of `bench frontend`."""

from dataclasses import dataclass
from typing import Literal

StreamApi = Literal["websocket", "http", "chat", "generate"]

#: Time before the measurement, in which every client begins.
WARM_UP_S = 1.0


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
