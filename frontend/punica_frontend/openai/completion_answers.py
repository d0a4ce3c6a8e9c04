"""Answers of POST /v1/completions. Pure."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import msgspec

from punica_frontend.generation.answers import Frame, GenerateAnswer, Logprob, TokenUsage
from punica_frontend.openai.chunk_template import EVENT, Around, ChunkTemplates, is_plain
from punica_frontend.openai.head import Head
from punica_frontend.openai.logprobs import CompletionLogprobs, completion_logprobs
from punica_frontend.openai.stream_usage import ChunkUsage, StreamUsage
from punica_frontend.scheduler_link.live_request import MAX_DELIVERY_BYTES
from punica_serve.protocol import FinishReason
from punica_serve.text.token_texts import TokenTexts

#: The longest echo in one chunk. A character has at most four bytes, or six in JSON.
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
    """Turns frames of several choices into chunks. Keeps each choice's echo and text offset."""

    def __init__(
        self, head: Head, texts: TokenTexts, echoes: Sequence[str], usage: StreamUsage, around: Around = EVENT
    ) -> None:
        """``echoes`` are the texts before each choice's answer, which may be empty; ``around`` is the templates'."""
        self._head = head
        self._texts = texts
        self._echoes = list(echoes)
        self._offsets = [0] * len(echoes)
        self._usage = usage
        #: Its plain chunks.
        self.templates = ChunkTemplates(partial(_plain, head), usage, around)

    def chunks(self, index: int, frame: Frame) -> Sequence[Completion | msgspec.Raw]:
        """Returns the frame's chunks, or none if it has nothing to show yet. An echo comes first, in its own chunks."""
        if is_plain(frame) and not self._echoes[index]:
            return (self.templates.of(index, frame),)
        echo, self._echoes[index] = self._echoes[index], ""
        pieces = (echo[start : start + MAX_ECHO_CHARS] for start in range(0, len(echo), MAX_ECHO_CHARS))
        before = self._usage.before(index, frame)
        chunks = [completion(self._head, [CompletionChoice(index, part)], before) for part in pieces]
        has_logprobs = not isinstance(frame.logprobs, msgspec.UnsetType)
        if frame.text or frame.finish_reason or has_logprobs:
            logprobs = self._logprobs(index, frame.logprobs)
            choice = CompletionChoice(index, frame.text, logprobs, frame.finish_reason)
            chunks.append(completion(self._head, [choice], self._usage.after(index, frame)))
        return chunks

    def last(self, usage: TokenUsage) -> Completion:
        """Returns the chunk with the usage of the whole stream."""
        return completion(self._head, [], usage)

    def _logprobs(self, index: int, logprobs: Sequence[Logprob] | msgspec.UnsetType) -> CompletionLogprobs | None:
        if isinstance(logprobs, msgspec.UnsetType):
            return None
        columns = completion_logprobs(logprobs, self._texts, self._offsets[index])
        self._offsets[index] += sum(map(len, columns.tokens))
        return columns


def completion(head: Head, choices: list[CompletionChoice], usage: ChunkUsage) -> Completion:
    return Completion(head.id, head.created_s, head.model, choices, usage)


def _plain(head: Head, index: int, text: str, usage: ChunkUsage) -> Completion:
    return completion(head, [CompletionChoice(index, text)], usage)


def completion_choice(index: int, answer: GenerateAnswer, echo: str, texts: TokenTexts | None) -> CompletionChoice:
    """Returns one choice of a whole answer, with logprobs if ``texts`` are given to name the tokens."""
    logprobs = None
    if texts and not isinstance(answer.logprobs, msgspec.UnsetType):
        logprobs = completion_logprobs(answer.logprobs, texts, 0)
    return CompletionChoice(index, echo + answer.text, logprobs, answer.finish_reason)
