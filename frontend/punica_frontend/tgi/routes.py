"""POST /generate and /generate_stream, GET /info."""

from fastapi import APIRouter, Request, Response

from punica_frontend.api.counted_route import counted_route
from punica_frontend.api.errors import error_of_body
from punica_frontend.api.response_docs import Responses, either_answer, events_answer, json_answer, refusals
from punica_frontend.fields.policy import FieldPolicy
from punica_frontend.generation.answers import json_of
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.prompts import PromptEncoder
from punica_frontend.tgi.answers import Generated, StreamEvent
from punica_frontend.tgi.body import EitherBody, LoraxBody, StreamBody
from punica_frontend.tgi.errors import TgiError, TgiErrorBody
from punica_frontend.tgi.info import Info
from punica_frontend.tgi.responder import TgiResponder
from punica_serve.text.tokenizer import Tokenizer

_REFUSALS = refusals(403, 404, 422, 424, 429, 503, body=TgiErrorBody)
_GENERATE = {200: json_answer(Generated, "The answer."), **_REFUSALS}
_STREAM = {200: events_answer(StreamEvent, "The answer, an event for each token."), **_REFUSALS}
_EITHER = {200: either_answer(Generated, StreamEvent), **_REFUSALS}
_INFO: Responses = {200: json_answer(Info, "The base model and its limits.")}


def tgi_router(
    generator: Generator, tokenizer: Tokenizer, prompts: PromptEncoder, fields: FieldPolicy, info: Info
) -> APIRouter:
    route = counted_route(generator.metrics, lambda error: TgiError(error_of_body(error)))
    router = APIRouter(tags=["LoRAX"], route_class=route)
    responder = TgiResponder(generator, tokenizer, prompts, fields, base_name=info.model_id)

    @router.post("/generate", summary="Generate text, as in LoRAX", response_class=Response, responses=_GENERATE)
    async def generate(body: LoraxBody, request: Request) -> Response:
        """Continues `inputs` with the base model, or with the adapter `parameters.adapter_id`."""
        return await responder.whole(body, request, is_list=False)

    @router.post("/generate_stream", summary="Stream text, as in LoRAX", response_class=Response, responses=_STREAM)
    async def generate_stream(body: StreamBody, request: Request) -> Response:
        """Like POST /generate, with an event for each token."""
        return await responder.stream(body, request)

    @router.post("/", summary="Either of them, as in TGI", response_class=Response, responses=_EITHER)
    async def either(body: EitherBody, request: Request) -> Response:
        """For Hugging Face's InferenceClient: a list of one answer or, with `stream`, an event for each token."""
        return await (responder.stream(body, request) if body.stream else responder.whole(body, request, is_list=True))

    @router.get("/info", summary="The served model, as in LoRAX", response_class=Response, responses=_INFO)
    async def get_info() -> Response:
        return json_of(info)

    return router
