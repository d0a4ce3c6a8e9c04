"""POST /v1/generate: one request, answered as a whole or as server-sent events."""

from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from punica_frontend.answers import Answer, answer
from punica_frontend.connection import run_while_connected
from punica_frontend.event_stream import EventStream
from punica_frontend.generation import Generator, Plan
from punica_frontend.schemas import ErrorBody, GenerateBody

#: The client has closed its connection: nobody reads this answer, it only shows in logs.
_CLIENT_CLOSED = 499

_EXAMPLE = {
    "request_id": "gen-7e1f0cd3b2a94f5e8a6d1c0b9f8e7d6c",
    "lora_id": "roman",
    "text": "XLII",
    "token_ids": [60, 48, 45, 45, 2],
    "finish_reason": "stop",
    "usage": {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9},
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream`, events of its pieces and then `[DONE]`.",
        "content": {"application/json": {"example": _EXAMPLE}, "text/event-stream": {}},
    },
    400: {"model": ErrorBody, "description": "A field can't be served, or the body is not JSON."},
    404: {"model": ErrorBody, "description": "No such LoRA model."},
    422: {"model": ErrorBody, "description": "A field is unknown, of the wrong type or out of range."},
    429: {"model": ErrorBody, "description": "The queue is full; try again later."},
    503: {"model": ErrorBody, "description": "The cluster can't be reached; try again later."},
}


def generate_router(generator: Generator) -> APIRouter:
    router = APIRouter(tags=["native"])

    @router.post("/v1/generate", summary="Generate text", response_class=Response, responses=_RESPONSES)
    async def generate(body: GenerateBody, request: Request) -> Response:
        """Continues a prompt with the base model or with one of its LoRA models."""
        plan = await generator.plan(body)
        if body.stream:
            return EventStream(generator.stream(plan))
        whole = await run_while_connected(request.receive, _whole_answer(generator, plan))
        if whole is None:
            return Response(status_code=_CLIENT_CLOSED)
        return Response(msgspec.json.encode(whole), media_type="application/json")

    return router


async def _whole_answer(generator: Generator, plan: Plan) -> Answer:
    async with aclosing(generator.stream(plan)) as frames:
        return answer([frame async for frame in frames], lora_id=plan.lora_id)
