"""One request that this frontend owns, from the moment it is added until it finishes. Does no input or output."""

import asyncio

import msgspec

from punica_serve.errors import ProtocolError
from punica_serve.protocol import Delivery, FinishReason, Request, TokenLogprobs, WireError


class LiveRequest:
    """Takes deliveries from the scheduler, gives them to the client's side, and can start over from where it is.

    Every token comes out once and in order. Deliveries that nobody has taken yet are merged into one, so a slow reader
    costs no more memory than the request's tokens.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._generated = list(request.generated_ids)
        self._num_taken = len(self._generated)
        self._logprobs: list[TokenLogprobs] = []
        self._finish_reason: FinishReason | None = None
        self._error: WireError | None = None
        #: Set while there is something to take.
        self.ready = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """The scheduler has nothing more to say about it."""
        return self._finish_reason is not None

    def accept(self, delivery: Delivery) -> None:
        """Takes what is new of a delivery, drops what came before. Raises ProtocolError when tokens are missing."""
        next_position = len(self._generated)
        if delivery.position > next_position:
            raise ProtocolError(
                f"request {delivery.request_id} was delivered position {delivery.position} instead of {next_position}"
            )
        num_old = next_position - delivery.position
        is_stale = num_old > len(delivery.token_ids) and delivery.finish_reason != "error"
        if self.is_finished or is_stale:
            return
        self._generated += delivery.token_ids[num_old:]
        self._logprobs += delivery.logprobs[num_old:]
        self._finish_reason = delivery.finish_reason
        self._error = delivery.error
        if delivery.token_ids[num_old:] or self.is_finished:
            self.ready.set()

    def fail(self, error: WireError) -> None:
        """Ends the request from this side."""
        self.accept(Delivery(self._request.request_id, len(self._generated), finish_reason="error", error=error))

    def take(self) -> Delivery:
        """All that has come since the last time."""
        self.ready.clear()
        position, self._num_taken = self._num_taken, len(self._generated)
        logprobs, self._logprobs = tuple(self._logprobs), []
        return Delivery(
            request_id=self._request.request_id,
            position=position,
            token_ids=tuple(self._generated[position:]),
            logprobs=logprobs,
            finish_reason=self._finish_reason,
            error=self._error,
        )

    def resumed(self) -> Request:
        """The request as it has to be added again, with all tokens that have come."""
        return msgspec.structs.replace(self._request, generated_ids=tuple(self._generated))
