"""Answers in LoRAX's and TGI's formats: structs that are sent as JSON."""

from typing import Literal

import msgspec

#: eos_token: the model ended the answer; stop_sequence: one of ``stop`` did.
FinishReason = Literal["length", "eos_token", "stop_sequence"]


class PrefillToken(msgspec.Struct, frozen=True):
    id: int
    text: str
    #: Not computed for prompts.
    logprob: None = None


class AlternativeToken(msgspec.Struct, frozen=True):
    id: int
    text: str
    logprob: float


class TopToken(msgspec.Struct, frozen=True):
    """An alternative in TGI's format. LoRAX's has no ``special``."""

    id: int
    text: str
    logprob: float
    #: Whether its text would be left out of the answer.
    special: bool


class Token(msgspec.Struct, frozen=True):
    id: int
    text: str
    logprob: float
    #: Whether its text is left out of the answer.
    special: bool
    alternative_tokens: list[AlternativeToken] | msgspec.UnsetType = msgspec.UNSET
    #: LoRAX's mark of tokens from speculative decoding.
    skipped: bool = False


class BestOfSequence(msgspec.Struct, frozen=True):
    """An answer of ``best_of`` other than the best."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    #: None without sampling.
    seed: int | None
    #: Empty unless requested.
    prefill: list[PrefillToken]
    tokens: list[Token]
    #: Alternatives for each token, if requested.
    top_tokens: list[list[TopToken]] | msgspec.UnsetType = msgspec.UNSET


class Details(msgspec.Struct, frozen=True):
    """Details of the returned answer."""

    finish_reason: FinishReason
    prompt_tokens: int
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[TopToken]] | msgspec.UnsetType = msgspec.UNSET
    best_of_sequences: list[BestOfSequence] | msgspec.UnsetType = msgspec.UNSET
    skipped_tokens: int = 0


class Generated(msgspec.Struct, frozen=True):
    """The answer of POST /generate."""

    generated_text: str
    details: Details | msgspec.UnsetType = msgspec.UNSET


class StreamDetails(msgspec.Struct, frozen=True):
    finish_reason: FinishReason
    prompt_tokens: int
    generated_tokens: int
    seed: int | None
    #: TGI's name for prompt_tokens.
    input_length: int


class StreamEvent(msgspec.Struct, frozen=True):
    """One token of POST /generate_stream. The last event has the whole text and the details."""

    index: int
    token: Token
    generated_text: str | None = None
    details: StreamDetails | None = None
    top_tokens: list[TopToken] | msgspec.UnsetType = msgspec.UNSET
