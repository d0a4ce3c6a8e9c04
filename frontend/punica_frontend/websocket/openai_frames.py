"""The two formats of a websocket's answers: the native one, and OpenAI's chunks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from punica_frontend.api.caller import Caller
from punica_frontend.api.errors import error_object
from punica_frontend.generation.answers import Frame, TokenUsage, failed_frame, token_frame, usage
from punica_frontend.generation.choices import Choices
from punica_frontend.generation.direct_output import EncodeToken
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.request_plan import RequestPlan
from punica_frontend.openai.chat_answers import ChatChunks
from punica_frontend.openai.chunk_template import Around
from punica_frontend.openai.completion_answers import CompletionChunks
from punica_frontend.openai.error_terms import renamed
from punica_frontend.openai.head import new_head
from punica_frontend.openai.model_names import name_in_answer
from punica_frontend.openai.request_planner import RequestPlanner, echoes_of
from punica_frontend.openai.stream_usage import StreamUsage
from punica_frontend.websocket.frame_types import (
    BeginFrame,
    ChatFrame,
    ChunkFrame,
    GenerateFrame,
    OpenAiFrame,
    ServerFrame,
)
from punica_serve.errors import PunicaError
from punica_serve.protocol import FinishReason
from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer

Chunks = ChatChunks | CompletionChunks
#: Creates the chunks of a frame that has been planned.
ChunksOf = Callable[[OpenAiFrame, Choices], Chunks]

#: Stands for the chunk in the model of a frame.
_CHUNK = "\x00"


class Shape(Protocol):
    """The format of one request's answer."""

    @property
    def encoders(self) -> Mapping[int, EncodeToken]:
        """Encode a frame of a single token, by the index of its plan, once there are plans; some come later."""

    async def plans(self, caller: Caller) -> Sequence[RequestPlan]:
        """Plans everything that has to be generated. Raises the request's errors."""

    def frames(self, index: int, frame: Frame, *, num_tokens: int, is_last: bool) -> Sequence[ServerFrame]:
        """Returns the frames for new output of the plan at ``index``. ``num_tokens`` counts the tokens of all plans."""

    def end(
        self, reason: FinishReason, error: Exception | None, *, num_prompt_tokens: int, num_tokens: int
    ) -> ServerFrame:
        """Returns the last frame of an answer that failed or was cancelled."""


class Shapes:
    """Creates the format that a frame asks for."""

    def __init__(self, generator: Generator, planner: RequestPlanner, tokenizer: Tokenizer, *, base_name: str) -> None:
        self._generator = generator
        self._planner = planner
        self._tokenizer = tokenizer
        self._texts = TokenTexts(tokenizer)
        self._base_name = base_name

    def of(self, frame: BeginFrame) -> Shape:
        if isinstance(frame, GenerateFrame):
            return NativeShape(frame, self._generator)
        return OpenAiShape(frame, self._planner, self._chunks)

    def _chunks(self, frame: OpenAiFrame, choices: Choices) -> Chunks:
        """Creates the chunks of a planned frame; before planning its token ids are unchecked."""
        model = name_in_answer(frame.model, choices, base_name=self._base_name)
        usage = StreamUsage.of(frame, choices)
        if isinstance(frame, ChatFrame):
            return ChatChunks(new_head("chatcmpl", model), self._texts, usage, _around(frame.request_id))
        echoes = echoes_of(frame, self._tokenizer)
        return CompletionChunks(new_head("cmpl", model), self._texts, echoes, usage, _around(frame.request_id))


class NativeShape:
    """Passes frames on unchanged."""

    def __init__(self, frame: GenerateFrame, generator: Generator) -> None:
        self._frame = frame
        self._generator = generator

    @property
    def encoders(self) -> Mapping[int, EncodeToken]:
        return {0: self._encode}

    async def plans(self, caller: Caller) -> Sequence[RequestPlan]:
        return (await self._generator.plan(self._frame, caller, answer_id=self._frame.request_id),)

    def frames(self, index: int, frame: Frame, *, num_tokens: int, is_last: bool) -> Sequence[ServerFrame]:
        return (frame,)

    def _encode(self, token_id: int, text: str, num_tokens: int) -> bytes:
        return msgspec.json.encode(token_frame(self._frame.request_id, token_id, text, num_tokens))

    def end(self, reason: FinishReason, error: Exception | None, *, num_prompt_tokens: int, num_tokens: int) -> Frame:
        if error:
            return failed_frame(self._frame.request_id, num_tokens, error)
        told = usage(num_prompt_tokens, num_tokens)
        return Frame(self._frame.request_id, num_tokens, finish_reason=reason, usage=told)


class OpenAiShape:
    """Sends each chunk in a frame of its own; the last has ``done``."""

    def __init__(self, frame: OpenAiFrame, planner: RequestPlanner, chunks_of: ChunksOf) -> None:
        self._frame = frame
        self._planner = planner
        self._chunks_of = chunks_of
        #: Set by ``plans``.
        self._chunks: Chunks | None = None
        self._choices: Choices | None = None
        #: The usages of plans that have ended, by index.
        self._ends: dict[int, TokenUsage] = {}
        #: Ignored fields, until the first chunk has named them.
        self._ignored_fields: tuple[str, ...] = ()

    @property
    def encoders(self) -> Mapping[int, EncodeToken]:
        assert self._chunks is not None
        return self._chunks.templates.encoders

    async def plans(self, caller: Caller) -> Sequence[RequestPlan]:
        body = self._frame.model_copy(update={"stream": True})
        if isinstance(body, ChatFrame):
            self._choices = await self._planner.chat(body, caller)
        else:
            self._choices = await self._planner.completion(body, caller)
        self._ignored_fields = self._choices.ignored_fields
        self._chunks = self._chunks_of(self._frame, self._choices)
        return [replace(plan, answer_id=self._frame.request_id) for plan in self._choices.plans]

    def frames(self, index: int, frame: Frame, *, num_tokens: int, is_last: bool) -> Sequence[ServerFrame]:
        assert self._choices is not None and self._chunks is not None
        if frame.usage:
            self._ends[index] = frame.usage
        chunks: list[Any] = [*self._chunks.chunks(index, frame)]
        if is_last and self._frame.includes_usage:
            chunks.append(self._chunks.last(self._choices.usage(num_tokens, self._ends)))
        request_id = self._frame.request_id
        return [
            ChunkFrame(request_id, chunk, None, is_last and chunk is chunks[-1], self._take_ignored_fields())
            for chunk in chunks
        ]

    def _take_ignored_fields(self) -> tuple[str, ...] | msgspec.UnsetType:
        ignored, self._ignored_fields = self._ignored_fields, ()
        return ignored or msgspec.UNSET

    def end(
        self, reason: FinishReason, error: Exception | None, *, num_prompt_tokens: int, num_tokens: int
    ) -> ServerFrame:
        # Planning raises errors in OpenAI's terms already.
        if isinstance(error, PunicaError) and self._choices is not None:
            error = renamed(error, {"lora_id": "model"})
        return ChunkFrame(self._frame.request_id, None, error_object(error) if error else None, done=True)


def _around(request_id: str) -> Around:
    """Returns a ChunkFrame's JSON before its chunk and behind it, where others follow."""
    model = msgspec.json.encode(ChunkFrame(request_id, _CHUNK, None, done=False))
    before, _, behind = model.rpartition(msgspec.json.encode(_CHUNK))
    return before, behind
