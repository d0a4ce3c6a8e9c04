"""Answers of POST /v1/completions. Pure."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from punica_frontend.answers import Answer, Frame, Logprob, Usage
from punica_frontend.live_request import MAX_DELIVERY_BYTES
from punica_frontend.openai.head import ChunkUsage, Head
from punica_frontend.openai.logprobs import CompletionLogprobs, completion_logprobs
from punica_serve.protocol import FinishReason
from punica_serve.text.token_texts import TokenTexts

#: In one chunk. A character has at most four bytes, or six in JSON.
MAX_ECHO_CHARS = MAX_DELIVERY_BYTES // 4


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None


class Completion(msgspec.Struct, frozen=True):
    """The whole answer, or a chunk of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: ChunkUsage = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"


class CompletionChunks:
    """Turns the frames of some choices into chunks. Keeps what the next chunk of each depends on."""

    def __init__(self, head: Head, texts: TokenTexts, echoes: Sequence[str], *, includes_usage: bool) -> None:
        """``echoes`` are what comes before the answer of each choice; may be empty strings."""
        self._head = head
        self._texts = texts
        self._echoes = list(echoes)
        self._offsets = [0] * len(echoes)
        self._usage: ChunkUsage = None if includes_usage else msgspec.UNSET

    def chunks(self, index: int, frame: Frame) -> list[Completion]:
        """None of a frame that says nothing yet. What is echoed comes before the first, in chunks of its own."""
        echo, self._echoes[index] = self._echoes[index], ""
        parts = (echo[start : start + MAX_ECHO_CHARS] for start in range(0, len(echo), MAX_ECHO_CHARS))
        choices = [CompletionChoice(index, part) for part in parts]
        has_logprobs = not isinstance(frame.logprobs, msgspec.UnsetType)
        if frame.text or frame.finish_reason or has_logprobs:
            logprobs = self._logprobs(index, frame.logprobs)
            choices.append(CompletionChoice(index, frame.text, logprobs, frame.finish_reason))
        return [completion(self._head, [choice], self._usage) for choice in choices]

    def last(self, usage: Usage) -> Completion:
        """The chunk that tells the usage."""
        return completion(self._head, [], usage)

    def _logprobs(self, index: int, logprobs: Sequence[Logprob] | msgspec.UnsetType) -> CompletionLogprobs | None:
        if isinstance(logprobs, msgspec.UnsetType):
            return None
        columns = completion_logprobs(logprobs, self._texts, self._offsets[index])
        self._offsets[index] += sum(map(len, columns.tokens))
        return columns


def completion(head: Head, choices: list[CompletionChoice], usage: ChunkUsage) -> Completion:
    return Completion(head.id, head.created_s, head.model, choices, usage)


def completion_choice(index: int, answer: Answer, echo: str, texts: TokenTexts | None) -> CompletionChoice:
    """One choice of a whole answer; with its logprobs, where ``texts`` are given to name the tokens."""
    logprobs = None
    if texts and not isinstance(answer.logprobs, msgspec.UnsetType):
        logprobs = completion_logprobs(answer.logprobs, texts, 0)
    return CompletionChoice(index, echo + answer.text, logprobs, answer.finish_reason)
