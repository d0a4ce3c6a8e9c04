"""Answers of the native API: structs that are sent as JSON."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from fastapi import Response
from msgspec import UNSET, Meta, UnsetType

from punica_frontend.api.errors import error_object
from punica_frontend.api.schemas import ErrorObject
from punica_serve.protocol import FinishReason, TokenLogprobs


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Usage of the prompt."""

    cached_tokens: Annotated[
        int, Meta(ge=0, description="Tokens found in the KvCache, where `engine.prefix_caching` is on.")
    ]


class TokenUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET

    @property
    def num_cached_tokens(self) -> int | None:
        """Prompt tokens found in the KvCache; None where GPUs share no pages."""
        details = self.prompt_tokens_details
        return None if isinstance(details, UnsetType) else details.cached_tokens


class TopLogprob(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float


class Logprob(msgspec.Struct, frozen=True):
    """The logprobs of one generated token, and of the most likely tokens at its position."""

    token_id: int
    logprob: float
    top: tuple[TopLogprob, ...]


class Frame(msgspec.Struct, frozen=True):
    """A piece of a request's answer, as a websocket frame or a server-sent event.

    The frame with a finish_reason is the request's last. An error without one leaves the request running.
    """

    request_id: Annotated[str | None, Meta(description="Null if the client's frame had none.")]
    index: Annotated[int, Meta(ge=0, description="Position of the first of token_ids among the generated tokens.")]
    token_ids: tuple[int, ...] = ()
    text: Annotated[
        str,
        Meta(description="The text that these tokens add. Empty while a character or a stop string may be incomplete."),
    ] = ""
    finish_reason: Annotated[FinishReason | None, Meta(description="In the request's last frame.")] = None
    usage: Annotated[TokenUsage | None, Meta(description="In the last frame of a request that did not fail.")] = None
    error: Annotated[ErrorObject | None, Meta(description="Why a frame was refused, or a request failed.")] = None
    logprobs: Annotated[
        tuple[Logprob, ...] | UnsetType, Meta(description="One for each of token_ids, if requested.")
    ] = UNSET


class GenerateAnswer(msgspec.Struct, frozen=True):
    """The whole answer of a request that did not ask for a stream."""

    request_id: str
    lora_id: str | None
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: TokenUsage
    logprobs: tuple[Logprob, ...] | UnsetType = UNSET


class Health(msgspec.Struct, frozen=True):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class Ready(msgspec.Struct, frozen=True):
    """The cluster can run requests."""

    num_gpus: Annotated[int, Meta(ge=1, description="GPUs that are not draining.")]
    status: Literal["ready"] = "ready"


class VersionAnswer(msgspec.Struct, frozen=True):
    """The frontend's version."""

    version: str


class DrainAnswer(msgspec.Struct, frozen=True):
    """The drain state that was set for a GPU."""

    gpu: str
    drain: bool


def token_frame(answer_id: str, token_id: int, text: str, num_tokens: int) -> Frame:
    """Returns the frame of a single token, behind which others follow; with it there are ``num_tokens``."""
    return Frame(answer_id, num_tokens - 1, (token_id,), text)


def failed_frame(answer_id: str, num_tokens: int, error: Exception) -> Frame:
    """Returns the last frame of a request that has failed behind ``num_tokens`` generated ones."""
    return Frame(answer_id, num_tokens, finish_reason="error", error=error_object(error))


def json_of(struct: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(struct), status, media_type="application/json")


def usage(num_prompt_tokens: int, num_generated_tokens: int, num_cached_tokens: int | None = None) -> TokenUsage:
    details = UNSET if num_cached_tokens is None else PromptTokensDetails(num_cached_tokens)
    return TokenUsage(num_prompt_tokens, num_generated_tokens, num_prompt_tokens + num_generated_tokens, details)


def logprobs(token_ids: Sequence[int], of_tokens: Sequence[TokenLogprobs]) -> tuple[Logprob, ...]:
    return tuple(
        Logprob(token_id, entry.logprob, tuple(map(TopLogprob, entry.top_ids, entry.top_logprobs)))
        for token_id, entry in zip(token_ids, of_tokens, strict=True)
    )


def answer(frames: Sequence[Frame], *, lora_id: str | None) -> GenerateAnswer:
    """Joins all frames of a request that ended without an error."""
    last = frames[-1]
    assert last.request_id is not None and last.finish_reason is not None and last.usage is not None
    of_tokens = [frame.logprobs for frame in frames if not isinstance(frame.logprobs, UnsetType)]
    return GenerateAnswer(
        request_id=last.request_id,
        lora_id=lora_id,
        text="".join(frame.text for frame in frames),
        token_ids=tuple(token_id for frame in frames for token_id in frame.token_ids),
        finish_reason=last.finish_reason,
        usage=last.usage,
        logprobs=tuple(entry for entries in of_tokens for entry in entries) if of_tokens else UNSET,
    )
