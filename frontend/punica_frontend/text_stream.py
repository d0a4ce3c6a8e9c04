"""Deliveries of one request to frames of its answer. Pure."""

import msgspec
from punica_serve.protocol import Delivery, FinishReason, Request
from punica_serve.text.detokenizer import IncrementalDetokenizer
from punica_serve.text.stop_strings import StopStrings
from punica_serve.text.tokenizer import Tokenizer

from punica_frontend.answers import Frame, logprobs, usage


class TextStream:
    """Detokenizes, and ends the answer before a stop string.

    Tokens up to the one that completes a stop string are part of the answer; later ones are dropped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: Request,
        *,
        answer_id: str,
        stops: tuple[str, ...],
        end_ids: frozenset[int],
    ) -> None:
        """``answer_id`` is what the client calls the request; ``end_ids`` are the tokens that end it without a text."""
        self._request = request
        self._answer_id = answer_id
        self._detokenizer = IncrementalDetokenizer(tokenizer, request.prompt_ids)
        self._stops = StopStrings(stops)
        self._end_ids = end_ids
        #: Generated tokens in the frames so far.
        self.num_tokens = 0

    def feed(self, delivery: Delivery) -> Frame:
        """The frame of the next delivery; after one with a finish_reason there is none."""
        index = self.num_tokens
        text, num_tokens, finish_reason = self._text_of(delivery)
        token_ids = delivery.token_ids[:num_tokens]
        self.num_tokens += num_tokens
        wants_logprobs = self._request.sampling.logprobs is not None
        return Frame(
            request_id=self._answer_id,
            index=index,
            token_ids=token_ids,
            text=text,
            finish_reason=finish_reason,
            usage=usage(len(self._request.prompt_ids), self.num_tokens) if finish_reason else None,
            logprobs=logprobs(token_ids, delivery.logprobs[:num_tokens]) if wants_logprobs else msgspec.UNSET,
        )

    def _text_of(self, delivery: Delivery) -> tuple[str, int, FinishReason | None]:
        """Final text, how many of the tokens count, and whether they end the answer."""
        pieces = []
        for num_tokens, token_id in enumerate(delivery.token_ids, start=1):
            text = "" if token_id in self._end_ids else self._detokenizer.add([token_id])
            piece, stopped = self._stops.feed(text)
            pieces.append(piece)
            if stopped:
                return "".join(pieces), num_tokens, "stop"
        finish_reason = delivery.finish_reason
        if finish_reason:
            piece, stopped = self._stops.feed(self._detokenizer.finish())
            pieces += [piece, self._stops.flush()]
            finish_reason = "stop" if stopped else finish_reason
        return "".join(pieces), len(delivery.token_ids), finish_reason
