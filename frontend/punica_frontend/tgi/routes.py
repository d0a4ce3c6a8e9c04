"""POST /generate and /generate_stream, GET /info."""

from fastapi import APIRouter, Request, Response

from punica_frontend.answers import json_of
from punica_frontend.errors import error_of_body
from punica_frontend.generation import Generator
from punica_frontend.openapi_page import Responses, either_answer, events_answer, json_answer, refusals
from punica_frontend.routes.counted import counted_route
from punica_frontend.tgi.answering import Answering
from punica_frontend.tgi.answers import Generated, StreamEvent
from punica_frontend.tgi.body import EitherBody, LoraxBody
from punica_frontend.tgi.errors import TgiError, TgiErrorBody
from punica_frontend.tgi.info import Info
from punica_serve.text.tokenizer import Tokenizer

_REFUSALS = refusals(403, 404, 422, 424, 429, 503, body=TgiErrorBody)
_GENERATE = {200: json_answer(Generated, "The answer."), **_REFUSALS}
_STREAM = {200: events_answer(StreamEvent, "The answer, an event for each token."), **_REFUSALS}
_EITHER = {200: either_answer(Generated, StreamEvent), **_REFUSALS}
_INFO: Responses = {200: json_answer(Info, "The base model and its limits.")}


def tgi_router(generator: Generator, tokenizer: Tokenizer, info: Info) -> APIRouter:
    route = counted_route(generator.figures, lambda error: TgiError(error_of_body(error)))
    router = APIRouter(tags=["LoRAX"], route_class=route)
    answering = Answering(generator, tokenizer, base_name=info.model_id)

    @router.post("/generate", summary="Generate text, as in LoRAX", response_class=Response, responses=_GENERATE)
    async def generate(body: LoraxBody, request: Request) -> Response:
        """Continues `inputs` with the base model, or with the adapter `parameters.adapter_id`."""
        return await answering.whole(body, request, is_list=False)

    @router.post("/generate_stream", summary="Stream text, as in LoRAX", response_class=Response, responses=_STREAM)
    async def generate_stream(body: LoraxBody, request: Request) -> Response:
        """As POST /generate, with an event for each token."""
        return await answering.stream(body, request)

    @router.post("/", summary="Either of them, as in TGI", response_class=Response, responses=_EITHER)
    async def either(body: EitherBody, request: Request) -> Response:
        """What Hugging Face's InferenceClient asks: a list of one answer, or with `stream` an event for each token."""
        return await (answering.stream(body, request) if body.stream else answering.whole(body, request, is_list=True))

    @router.get("/info", summary="What is served, as in LoRAX", response_class=Response, responses=_INFO)
    async def get_info() -> Response:
        return json_of(info)

    return router
