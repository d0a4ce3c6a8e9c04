"""Logprobs in OpenAI's two formats: columns for completions, a list of tokens for chats."""

from collections.abc import Sequence

import msgspec

from punica_frontend.generation.answers import Logprob
from punica_serve.text.token_texts import TokenTexts


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Columns with an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float]
    #: The sampled token is always included, unless no alternatives were requested.
    top_logprobs: list[dict[str, float]] | None
    #: Where each token starts in the text.
    text_offset: list[int]


class ChatTopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    #: None if the token is not whole bytes of text.
    bytes: list[int] | None


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatTokenLogprob]
    refusal: None = None


def completion_logprobs(logprobs: Sequence[Logprob], texts: TokenTexts, offset: int) -> CompletionLogprobs:
    """Returns the columns. ``offset`` is the text offset of the first token."""
    tokens = [texts.text(entry.token_id) for entry in logprobs]
    has_top = any(entry.top for entry in logprobs)
    return CompletionLogprobs(
        tokens=tokens,
        token_logprobs=[entry.logprob for entry in logprobs],
        top_logprobs=[_top(entry, texts) for entry in logprobs] if has_top else None,
        text_offset=_offsets(tokens, offset),
    )


def chat_logprobs(logprobs: Sequence[Logprob], texts: TokenTexts) -> ChatLogprobs:
    return ChatLogprobs([_chat_token(entry, texts) for entry in logprobs])


def _top(entry: Logprob, texts: TokenTexts) -> dict[str, float]:
    """Returns alternatives, likeliest first. If several tokens have the same text, the likeliest counts."""
    top: dict[str, float] = {}
    for candidate in entry.top:
        top.setdefault(texts.text(candidate.token_id), candidate.logprob)
    top.setdefault(texts.text(entry.token_id), entry.logprob)
    return top


def _offsets(tokens: Sequence[str], offset: int) -> list[int]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return offsets


def _chat_token(entry: Logprob, texts: TokenTexts) -> ChatTokenLogprob:
    top = [_chat_top(candidate.token_id, candidate.logprob, texts) for candidate in entry.top]
    drawn = _chat_top(entry.token_id, entry.logprob, texts)
    return ChatTokenLogprob(drawn.token, drawn.logprob, drawn.bytes, top)


def _chat_top(token_id: int, logprob: float, texts: TokenTexts) -> ChatTopLogprob:
    return ChatTopLogprob(texts.text(token_id), logprob, texts.bytes_of(token_id))
