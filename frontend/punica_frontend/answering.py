"""One request on its way from the cluster to its client."""

import time
from collections.abc import Callable

from punica_frontend.answers import Frame
from punica_frontend.errors import from_wire
from punica_frontend.live_request import LiveRequest
from punica_frontend.metrics.figures import RequestFigures, outcome_of
from punica_frontend.tenancy.meter import Charge
from punica_frontend.text_stream import TextStream
from punica_serve.errors import PunicaError, RequestFailed


class Answering:
    """Gives the frames of an answer, each with what has come since the one before.

    Whoever has it must close it, after the last frame was sent or before; that cancels a request that goes on.
    """

    def __init__(
        self,
        live: LiveRequest,
        text: TextStream,
        figures: RequestFigures,
        charge: Charge,
        release: Callable[[LiveRequest], None],
        *,
        lora_id: str | None = None,
    ) -> None:
        """``release`` is called once with ``live``, which nobody wants any more.

        ``lora_id`` is the client's name for the adapter, which behind the frontend is known by its digest alone.
        """
        self._live = live
        self._text = text
        self._figures = figures
        self._charge = charge
        self._release = release
        self._lora_id = lora_id
        self._is_open = True

    @property
    def num_prompt_tokens(self) -> int:
        return self._text.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Generated, in the frames so far."""
        return self._text.num_tokens

    def take(self) -> Frame:
        """The next frame; after one with a finish_reason there is none.

        Raises what the cluster ended the request with, as one of the PunicaErrors.
        """
        try:
            return self._take()
        except Exception as error:
            self._figures.outcome = outcome_of(error)
            raise

    def close(self) -> None:
        """May be called again."""
        if self._is_open:
            self._is_open = False
            self._figures.end(time.monotonic())
            self._release(self._live)
            self._live.leave_backlog()

    def _take(self) -> Frame:
        delivery = self._live.take()
        if delivery.error:
            raise self._with_name(from_wire(delivery.error))
        if delivery.finish_reason == "error":
            raise RequestFailed("the cluster gave up on the request")
        frame = self._text.feed(delivery)
        self._figures.add_tokens(len(frame.token_ids), time.monotonic())
        self._charge.add_tokens(len(frame.token_ids))
        if frame.finish_reason:
            self._figures.outcome = frame.finish_reason
        else:
            self._live.offer_rest()
        return frame

    def _with_name(self, error: PunicaError) -> PunicaError:
        """What is said of the adapter, with the name that the client gave it."""
        if self._lora_id is None or error.param != "lora_id":
            return error
        message = f"adapter {self._lora_id!r}: {error.message}"
        return type(error)(message, param=error.param, retry_after_s=error.retry_after_s)
