"""POST /tokenize and /detokenize, with vLLM's bodies and answers."""

import asyncio

from fastapi import APIRouter, Request, Response
from pydantic import Field

from punica_frontend.answers import json_of
from punica_frontend.caller import caller_of
from punica_frontend.errors import error_of_body
from punica_frontend.generation import MAX_INLINE_CHARS, Generator, check_vocabulary
from punica_frontend.openai.chat_body import MAX_MESSAGES, Message
from punica_frontend.openai.conversation import Conversations
from punica_frontend.openai.model_cards import CardMaker
from punica_frontend.openai.sampling_body import LenientBody
from punica_frontend.openai.terms import lora_id_of, openai_terms
from punica_frontend.openai.token_answers import Detokenized, Tokens
from punica_frontend.openai.unsupported import refuse_unsupported_of_tokens
from punica_frontend.openapi_page import json_answer, refusals
from punica_frontend.routes.counted import refusing_route
from punica_frontend.schemas import Text
from punica_serve.errors import InvalidRequest
from punica_serve.model_config import ModelConfig
from punica_serve.registry.records import AdapterVersion
from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer


class TokenizeBody(LenientBody):
    """A prompt, or a conversation that a chat template makes one of."""

    model: Text | None = Field(None, description="As in /v1/completions. An adapter may have its own chat template.")
    prompt: Text | None = Field(None, description="Either this or messages.", examples=["42"])
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    add_special_tokens: bool | None = Field(None, description="Default: of a prompt yes, of messages no.")
    add_generation_prompt: bool | None = Field(None, description="Whether an answer follows the messages; it does.")
    return_token_strs: bool | None = None


class DetokenizeBody(LenientBody):
    model: Text | None = None
    tokens: list[int] = Field(fail_fast=True, examples=[[52, 50]])


_TOKENIZE = {200: json_answer(Tokens, "The tokens."), **refusals(400, 404, 429)}
_DETOKENIZE = {200: json_answer(Detokenized, "The text."), **refusals(400, 404)}


def tokenize_router(
    generator: Generator, tokenizer: Tokenizer, conversations: Conversations, model: ModelConfig, cards: CardMaker
) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], route_class=refusing_route(error_of_body))
    texts = TokenTexts(tokenizer)

    @router.post("/tokenize", summary="Text to tokens", response_class=Response, responses=_TOKENIZE)
    async def tokenize(body: TokenizeBody, request: Request) -> Response:
        """The tokens of a prompt or of a conversation, as the model would get them."""
        refuse_unsupported_of_tokens(body, messages=body.messages or ())
        adapter = await _adapter(body.model, request)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("give exactly one of `prompt` and `messages`", param="prompt")
        ids = await _ids(body, adapter)
        strings = await _strings(ids) if body.return_token_strs else None
        return json_of(Tokens(len(ids), cards.max_context, ids, strings))

    @router.post("/detokenize", summary="Tokens to text", response_class=Response, responses=_DETOKENIZE)
    async def detokenize(body: DetokenizeBody, request: Request) -> Response:
        """The text of tokens, special ones included."""
        refuse_unsupported_of_tokens(body)
        await _adapter(body.model, request)
        check_vocabulary(body.tokens, "tokens", model.vocab_size)
        if len(body.tokens) <= MAX_INLINE_CHARS:
            return json_of(Detokenized(tokenizer.decode(body.tokens, skip_special_tokens=False)))
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
        return json_of(Detokenized(text))

    async def _adapter(name: str | None, request: Request) -> AdapterVersion | None:
        with openai_terms(name, {}):
            return await generator.adapter(lora_id_of(name, cards.base_name), caller_of(request))

    async def _strings(ids: list[int]) -> list[str]:
        if len(ids) <= MAX_INLINE_CHARS:
            return list(map(texts.text, ids))
        return await asyncio.to_thread(lambda: list(map(texts.text, ids)))

    async def _ids(body: TokenizeBody, adapter: AdapterVersion | None) -> list[int]:
        if body.messages is not None:
            return await conversations.prompt_ids(
                body.messages,
                adapter,
                add_generation_prompt=body.add_generation_prompt is not False,
                add_special_tokens=bool(body.add_special_tokens),
            )
        assert body.prompt is not None
        add_special_tokens = body.add_special_tokens is not False
        if len(body.prompt) <= MAX_INLINE_CHARS:
            return tokenizer.encode(body.prompt, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(tokenizer.encode, body.prompt, add_special_tokens=add_special_tokens)

    return router
