"""POST /v1/generate: one request, answered as a whole or as server-sent events."""

from fastapi import APIRouter, Request, Response

from punica_frontend.api.caller import caller_of
from punica_frontend.api.counted_route import counted_route
from punica_frontend.api.response_docs import answer_or_events, refusals
from punica_frontend.api.schemas import GenerateBody
from punica_frontend.generation.answers import Frame, GenerateAnswer, json_of
from punica_frontend.generation.choices import whole_answers
from punica_frontend.generation.frame_events import FrameEvents
from punica_frontend.generation.generator import Generator
from punica_frontend.http.connection import CLIENT_CLOSED, run_while_connected

_EXAMPLE = {
    "request_id": "7e1f0cd3b2a94f5e8a6d1c0b9f8e7d6c-9b2f0c55d1e3a874",
    "lora_id": "roman",
    "text": "XLII",
    "token_ids": [60, 48, 45, 45, 2],
    "finish_reason": "stop",
    "usage": {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9},
}
_RESPONSES = {
    200: answer_or_events(GenerateAnswer, Frame, example=_EXAMPLE),
    **refusals(403, 404, 429),
}


def generate_router(generator: Generator) -> APIRouter:
    router = APIRouter(tags=["native"], route_class=counted_route(generator.metrics))

    @router.post("/v1/generate", summary="Generate text", response_class=Response, responses=_RESPONSES)
    async def generate(body: GenerateBody, request: Request) -> Response:
        """Continues a prompt with the base model or with one of its LoRA models."""
        plan = await generator.plan(body, caller_of(request))
        if body.stream:
            return FrameEvents(generator, plan).response()
        answers = await run_while_connected(request.receive, whole_answers(generator, (plan,)))
        if answers is None:
            return Response(status_code=CLIENT_CLOSED)
        return json_of(answers[0])

    return router
