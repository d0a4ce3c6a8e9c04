"""Answers of POST /v1/chat/completions. Pure."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import msgspec

from punica_frontend.generation.answers import Frame, GenerateAnswer, TokenUsage
from punica_frontend.openai.chunk_template import EVENT, Around, ChunkTemplates, is_plain
from punica_frontend.openai.head import Head
from punica_frontend.openai.logprobs import ChatLogprobs, chat_logprobs
from punica_frontend.openai.stream_usage import ChunkUsage, StreamUsage
from punica_serve.protocol import FinishReason
from punica_serve.text.token_texts import TokenTexts
from punica_serve.version import __version__


class ChatMessage(msgspec.Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    """The whole answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    #: The server and its version. TGI's client requires one.
    system_fingerprint: str = f"punica-serve-{__version__}"
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True):
    content: str
    #: Only in the first chunk of a choice.
    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """A piece of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChunkUsage = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class ChatChunks:
    """Turns frames of several choices into chunks."""

    def __init__(self, head: Head, texts: TokenTexts, usage: StreamUsage, around: Around = EVENT) -> None:
        """``around`` is the templates'."""
        self._head = head
        self._texts = texts
        self._begun: set[int] = set()
        self._usage = usage
        #: Its plain chunks.
        self.templates = ChunkTemplates(partial(_plain, head), usage, around)

    def chunks(self, index: int, frame: Frame) -> Sequence[ChatChunk | msgspec.Raw]:
        """Returns the frame's chunk, or none if it has nothing to show yet."""
        if is_plain(frame) and index in self._begun:
            return (self.templates.of(index, frame),)
        logprobs = None if isinstance(frame.logprobs, msgspec.UnsetType) else chat_logprobs(frame.logprobs, self._texts)
        if not (frame.text or frame.finish_reason or logprobs):
            return []
        delta = Delta(frame.text) if index in self._begun else Delta(frame.text, "assistant")
        self._begun.add(index)
        choice = ChunkChoice(index, delta, logprobs, frame.finish_reason)
        return [_chunk(self._head, [choice], self._usage.after(index, frame))]

    def last(self, usage: TokenUsage) -> ChatChunk:
        """Returns the chunk with the usage of the whole stream."""
        return _chunk(self._head, [], usage)


def _chunk(head: Head, choices: list[ChunkChoice], usage: ChunkUsage) -> ChatChunk:
    return ChatChunk(head.id, head.created_s, head.model, choices, usage)


def _plain(head: Head, index: int, text: str, usage: ChunkUsage) -> ChatChunk:
    return _chunk(head, [ChunkChoice(index, Delta(text))], usage)


def chat_completion(head: Head, answers: list[GenerateAnswer], usage: TokenUsage, texts: TokenTexts) -> ChatCompletion:
    choices = [_choice(index, answer, texts) for index, answer in enumerate(answers)]
    return ChatCompletion(head.id, head.created_s, head.model, choices, usage)


def _choice(index: int, answer: GenerateAnswer, texts: TokenTexts) -> ChatChoice:
    logprobs = None if isinstance(answer.logprobs, msgspec.UnsetType) else chat_logprobs(answer.logprobs, texts)
    return ChatChoice(index, ChatMessage(answer.text), logprobs, answer.finish_reason)
