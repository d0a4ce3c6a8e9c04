"""POST /v1/completions and /v1/chat/completions."""

from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from fastapi import APIRouter, Request, Response

from punica_frontend.api.caller import caller_of
from punica_frontend.api.counted_route import counted_route
from punica_frontend.api.errors import error_object, error_of_body
from punica_frontend.api.response_docs import answer_or_events, refusals
from punica_frontend.fields.policy import with_ignored
from punica_frontend.generation.answers import Frame, GenerateAnswer, TokenUsage, json_of
from punica_frontend.generation.choices import Choices, stream_all, whole_answers
from punica_frontend.generation.direct_output import DirectOutput
from punica_frontend.generation.event_stream import EventStream
from punica_frontend.generation.generator import Generator
from punica_frontend.http.connection import CLIENT_CLOSED, run_while_connected
from punica_frontend.openai.best_of import best_of_each
from punica_frontend.openai.chat_answers import ChatChunk, ChatChunks, ChatCompletion, chat_completion
from punica_frontend.openai.chat_body import ChatBody
from punica_frontend.openai.chunk_template import ChunkTemplates
from punica_frontend.openai.completion_answers import Completion, CompletionChunks, completion, completion_choice
from punica_frontend.openai.completion_body import CompletionBody
from punica_frontend.openai.error_terms import openai_terms
from punica_frontend.openai.head import Head, new_head
from punica_frontend.openai.model_names import name_in_answer
from punica_frontend.openai.request_planner import RequestPlanner, echoes_of
from punica_frontend.openai.stream_usage import StreamUsage
from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer

_REFUSALS = refusals(400, 403, 404, 429)
_COMPLETION = {200: answer_or_events(Completion, Completion), **_REFUSALS}
_CHAT = {200: answer_or_events(ChatCompletion, ChatChunk), **_REFUSALS}


class Chunks(Protocol):
    """CompletionChunks or ChatChunks."""

    templates: ChunkTemplates

    def chunks(self, index: int, frame: Frame) -> Sequence[msgspec.Struct | msgspec.Raw]: ...

    def last(self, usage: TokenUsage) -> msgspec.Struct: ...


def openai_router(generator: Generator, planner: RequestPlanner, tokenizer: Tokenizer, *, base_name: str) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], route_class=counted_route(generator.metrics, error_of_body))
    texts = TokenTexts(tokenizer)

    @router.post("/v1/completions", summary="Complete prompts", response_class=Response, responses=_COMPLETION)
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Continues prompts with the base model or with an adapter, as OpenAI's API does."""
        choices = await planner.completion(body, caller_of(request))
        head = new_head("cmpl", name_in_answer(body.model, choices, base_name=base_name))
        echoes = echoes_of(body, tokenizer)
        if body.stream:
            chunks = CompletionChunks(head, texts, echoes, StreamUsage.of(body, choices))
            return _stream(generator, choices, chunks, includes_usage=body.includes_usage, model=body.model)
        return await _whole(request, _completion(generator, choices, head, body, echoes, texts), choices)

    @router.post("/v1/chat/completions", summary="Answer a conversation", response_class=Response, responses=_CHAT)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Answers a conversation through the model's chat template, as OpenAI's API does."""
        choices = await planner.chat(body, caller_of(request))
        head = new_head("chatcmpl", name_in_answer(body.model, choices, base_name=base_name))
        if body.stream:
            chunks = ChatChunks(head, texts, StreamUsage.of(body, choices))
            return _stream(generator, choices, chunks, includes_usage=body.includes_usage, model=body.model)
        return await _whole(request, _chat(generator, choices, head, body, texts), choices)

    return router


async def _completion(
    generator: Generator, choices: Choices, head: Head, body: CompletionBody, echoes: list[str], texts: TokenTexts
) -> Completion:
    with openai_terms(body.model, {}):
        answers = await whole_answers(generator, choices.plans)
    usage = _usage(choices, answers)
    if body.num_drawn > body.num_choices:
        answers = best_of_each(answers, num_drawn=body.num_drawn, num_wanted=body.num_choices)
    names = None if body.logprobs is None else texts
    shown = [completion_choice(index, *pair, names) for index, pair in enumerate(zip(answers, echoes, strict=True))]
    return completion(head, shown, usage)


async def _chat(
    generator: Generator, choices: Choices, head: Head, body: ChatBody, texts: TokenTexts
) -> ChatCompletion:
    with openai_terms(body.model, {}):
        answers = await whole_answers(generator, choices.plans)
    return chat_completion(head, answers, _usage(choices, answers), texts)


def _usage(choices: Choices, answers: Sequence[GenerateAnswer]) -> TokenUsage:
    num_tokens = sum(len(answer.token_ids) for answer in answers)
    return choices.usage(num_tokens, {index: answer.usage for index, answer in enumerate(answers)})


async def _whole(request: Request, work: Coroutine[Any, Any, msgspec.Struct], choices: Choices) -> Response:
    answer = await run_while_connected(request.receive, work)
    if answer is None:
        return Response(status_code=CLIENT_CLOSED)
    return with_ignored(json_of(answer), choices.ignored_fields)


def _stream(
    generator: Generator, choices: Choices, chunks: Chunks, *, includes_usage: bool, model: str | None
) -> Response:
    direct = DirectOutput(chunks.templates.encoders)

    async def events() -> AsyncGenerator[msgspec.Struct | msgspec.Raw, None]:
        ends = dict[int, TokenUsage]()
        with openai_terms(model, {}):
            async with aclosing(stream_all(generator, choices.plans, direct)) as frames:
                async for index, frame in frames:
                    if frame.usage:
                        ends[index] = frame.usage
                    for chunk in chunks.chunks(index, frame):
                        yield chunk
        if includes_usage:
            yield chunks.last(choices.usage(sum(end.completion_tokens for end in ends.values()), ends))

    stream = EventStream(events(), lambda error: {"error": error_object(error)}, direct=direct)
    return with_ignored(stream, choices.ignored_fields)
