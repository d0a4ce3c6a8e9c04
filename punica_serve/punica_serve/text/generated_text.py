"""Generated tokens to text: detokenized as they arrive, and cut before a stop string. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from punica_serve.protocol import FinishReason
from punica_serve.text.detokenizer import IncrementalDetokenizer
from punica_serve.text.stop_strings import StopStrings
from punica_serve.text.tokenizer import Tokenizer


class TextPiece(NamedTuple):
    """The text that some tokens add to an answer."""

    #: May be empty while a character or a possible stop string is incomplete.
    text: str
    #: Number of tokens that count: tokens after the one that completes a stop string don't.
    num_tokens: int
    #: The reason why the answer ends with this piece; None if it continues.
    finish_reason: FinishReason | None


class GeneratedText:
    """The text of one request. Tokens up to the one that completes a stop string are part of the answer."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int], *, stops: Sequence[str], end_ids: frozenset[int]
    ) -> None:
        """``end_ids`` are the tokens that end the request and have no text of their own."""
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids)
        self._stops = StopStrings(stops)
        self._end_ids = end_ids

    def add(self, token_id: int) -> tuple[str, bool]:
        """Takes the next token, behind which others follow; returns its final text, and whether it completes a stop."""
        text = "" if token_id in self._end_ids else self._detokenizer.add(token_id)
        return self._stops.feed(text)

    def feed(self, token_ids: Sequence[int], finish_reason: FinishReason | None) -> TextPiece:
        """Takes the next tokens, and the finish reason if these are the last. Must not be called after an end."""
        pieces = []
        for num_tokens, token_id in enumerate(token_ids, start=1):
            piece, stopped = self.add(token_id)
            pieces.append(piece)
            if stopped:
                return TextPiece("".join(pieces), num_tokens, "stop")
        if finish_reason:
            piece, stopped = self._stops.feed(self._detokenizer.finish())
            pieces += [piece, self._stops.flush()]
            finish_reason = "stop" if stopped else finish_reason
        return TextPiece("".join(pieces), len(token_ids), finish_reason)
