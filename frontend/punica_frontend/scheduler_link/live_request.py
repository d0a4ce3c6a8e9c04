"""One request that this frontend owns, from when it is added until it finishes. Does no input or output."""

from collections.abc import Callable

import msgspec

from punica_frontend.api.errors import SlowReader
from punica_serve.errors import ProtocolError
from punica_serve.protocol import Ending, FinishReason, RateLimits, Request, TenantQuota, TokenLogprobs, WireError


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """The output of a request since the delivery before: tokens from ``position`` on, its end, or both."""

    position: int
    token_ids: tuple[int, ...] = ()
    #: One for each of token_ids, or empty if the request asked for none.
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    #: Set if and only if the finish_reason is "error".
    error: WireError | None = None
    #: Prompt tokens found in the KvCache; None where GPUs share no pages, or before the first token.
    num_cached_tokens: int | None = None


#: How much untaken output one reader may have. A token counts TOKEN_BYTES, and as much again for each of its logprobs.
MAX_BACKLOG_BYTES = 16 << 20
TOKEN_BYTES = 64

#: The most that one delivery holds. As JSON it takes up to twice as much, and many clients accept no frame over 1 MiB.
MAX_DELIVERY_BYTES = 256 << 10


def _ignore() -> None:
    pass


class Backlog:
    """The untaken output of all of one reader's requests, in bytes."""

    def __init__(self, max_bytes: int = MAX_BACKLOG_BYTES) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Adds bytes. Raises SlowReader, and adds nothing, beyond the limit."""
        if self.num_bytes + num_bytes > self._max_bytes:
            raise SlowReader(
                f"the client reads too slowly: {self.num_bytes} bytes of its answers are waiting; read faster"
            )
        self.num_bytes += num_bytes


class LiveRequest:
    """Receives tokens from the scheduler, hands them to the client's side, and can resume in the cluster.

    Every token comes out once and in order. Untaken tokens are merged into deliveries of up to MAX_DELIVERY_BYTES, so a
    slow reader costs no more memory than its backlog allows.
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
        """``handle`` names it on the link; ``on_ready`` is called when it has output to take.

        ``account`` receives its resource usage when the scheduler ends it, for whatever reason.
        """
        self.handle = handle
        self.request = request
        self.quota = quota
        self.account = account
        #: May take a token while no output waits; returns whether it did. None: all tokens wait for ``take``.
        self.direct: Callable[[int], bool] | None = None
        #: The tenant's remaining quota as the scheduler last sent it, until it is passed on.
        self.rate_limits: RateLimits | None = None
        #: Prompt tokens found in the KvCache, once its first token has come from a GPU that shares pages.
        self.num_cached_tokens: int | None = None
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
        """Whether the scheduler has sent its last message about the request."""
        return self._ending is not None

    def accept(
        self, position: int, token_id: int, logprobs: TokenLogprobs | None = None, *, is_last: bool = False
    ) -> None:
        """Takes the next token; ignores one that it already has. ``is_last``: its end follows at once.

        Raises ProtocolError if tokens are missing, and SlowReader if the backlog is full.
        """
        num_known = len(self._generated)
        if self._ending is not None or position < num_known:
            return
        if position > num_known:
            raise self._gap(position)
        is_plain = logprobs is None and self.rate_limits is None and not is_last
        if is_plain and self.direct is not None and self._num_taken == position and self.direct(token_id):
            self._generated.append(token_id)
            self._num_taken += 1
            return
        num_bytes = TOKEN_BYTES if logprobs is None else TOKEN_BYTES * (2 + len(logprobs.top_ids))
        self._backlog.add(num_bytes)
        self._num_untaken_bytes += num_bytes
        self._generated.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        if not is_last:  # so that the end goes with the last token
            self.become_ready()

    def end(self, ending: Ending) -> None:
        """Ends the request, unless the end belongs to a shorter, outdated stream.

        Raises ProtocolError for missing tokens.
        """
        is_stale = ending.num_tokens < len(self._generated) and ending.reason != "error"
        if self._ending is not None:
            return
        if is_stale:
            self.offer_rest()
            return
        if ending.num_tokens > len(self._generated):
            raise self._gap(ending.num_tokens)
        self._finish(ending.reason, ending.error)

    def fail(self, error: WireError) -> None:
        """Ends the request with an error of this frontend, unless it has ended."""
        if self._ending is None:
            self._finish("error", error)

    def take(self) -> Delivery:
        """Returns the output since the last call, or its first part. The end comes with the last part."""
        self._is_ready = False
        position, num_waiting = self._num_taken, len(self._generated) - self._num_taken
        num_tokens = self._num_together(num_waiting)
        # All tokens of a request count about the same.
        self._release_bytes(self._num_untaken_bytes * num_tokens // max(1, num_waiting))
        self._num_taken += num_tokens
        logprobs, self._logprobs = tuple(self._logprobs[:num_tokens]), self._logprobs[num_tokens:]
        ending = self._ending if num_tokens == num_waiting else None
        token_ids = tuple(self._generated[position : self._num_taken])
        reason, error = ending or (None, None)
        return Delivery(position, token_ids, logprobs, reason, error, self.num_cached_tokens)

    def offer_rest(self) -> None:
        """Signals readiness again if output is left after the last ``take``."""
        if self._num_taken < len(self._generated):
            self.become_ready()

    def become_ready(self) -> None:
        """Signals readiness, unless that was done since the last ``take``."""
        if not self._is_ready:
            self._is_ready = True
            self._on_ready()

    def forget_reader(self) -> None:
        """Stops counting untaken output, which will never be taken, and signals nothing more.

        A reader has its requests, so one that has it would wait for the garbage collector, with all its tokens.
        """
        self._release_bytes(self._num_untaken_bytes)
        self.direct, self._on_ready = None, _ignore

    def resumed(self) -> Request:
        """Returns the request to add again, with all tokens received so far."""
        return msgspec.structs.replace(self.request, generated_ids=tuple(self._generated))

    def _num_together(self, num_waiting: int) -> int:
        """Returns how many waiting tokens one delivery holds: all of a failed request's, since none is shown."""
        has_failed = self._ending is not None and self._ending[0] == "error"
        if has_failed or self._num_untaken_bytes <= MAX_DELIVERY_BYTES:
            return num_waiting
        return max(1, num_waiting * MAX_DELIVERY_BYTES // self._num_untaken_bytes)

    def _release_bytes(self, num_bytes: int) -> None:
        self._backlog.num_bytes -= num_bytes
        self._num_untaken_bytes -= num_bytes

    def _gap(self, position: int) -> ProtocolError:
        return ProtocolError(
            f"request {self.request.request_id} was delivered position {position} instead of {len(self._generated)}"
        )

    def _finish(self, reason: FinishReason, error: WireError | None) -> None:
        self._ending = (reason, error)
        self.become_ready()
