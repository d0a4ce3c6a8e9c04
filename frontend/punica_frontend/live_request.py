"""One request that this frontend owns, from the moment it is added until it finishes. Does no input or output."""

import asyncio
from dataclasses import dataclass

import msgspec

from punica_serve.errors import ProtocolError
from punica_serve.protocol import Ending, FinishReason, Request, TokenLogprobs, WireError


@dataclass(frozen=True, slots=True)
class Delivery:
    """What has come of a request since the delivery before: tokens from ``position`` on, its end, or both."""

    position: int
    token_ids: tuple[int, ...] = ()
    #: As many as token_ids, or empty when the request asked for none.
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    #: Given exactly when the finish_reason is "error".
    error: WireError | None = None


class LiveRequest:
    """Takes tokens from the scheduler, gives them to the client's side, and can start over from where it is.

    Every token comes out once and in order. Those that nobody has taken yet come out together, so that a slow reader
    costs no more memory than the request's tokens.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._generated = list(request.generated_ids)
        self._num_taken = len(self._generated)
        self._logprobs: list[TokenLogprobs] = []
        self._ending: tuple[FinishReason, WireError | None] | None = None
        #: Set while there is something to take.
        self.ready = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """The scheduler has nothing more to say about it."""
        return self._ending is not None

    def accept(self, position: int, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """Takes a token if it is the next, drops one that came before. Raises ProtocolError when some are missing."""
        if self._ending is not None or position < len(self._generated):
            return
        self._check_no_gap(position)
        self._generated.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        self.ready.set()

    def end(self, ending: Ending) -> None:
        """Ends the request, unless it is a shorter stream's end. Raises ProtocolError when tokens are missing."""
        is_stale = ending.num_tokens < len(self._generated) and ending.reason != "error"
        if self._ending is not None or is_stale:
            return
        self._check_no_gap(ending.num_tokens)
        self._finish(ending.reason, ending.error)

    def fail(self, error: WireError) -> None:
        """Ends the request from this side, unless it has ended."""
        if self._ending is None:
            self._finish("error", error)

    def take(self) -> Delivery:
        """All that has come since the last time."""
        self.ready.clear()
        position, self._num_taken = self._num_taken, len(self._generated)
        logprobs, self._logprobs = tuple(self._logprobs), []
        return Delivery(position, tuple(self._generated[position:]), logprobs, *(self._ending or ()))

    def resumed(self) -> Request:
        """The request as it has to be added again, with all tokens that have come."""
        return msgspec.structs.replace(self._request, generated_ids=tuple(self._generated))

    def _check_no_gap(self, position: int) -> None:
        expected = len(self._generated)
        if position > expected:
            raise ProtocolError(
                f"request {self._request.request_id} was delivered position {position} instead of {expected}"
            )

    def _finish(self, reason: FinishReason, error: WireError | None) -> None:
        self._ending = (reason, error)
        self.ready.set()
