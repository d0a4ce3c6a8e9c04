"""What the native API answers: JSON of these structs."""

from collections.abc import Sequence
from typing import Any

import msgspec

from punica_serve.protocol import FinishReason, TokenLogprobs


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TopLogprob(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float


class Logprob(msgspec.Struct, frozen=True):
    """Of one generated token, and of the most likely ones at its position."""

    token_id: int
    logprob: float
    top: tuple[TopLogprob, ...]


class Frame(msgspec.Struct, frozen=True):
    """A piece of one request's answer, as a websocket frame or a server-sent event.

    The one with a finish_reason is the request's last; an error without one leaves the request as it is.
    """

    request_id: str | None
    #: Position of the first of ``token_ids`` among the generated tokens.
    index: int
    token_ids: tuple[int, ...] = ()
    #: What these tokens add to the text: may be empty while a character or a stop string may be unfinished.
    text: str = ""
    finish_reason: FinishReason | None = None
    #: With the last frame.
    usage: Usage | None = None
    error: dict[str, Any] | None = None
    #: As many as token_ids, where the request asked for them.
    logprobs: tuple[Logprob, ...] | msgspec.UnsetType = msgspec.UNSET


class Answer(msgspec.Struct, frozen=True):
    """The whole answer of a request that did not ask for a stream."""

    request_id: str
    lora_id: str | None
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[Logprob, ...] | msgspec.UnsetType = msgspec.UNSET


def usage(num_prompt_tokens: int, num_generated_tokens: int) -> Usage:
    return Usage(num_prompt_tokens, num_generated_tokens, num_prompt_tokens + num_generated_tokens)


def logprobs(token_ids: Sequence[int], of_tokens: Sequence[TokenLogprobs]) -> tuple[Logprob, ...]:
    return tuple(
        Logprob(token_id, entry.logprob, tuple(map(TopLogprob, entry.top_ids, entry.top_logprobs)))
        for token_id, entry in zip(token_ids, of_tokens, strict=True)
    )


def answer(frames: Sequence[Frame], *, lora_id: str | None) -> Answer:
    """All frames of one request that ended well, joined."""
    last = frames[-1]
    assert last.request_id is not None and last.finish_reason is not None and last.usage is not None
    of_tokens = [frame.logprobs for frame in frames if not isinstance(frame.logprobs, msgspec.UnsetType)]
    return Answer(
        request_id=last.request_id,
        lora_id=lora_id,
        text="".join(frame.text for frame in frames),
        token_ids=tuple(token_id for frame in frames for token_id in frame.token_ids),
        finish_reason=last.finish_reason,
        usage=last.usage,
        logprobs=tuple(entry for entries in of_tokens for entry in entries) if of_tokens else msgspec.UNSET,
    )
