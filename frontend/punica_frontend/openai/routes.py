"""POST /v1/completions and /v1/chat/completions."""

from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from fastapi import APIRouter, Request, Response

from punica_frontend.answers import Frame, Usage, json_of
from punica_frontend.caller import caller_of
from punica_frontend.choices import Choices, stream_all, whole_answers
from punica_frontend.connection import CLIENT_CLOSED, run_while_connected
from punica_frontend.errors import error_object, error_of_body
from punica_frontend.event_stream import EventStream
from punica_frontend.generation import Generator
from punica_frontend.openai.best_of import best_of_each
from punica_frontend.openai.chat_answers import ChatChunk, ChatChunks, ChatCompletion, chat_completion
from punica_frontend.openai.chat_body import ChatBody
from punica_frontend.openai.completion_answers import Completion, CompletionChunks, completion, completion_choice
from punica_frontend.openai.completion_body import CompletionBody
from punica_frontend.openai.conversation import Conversations
from punica_frontend.openai.head import Head, new_head
from punica_frontend.openai.planning import Planner, echoes_of
from punica_frontend.openai.terms import openai_terms
from punica_frontend.openapi_page import answer_or_events, refusals
from punica_frontend.routes.counted import counted_route
from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer

_REFUSALS = refusals(400, 403, 404, 429)
_COMPLETION = {200: answer_or_events(Completion, Completion), **_REFUSALS}
_CHAT = {200: answer_or_events(ChatCompletion, ChatChunk), **_REFUSALS}


class Chunks(Protocol):
    """CompletionChunks or ChatChunks."""

    def chunks(self, index: int, frame: Frame) -> Sequence[msgspec.Struct]: ...

    def last(self, usage: Usage) -> msgspec.Struct: ...


def openai_router(
    generator: Generator, tokenizer: Tokenizer, conversations: Conversations, *, base_name: str
) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], route_class=counted_route(generator.figures, error_of_body))
    planner = Planner(generator, conversations, base_name=base_name)
    texts = TokenTexts(tokenizer)

    @router.post("/v1/completions", summary="Complete prompts", response_class=Response, responses=_COMPLETION)
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Continues prompts with the base model or with an adapter, as OpenAI's API does."""
        choices = await planner.completion(body, caller_of(request))
        head = new_head("cmpl", body.model or base_name)
        echoes = echoes_of(body, tokenizer)
        if body.stream:
            chunks = CompletionChunks(head, texts, echoes, includes_usage=body.includes_usage)
            return _stream(generator, choices, chunks, includes_usage=body.includes_usage, model=body.model)
        return await _whole(request, _completion(generator, choices, head, body, echoes, texts))

    @router.post("/v1/chat/completions", summary="Answer a conversation", response_class=Response, responses=_CHAT)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Answers a conversation through the model's chat template, as OpenAI's API does."""
        choices = await planner.chat(body, caller_of(request))
        head = new_head("chatcmpl", body.model or base_name)
        if body.stream:
            chunks = ChatChunks(head, texts, includes_usage=body.includes_usage)
            return _stream(generator, choices, chunks, includes_usage=body.includes_usage, model=body.model)
        return await _whole(request, _chat(generator, choices, head, body, texts))

    return router


async def _completion(
    generator: Generator, choices: Choices, head: Head, body: CompletionBody, echoes: list[str], texts: TokenTexts
) -> Completion:
    with openai_terms(body.model, {}):
        answers = await whole_answers(generator, choices.plans)
    usage = choices.usage(sum(len(answer.token_ids) for answer in answers))
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
    return chat_completion(head, answers, choices.usage(sum(len(answer.token_ids) for answer in answers)), texts)


async def _whole(request: Request, work: Coroutine[Any, Any, msgspec.Struct]) -> Response:
    answer = await run_while_connected(request.receive, work)
    if answer is None:
        return Response(status_code=CLIENT_CLOSED)
    return json_of(answer)


def _stream(
    generator: Generator, choices: Choices, chunks: Chunks, *, includes_usage: bool, model: str | None
) -> Response:
    async def events() -> AsyncGenerator[msgspec.Struct, None]:
        num_tokens = 0
        with openai_terms(model, {}):
            async with aclosing(stream_all(generator, choices.plans)) as frames:
                async for index, frame in frames:
                    num_tokens += len(frame.token_ids)
                    for chunk in chunks.chunks(index, frame):
                        yield chunk
        if includes_usage:
            yield chunks.last(choices.usage(num_tokens))

    return EventStream(events(), lambda _, error: {"error": error_object(error)})
