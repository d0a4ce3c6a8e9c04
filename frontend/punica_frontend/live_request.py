"""One request that this frontend owns, from the moment it is added until it finishes. Does no input or output."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from punica_serve.errors import OutOfCapacity, ProtocolError
from punica_serve.protocol import Ending, FinishReason, Request, TenantQuota, TokenLogprobs, WireError


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


#: What may wait for one reader. A token takes TOKEN_BYTES, and as much again for each logprob that goes with it.
MAX_BACKLOG_BYTES = 16 << 20
TOKEN_BYTES = 64

#: Of what waits, what comes out together. As JSON it takes up to twice as much; many clients take no frame over 1 MiB.
MAX_DELIVERY_BYTES = 256 << 10


class SlowReader(OutOfCapacity):
    """A client reads its answers too slowly, and too much of them waits."""

    code = "slow_reader"


class Backlog:
    """How much waits to be taken by one reader, of all its requests."""

    def __init__(self, max_bytes: int = MAX_BACKLOG_BYTES) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Raises SlowReader, and adds nothing, where it would be too much."""
        if self.num_bytes + num_bytes > self._max_bytes:
            raise SlowReader(f"the client reads too slowly: {self.num_bytes} bytes of its answers wait")
        self.num_bytes += num_bytes


class LiveRequest:
    """Takes tokens from the scheduler, gives them to the client's side, and can start over from where it is.

    Every token comes out once and in order. Those that nobody has taken yet come out together, up to MAX_DELIVERY_BYTES
    of them, so that a slow reader costs no more memory than its backlog may have.
    """

    def __init__(
        self,
        handle: int,
        request: Request,
        quota: TenantQuota | None,
        on_ready: Callable[[], None],
        backlog: Backlog,
        account: Callable[[Ending], None],
    ) -> None:
        """``handle`` is the scheduler's name for it; ``on_ready`` is called when it has something to take.

        ``account`` is told what it took when the scheduler ends it, on whoever's behalf.
        """
        self.handle = handle
        self.request = request
        self.quota = quota
        self.account = account
        self._on_ready = on_ready
        self._backlog = backlog
        self._generated = list(request.generated_ids)
        self._num_taken = len(self._generated)
        self._logprobs: list[TokenLogprobs] = []
        self._ending: tuple[FinishReason, WireError | None] | None = None
        self._num_untaken_bytes = 0
        self._is_ready = False

    @property
    def is_finished(self) -> bool:
        """The scheduler has nothing more to say about it."""
        return self._ending is not None

    def accept(self, position: int, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """Takes a token if it is the next, drops one that came before.

        Raises ProtocolError when some are missing, and SlowReader for one that the backlog has no room for.
        """
        if self._ending is not None or position < len(self._generated):
            return
        self._check_no_gap(position)
        num_bytes = TOKEN_BYTES if logprobs is None else TOKEN_BYTES * (2 + len(logprobs.top_ids))
        self._backlog.add(num_bytes)
        self._num_untaken_bytes += num_bytes
        self._generated.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        self._become_ready()

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
        """What has come since the last time, or the first part of it; its end comes with the last part."""
        self._is_ready = False
        position, num_waiting = self._num_taken, len(self._generated) - self._num_taken
        num_tokens = self._num_together(num_waiting)
        # All tokens of a request ask for about as many bytes.
        self._leave(self._num_untaken_bytes * num_tokens // max(1, num_waiting))
        self._num_taken += num_tokens
        logprobs, self._logprobs = tuple(self._logprobs[:num_tokens]), self._logprobs[num_tokens:]
        ending = self._ending if num_tokens == num_waiting else None
        return Delivery(position, tuple(self._generated[position : self._num_taken]), logprobs, *(ending or ()))

    def offer_rest(self) -> None:
        """It is ready again if there is more to take than came the last time."""
        if self._num_taken < len(self._generated):
            self._become_ready()

    def leave_backlog(self) -> None:
        """What waits counts no longer: it never will be taken."""
        self._leave(self._num_untaken_bytes)

    def resumed(self) -> Request:
        """The request as it has to be added again, with all tokens that have come."""
        return msgspec.structs.replace(self.request, generated_ids=tuple(self._generated))

    def _num_together(self, num_waiting: int) -> int:
        """How many of the tokens that wait come out together. With an error all do: they are not shown."""
        has_failed = self._ending is not None and self._ending[0] == "error"
        if has_failed or self._num_untaken_bytes <= MAX_DELIVERY_BYTES:
            return num_waiting
        return max(1, num_waiting * MAX_DELIVERY_BYTES // self._num_untaken_bytes)

    def _leave(self, num_bytes: int) -> None:
        self._backlog.num_bytes -= num_bytes
        self._num_untaken_bytes -= num_bytes

    def _check_no_gap(self, position: int) -> None:
        expected = len(self._generated)
        if position > expected:
            raise ProtocolError(
                f"request {self.request.request_id} was delivered position {position} instead of {expected}"
            )

    def _finish(self, reason: FinishReason, error: WireError | None) -> None:
        self._ending = (reason, error)
        self._become_ready()

    def _become_ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._on_ready()
