"""GET /v1/models: the base model and the caller's adapters, all or one."""

from collections.abc import Iterable

from fastapi import APIRouter, Request, Response

from punica_frontend.api.caller import Caller, caller_of
from punica_frontend.api.response_docs import Responses, json_answer, refusals
from punica_frontend.generation.answers import json_of
from punica_frontend.generation.generator import Generator
from punica_frontend.openai.error_terms import lora_id_of, openai_terms
from punica_frontend.openai.model_cards import CardMaker, ModelCard, ModelList
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry

_LIST: Responses = {200: json_answer(ModelList, "The base model, then the adapters.")}
_ONE: Responses = {200: json_answer(ModelCard, "The model."), **refusals(400, 404)}


def models_router(generator: Generator, registry: Registry, cards: CardMaker) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    def cards_of(adapters: Iterable[AdapterVersion], caller: Caller) -> list[ModelCard]:
        snapshot = registry.snapshot
        return [cards.of_adapter(adapter, snapshot.name_for(caller.tenant_id, adapter)) for adapter in adapters]

    @router.get("/v1/models", summary="List the models", response_class=Response, responses=_LIST)
    async def models(request: Request) -> Response:
        """Lists the base model, then every adapter of it that the caller may use, under the caller's name for it."""
        caller = caller_of(request)
        snapshot = registry.snapshot
        usable = snapshot.adapters(caller.tenant_id, is_admin=caller.is_admin)
        adapters = filter(snapshot.shared.serves, usable)
        return json_of(ModelList([cards.of_base(), *cards_of(adapters, caller)]))

    @router.get("/v1/models/{model:path}", summary="One model", response_class=Response, responses=_ONE)
    async def model_of(model: str, request: Request) -> Response:
        """Returns a model by any name with which the caller can request it."""
        caller = caller_of(request)
        with openai_terms(model, {}):
            adapter = await generator.adapter(lora_id_of(model, cards.base_name), caller)
        return json_of(cards_of([adapter], caller)[0] if adapter else cards.of_base())

    return router
