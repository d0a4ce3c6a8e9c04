"""The output of one request, from the cluster to its client."""

import time
from collections.abc import Callable
from functools import partial

from punica_frontend.api.errors import from_wire
from punica_frontend.generation.answers import Frame
from punica_frontend.generation.direct_output import DirectOutput
from punica_frontend.generation.rate_limits import record_rate_limits
from punica_frontend.generation.request_account import RequestAccount
from punica_frontend.generation.text_stream import TextStream
from punica_frontend.metrics.metrics import outcome_of
from punica_frontend.scheduler_link.live_request import LiveRequest
from punica_serve.errors import PunicaError, RequestFailed


class ResponseStream:
    """Yields the frames of an answer by ``take``, each with the output since the one before.

    Tokens may be written directly instead, by ``write_tokens``.

    The caller must close it, before or after the last frame; closing cancels a running request.
    """

    def __init__(
        self,
        live: LiveRequest,
        text: TextStream,
        account: RequestAccount,
        release: Callable[[LiveRequest], None],
        *,
        lora_id: str | None = None,
    ) -> None:
        """On close ``release`` is called once with ``live``, and the account is closed.

        ``lora_id`` is the client's name for the adapter; behind the frontend only its digest is known.
        """
        self._live = live
        self._text = text
        self._account = account
        self._metrics, self._charge = account.metrics, account.charge
        self._release = release
        self._lora_id = lora_id
        self._is_open = True
        #: The end that a token met which was written directly, until it is taken.
        self._met: Frame | Exception | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return self._text.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Generated tokens in the frames so far."""
        return self._text.num_tokens

    @property
    def is_open(self) -> bool:
        return self._is_open

    def write_tokens(self, index: int, direct: DirectOutput) -> None:
        """Lets ``direct`` write tokens of the plan at ``index`` that come while no output waits, past ``take``."""
        self._live.direct = partial(self._write, index, direct)

    def take(self) -> Frame:
        """Returns the next frame. There is none after one with a finish_reason.

        Raises the PunicaError with which the cluster ended the request.
        """
        self.record_rate_limits()
        try:
            return self._take() if self._met is None else self._take_met()
        except Exception as error:
            self._metrics.outcome = outcome_of(error)
            raise

    def record_rate_limits(self) -> None:
        """Tells the answer's headers what has come since."""
        if self._live.rate_limits:
            record_rate_limits(self._live.rate_limits)
            self._live.rate_limits = None

    def close(self) -> None:
        """Idempotent."""
        if self._is_open:
            self._is_open = False
            self._release(self._live)
            self._account.close()
            self._live.forget_reader()

    def _take(self) -> Frame:
        delivery = self._live.take()
        if delivery.error:
            raise self._with_name(from_wire(delivery.error))
        if delivery.finish_reason == "error":
            raise RequestFailed("the cluster failed to complete the request; try again")
        frame = self._text.feed(delivery)
        num_cached_tokens = delivery.num_cached_tokens or 0
        self._metrics.num_cached_tokens = num_cached_tokens
        self._metrics.add_tokens(len(frame.token_ids), time.monotonic())
        self._charge.add_tokens(len(frame.token_ids), num_cached_tokens)
        if frame.finish_reason:
            self._metrics.outcome = frame.finish_reason
        else:
            self._live.offer_rest()
        return frame

    def _write(self, index: int, direct: DirectOutput, token_id: int) -> bool:
        """Writes a token if that is possible now; returns whether it was taken. A stop string's end is for ``take``."""
        encode = direct.encoder(index)
        if encode is None:
            return False
        try:
            added = self._text.add(token_id, self._live.num_cached_tokens)
            self._metrics.add_tokens(1, time.monotonic())
            self._charge.add_tokens(1)
            if isinstance(added, Frame):
                self._metrics.outcome = "stop"
                self._meet(added)
            elif piece := encode(token_id, added, self._text.num_tokens):
                direct.write(piece)
        except Exception as error:  # it is the reader's, and must not end the scheduler's link
            self._meet(error)
        return True

    def _meet(self, end: Frame | Exception) -> None:
        """Leaves an end to the reader."""
        self._met = end
        self._live.become_ready()

    def _take_met(self) -> Frame:
        met, self._met = self._met, None
        assert met is not None
        if isinstance(met, Exception):
            raise met
        return met

    def _with_name(self, error: PunicaError) -> PunicaError:
        """Adds the client's name for the adapter to an error about it."""
        if self._lora_id is None or error.param != "lora_id":
            return error
        message = f"adapter {self._lora_id!r}: {error.message}"
        return type(error)(message, param=error.param, retry_after_s=error.retry_after_s)
