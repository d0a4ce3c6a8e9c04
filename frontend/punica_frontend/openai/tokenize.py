"""POST /tokenize and /detokenize, with vLLM's bodies and answers."""

import asyncio
from typing import ClassVar

from fastapi import APIRouter, Request, Response
from pydantic import Field

from punica_frontend.api.caller import caller_of
from punica_frontend.api.counted_route import refusing_route
from punica_frontend.api.errors import error_of_body
from punica_frontend.api.response_docs import json_answer, refusals
from punica_frontend.api.schemas import Text
from punica_frontend.fields.lenient_body import LenientBody
from punica_frontend.fields.policy import FieldPolicy, with_ignored
from punica_frontend.generation.answers import json_of
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.prompts import MAX_INLINE_CHARS, PromptEncoder
from punica_frontend.generation.request_limits import check_vocabulary
from punica_frontend.openai.chat_body import MAX_MESSAGES, InputMessage
from punica_frontend.openai.conversation import Conversations
from punica_frontend.openai.error_terms import openai_terms
from punica_frontend.openai.model_cards import CardMaker
from punica_frontend.openai.model_names import model_named
from punica_frontend.openai.token_answers import Detokenized, Tokens
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import InvalidRequest
from punica_serve.registry.records import AdapterVersion
from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer


class TokenizeBody(LenientBody):
    """A prompt, or a conversation that the chat template turns into one."""

    keeps_empty: ClassVar[frozenset[str]] = frozenset({"prompt", "add_special_tokens", "add_generation_prompt"})

    model: Text | None = Field(None, description="As in /v1/completions. An adapter may have its own chat template.")
    prompt: Text | None = Field(None, description="Give either this or messages.", examples=["42"])
    messages: list[InputMessage] | None = Field(None, min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    add_special_tokens: bool | None = Field(None, description="Default: true for a prompt, false for messages.")
    add_generation_prompt: bool | None = Field(
        None, description="End the prompt with the start of an answer. Default: true."
    )
    return_token_strs: bool | None = None


class DetokenizeBody(LenientBody):
    model: Text | None = None
    tokens: list[int] = Field(fail_fast=True, examples=[[52, 50]])


_TOKENIZE = {200: json_answer(Tokens, "The tokens."), **refusals(400, 404, 429)}
_DETOKENIZE = {200: json_answer(Detokenized, "The text."), **refusals(400, 404)}


def tokenize_router(
    generator: Generator,
    tokenizer: Tokenizer,
    prompts: PromptEncoder,
    conversations: Conversations,
    fields: FieldPolicy,
    model: ModelConfig,
    cards: CardMaker,
) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], route_class=refusing_route(error_of_body))
    texts = TokenTexts(tokenizer)

    @router.post("/tokenize", summary="Text to tokens", response_class=Response, responses=_TOKENIZE)
    async def tokenize(body: TokenizeBody, request: Request) -> Response:
        """Returns the tokens of a prompt or a conversation, exactly as the model would get them."""
        ignored = fields.check(body)
        adapter = await _adapter(body.model, request)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("give exactly one of `prompt` and `messages`", param="prompt")
        ids = await _ids(body, adapter, caller_of(request).tenant_id)
        strings = await _strings(ids) if body.return_token_strs else None
        return with_ignored(json_of(Tokens(len(ids), cards.max_context, ids, strings)), ignored)

    @router.post("/detokenize", summary="Tokens to text", response_class=Response, responses=_DETOKENIZE)
    async def detokenize(body: DetokenizeBody, request: Request) -> Response:
        """Returns the text of tokens, including special ones."""
        ignored = fields.check(body)
        await _adapter(body.model, request)
        check_vocabulary(body.tokens, "tokens", model.vocab_size)
        return with_ignored(json_of(Detokenized(await _text(body.tokens))), ignored)

    async def _adapter(name: str | None, request: Request) -> AdapterVersion | None:
        with openai_terms(name, {}):
            return await model_named(name, caller_of(request), generator, base_name=cards.base_name)

    async def _text(ids: list[int]) -> str:
        if len(ids) <= MAX_INLINE_CHARS:
            return tokenizer.decode(ids, skip_special_tokens=False)
        return await asyncio.to_thread(tokenizer.decode, ids, skip_special_tokens=False)

    async def _strings(ids: list[int]) -> list[str]:
        if len(ids) <= MAX_INLINE_CHARS:
            return list(map(texts.text, ids))
        return await asyncio.to_thread(lambda: list(map(texts.text, ids)))

    async def _ids(body: TokenizeBody, adapter: AdapterVersion | None, tenant: str) -> list[int]:
        if body.messages is not None:
            return await conversations.prompt_ids(
                body.messages,
                adapter,
                tenant,
                add_generation_prompt=body.add_generation_prompt is not False,
                add_special_tokens=bool(body.add_special_tokens),
            )
        assert body.prompt is not None
        add_special_tokens = body.add_special_tokens is not False
        return await prompts.ids(body.prompt, tenant, param="prompt", add_special_tokens=add_special_tokens)

    return router
