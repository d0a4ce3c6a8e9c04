"""What the routes answer, in LoRAX's and TGI's shapes: JSON of these structs."""

from typing import Literal

import msgspec

#: eos_token: the model ended it; stop_sequence: one of the strings in ``stop``.
FinishReason = Literal["length", "eos_token", "stop_sequence"]


class PrefillToken(msgspec.Struct, frozen=True):
    id: int
    text: str
    #: Of a prompt they are not computed.
    logprob: None = None


class AlternativeToken(msgspec.Struct, frozen=True):
    id: int
    text: str
    logprob: float


class Token(msgspec.Struct, frozen=True):
    id: int
    text: str
    logprob: float
    #: Its text is not part of the answer's.
    special: bool
    alternative_tokens: list[AlternativeToken] | msgspec.UnsetType = msgspec.UNSET
    #: LoRAX's, of tokens that speculation made.
    skipped: bool = False


class BestOfSequence(msgspec.Struct, frozen=True):
    """An answer that was not the best."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    #: None where nothing was drawn by chance.
    seed: int | None
    #: Empty unless they were asked for.
    prefill: list[PrefillToken]
    tokens: list[Token]
    #: Of each token, where they were asked for.
    top_tokens: list[list[AlternativeToken]] | msgspec.UnsetType = msgspec.UNSET


class Details(msgspec.Struct, frozen=True):
    """Of the answer that is given."""

    finish_reason: FinishReason
    prompt_tokens: int
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[AlternativeToken]] | msgspec.UnsetType = msgspec.UNSET
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
    #: TGI's name of prompt_tokens.
    input_length: int


class StreamEvent(msgspec.Struct, frozen=True):
    """A token of POST /generate_stream; the last one has the whole text, and the details."""

    index: int
    token: Token
    generated_text: str | None = None
    details: StreamDetails | None = None
    top_tokens: list[AlternativeToken] | msgspec.UnsetType = msgspec.UNSET
