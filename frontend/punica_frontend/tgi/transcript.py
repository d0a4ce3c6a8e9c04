"""An answer token by token, in LoRAX's and TGI's format. Pure."""

import msgspec

from punica_frontend.generation.answers import Frame, Logprob
from punica_frontend.generation.request_plan import RequestPlan
from punica_frontend.tgi.answers import AlternativeToken, FinishReason, StreamDetails, StreamEvent, Token, TopToken
from punica_frontend.tgi.body import Parameters
from punica_serve import protocol
from punica_serve.text.detokenizer import IncrementalDetokenizer
from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer


class Transcript:
    """The text of an answer, with the text that each token adds.

    Unlike in the other APIs a stop string is part of the text.
    """

    def __init__(self, tokenizer: Tokenizer, texts: TokenTexts, plan: RequestPlan, given: Parameters) -> None:
        self._texts = texts
        self._special_ids = tokenizer.special_ids | plan.end_ids
        self._plan = plan
        self._given = given
        self._detokenizer = IncrementalDetokenizer(tokenizer, plan.request.prompt_ids)
        self._pieces: list[str] = []
        self._last_id = -1
        self.num_tokens = 0

    def add(self, token_id: int) -> str:
        """Takes the next token; returns the text that it adds."""
        text = "" if token_id in self._special_ids else self._detokenizer.add(token_id)
        self._pieces.append(text)
        self._last_id = token_id
        self.num_tokens += 1
        return text

    def token(self, entry: Logprob) -> Token:
        """Takes the next token. A special one shows its name, which is not part of the text."""
        text = self.add(entry.token_id)
        special = entry.token_id in self._special_ids
        alternatives = self._alternatives(entry) if self._given.return_k_alternatives else msgspec.UNSET
        shown = self._texts.text(entry.token_id) if special else text
        return Token(entry.token_id, shown, entry.logprob, special, alternatives)

    def top_tokens(self, entry: Logprob) -> list[TopToken] | msgspec.UnsetType:
        if not self._given.top_n_tokens:
            return msgspec.UNSET
        return [
            TopToken(top.token_id, self._texts.text(top.token_id), top.logprob, top.token_id in self._special_ids)
            for top in entry.top
        ]

    def whole_text(self) -> str:
        """Returns the text of an answer that has ended, including its incomplete last characters."""
        self._pieces.append(self._detokenizer.finish())
        return "".join(self._pieces)

    def finish_reason(self, reason: protocol.FinishReason) -> FinishReason:
        """Returns why the answer ended with its last token."""
        if reason == "length":
            return "length"
        return "eos_token" if self._last_id in self._plan.end_ids else "stop_sequence"

    @property
    def seed(self) -> int | None:
        """The seed of a sampled answer; None without sampling."""
        return self._plan.request.sampling.seed if self._given.samples else None

    def events(self, frame: Frame) -> list[StreamEvent]:
        """Returns an event for each token; the answer's last has the details."""
        assert not isinstance(frame.logprobs, msgspec.UnsetType)
        events = [
            StreamEvent(self.num_tokens, token, top_tokens=self.top_tokens(entry))
            for entry in frame.logprobs
            for token in (self.token(entry),)
        ]
        if frame.finish_reason is None:
            return events
        # An end without a new token gets an event that adds nothing.
        end = events.pop() if events else StreamEvent(self.num_tokens, Token(self._last_id, "", 0.0, special=True))
        details = self._stream_details(frame.finish_reason)
        return [*events, msgspec.structs.replace(end, generated_text=self.whole_text(), details=details)]

    def _stream_details(self, reason: protocol.FinishReason) -> StreamDetails:
        num_prompt_tokens = len(self._plan.request.prompt_ids)
        return StreamDetails(
            finish_reason=self.finish_reason(reason),
            prompt_tokens=num_prompt_tokens,
            generated_tokens=self.num_tokens,
            seed=self.seed,
            input_length=num_prompt_tokens,
        )

    def _alternatives(self, entry: Logprob) -> list[AlternativeToken]:
        return [AlternativeToken(top.token_id, self._texts.text(top.token_id), top.logprob) for top in entry.top]
