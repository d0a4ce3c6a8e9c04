"""Turns a request's deliveries into frames of its answer. Pure."""

import msgspec

from punica_frontend.generation.answers import Frame, TokenUsage, logprobs, usage
from punica_frontend.scheduler_link.live_request import Delivery
from punica_serve.protocol import Request
from punica_serve.text.generated_text import GeneratedText
from punica_serve.text.tokenizer import Tokenizer


class TextStream:
    """A request's output as its client sees it. Tokens after the one that completes a stop string are dropped."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: Request,
        *,
        answer_id: str,
        stops: tuple[str, ...],
        end_ids: frozenset[int],
    ) -> None:
        """``answer_id`` is the client's id of the request; ``end_ids`` are tokens that end it and add no text."""
        self._request = request
        self._answer_id = answer_id
        self._text = GeneratedText(tokenizer, request.prompt_ids, stops=stops, end_ids=end_ids)
        #: Generated tokens in the frames so far.
        self.num_tokens = 0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self._request.prompt_ids)

    def add(self, token_id: int, num_cached_tokens: int | None) -> str | Frame:
        """Takes a single token, behind which others follow. Returns its text, or the last frame if it stops the answer.

        ``num_cached_tokens`` are the prompt's, for the usage.
        """
        text, is_stopped = self._text.add(token_id)
        self.num_tokens += 1
        if not is_stopped:
            return text
        told = usage(self.num_prompt_tokens, self.num_tokens, num_cached_tokens)
        return Frame(self._answer_id, self.num_tokens - 1, (token_id,), text, "stop", told)

    def feed(self, delivery: Delivery) -> Frame:
        """Returns the frame of the next delivery. There is none after one with a finish_reason."""
        index = self.num_tokens
        piece = self._text.feed(delivery.token_ids, delivery.finish_reason)
        token_ids = delivery.token_ids[: piece.num_tokens]
        self.num_tokens += piece.num_tokens
        wants_logprobs = self._request.sampling.logprobs is not None
        return Frame(
            request_id=self._answer_id,
            index=index,
            token_ids=token_ids,
            text=piece.text,
            finish_reason=piece.finish_reason,
            usage=self._usage(delivery) if piece.finish_reason else None,
            logprobs=logprobs(token_ids, delivery.logprobs[: piece.num_tokens]) if wants_logprobs else msgspec.UNSET,
        )

    def _usage(self, delivery: Delivery) -> TokenUsage:
        return usage(self.num_prompt_tokens, self.num_tokens, delivery.num_cached_tokens)
