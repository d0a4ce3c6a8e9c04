"""The two shapes that a websocket's answers have: the native one, and OpenAI's chunks."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from punica_frontend.answers import Frame, usage
from punica_frontend.caller import Caller
from punica_frontend.choices import Choices
from punica_frontend.errors import error_object
from punica_frontend.generation import Generator, Plan
from punica_frontend.openai.chat_answers import ChatChunks
from punica_frontend.openai.completion_answers import CompletionChunks
from punica_frontend.openai.head import new_head
from punica_frontend.openai.planning import Planner, echoes_of
from punica_frontend.openai.terms import renamed
from punica_frontend.socket_frames import BeginFrame, ChatFrame, ChunkFrame, GenerateFrame, OpenAiFrame, ServerFrame
from punica_serve.errors import PunicaError
from punica_serve.protocol import FinishReason
from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer

Chunks = ChatChunks | CompletionChunks


class Shape(Protocol):
    """Of one request's answer."""

    async def plans(self, caller: Caller) -> Sequence[Plan]:
        """What has to be generated for it. Raises what is wrong with the request."""

    def frames(self, index: int, frame: Frame, *, num_tokens: int, is_last: bool) -> Sequence[ServerFrame]:
        """What is sent for a piece of the plan at ``index``; ``num_tokens`` have come so far, of all plans."""

    def end(
        self, reason: FinishReason, error: Exception | None, *, num_prompt_tokens: int, num_tokens: int
    ) -> ServerFrame:
        """The last frame of an answer that does not end by itself."""


class Shapes:
    """Makes the shape that a frame asks for."""

    def __init__(self, generator: Generator, planner: Planner, tokenizer: Tokenizer, *, base_name: str) -> None:
        self._generator = generator
        self._planner = planner
        self._tokenizer = tokenizer
        self._texts = TokenTexts(tokenizer)
        self._base_name = base_name

    def of(self, frame: BeginFrame) -> Shape:
        if isinstance(frame, GenerateFrame):
            return NativeShape(frame, self._generator)
        return OpenAiShape(frame, self._planner, self._chunks)

    def _chunks(self, frame: OpenAiFrame) -> Chunks:
        """Of a frame that has been planned: before, its token ids may be none."""
        model = frame.model or self._base_name
        if isinstance(frame, ChatFrame):
            return ChatChunks(new_head("chatcmpl", model), self._texts, includes_usage=frame.includes_usage)
        echoes = echoes_of(frame, self._tokenizer)
        return CompletionChunks(new_head("cmpl", model), self._texts, echoes, includes_usage=frame.includes_usage)


class NativeShape:
    """Frames as they are."""

    def __init__(self, frame: GenerateFrame, generator: Generator) -> None:
        self._frame = frame
        self._generator = generator

    async def plans(self, caller: Caller) -> Sequence[Plan]:
        return (await self._generator.plan(self._frame, caller, answer_id=self._frame.request_id),)

    def frames(self, index: int, frame: Frame, *, num_tokens: int, is_last: bool) -> Sequence[ServerFrame]:
        return (frame,)

    def end(self, reason: FinishReason, error: Exception | None, *, num_prompt_tokens: int, num_tokens: int) -> Frame:
        return Frame(
            self._frame.request_id,
            num_tokens,
            finish_reason=reason,
            usage=usage(num_prompt_tokens, num_tokens),
            error=error_object(error) if error else None,
        )


class OpenAiShape:
    """Each chunk in a frame of its own; the last one is done."""

    def __init__(self, frame: OpenAiFrame, planner: Planner, chunks_of: Callable[[OpenAiFrame], Chunks]) -> None:
        self._frame = frame
        self._planner = planner
        self._chunks_of = chunks_of
        #: Once it is planned.
        self._chunks: Chunks | None = None
        self._choices: Choices | None = None

    async def plans(self, caller: Caller) -> Sequence[Plan]:
        body = self._frame.model_copy(update={"stream": True})
        if isinstance(body, ChatFrame):
            self._choices = await self._planner.chat(body, caller)
        else:
            self._choices = await self._planner.completion(body, caller)
        self._chunks = self._chunks_of(self._frame)
        return self._choices.plans

    def frames(self, index: int, frame: Frame, *, num_tokens: int, is_last: bool) -> Sequence[ServerFrame]:
        assert self._choices is not None and self._chunks is not None
        chunks: list[Any] = [*self._chunks.chunks(index, frame)]
        if is_last and self._frame.includes_usage:
            chunks.append(self._chunks.last(self._choices.usage(num_tokens)))
        request_id = self._frame.request_id
        return [ChunkFrame(request_id, chunk, None, done=is_last and chunk is chunks[-1]) for chunk in chunks]

    def end(
        self, reason: FinishReason, error: Exception | None, *, num_prompt_tokens: int, num_tokens: int
    ) -> ServerFrame:
        # What planning raises is in OpenAI's terms already.
        if isinstance(error, PunicaError) and self._choices is not None:
            error = renamed(error, {"lora_id": "model"})
        return ChunkFrame(self._frame.request_id, None, error_object(error) if error else None, done=True)
