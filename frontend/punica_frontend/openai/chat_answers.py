"""Answers of POST /v1/chat/completions. Pure."""

from typing import Literal

import msgspec

from punica_frontend.answers import Answer, Frame, Usage
from punica_frontend.openai.head import ChunkUsage, Head
from punica_frontend.openai.logprobs import ChatLogprobs, chat_logprobs
from punica_serve.protocol import FinishReason
from punica_serve.text.token_texts import TokenTexts


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
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True):
    content: str
    #: With the first chunk of a choice.
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
    """Turns the frames of some choices into chunks."""

    def __init__(self, head: Head, texts: TokenTexts, *, includes_usage: bool) -> None:
        self._head = head
        self._texts = texts
        self._begun: set[int] = set()
        self._usage: ChunkUsage = None if includes_usage else msgspec.UNSET

    def chunks(self, index: int, frame: Frame) -> list[ChatChunk]:
        """None of a frame that says nothing yet."""
        logprobs = None if isinstance(frame.logprobs, msgspec.UnsetType) else chat_logprobs(frame.logprobs, self._texts)
        if not (frame.text or frame.finish_reason or logprobs):
            return []
        delta = Delta(frame.text) if index in self._begun else Delta(frame.text, "assistant")
        self._begun.add(index)
        return [self._chunk([ChunkChoice(index, delta, logprobs, frame.finish_reason)], self._usage)]

    def last(self, usage: Usage) -> ChatChunk:
        """The chunk that tells the usage."""
        return self._chunk([], usage)

    def _chunk(self, choices: list[ChunkChoice], usage: ChunkUsage) -> ChatChunk:
        return ChatChunk(self._head.id, self._head.created_s, self._head.model, choices, usage)


def chat_completion(head: Head, answers: list[Answer], usage: Usage, texts: TokenTexts) -> ChatCompletion:
    choices = [_choice(index, answer, texts) for index, answer in enumerate(answers)]
    return ChatCompletion(head.id, head.created_s, head.model, choices, usage)


def _choice(index: int, answer: Answer, texts: TokenTexts) -> ChatChoice:
    logprobs = None if isinstance(answer.logprobs, msgspec.UnsetType) else chat_logprobs(answer.logprobs, texts)
    return ChatChoice(index, ChatMessage(answer.text), logprobs, answer.finish_reason)
