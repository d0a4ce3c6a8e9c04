"""GET /health and /ping: the process is alive. GET /ready: requests can run. GET /version: the running version."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from punica_frontend.api.response_docs import json_answer, text_answer
from punica_frontend.generation.admission import Admission
from punica_frontend.generation.answers import Health, Ready, VersionAnswer, json_of
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.errors import ClusterUnavailable
from punica_serve.version import __version__

_PING: dict[str, Any] = {"response_class": PlainTextResponse, "responses": {200: text_answer("Yes; an empty body.")}}


def health_router(client: SchedulerClient, admission: Admission) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health", summary="Is the frontend alive?", responses={200: json_answer(Health, "Yes.")})
    async def health() -> Response:
        return json_of(Health())

    @router.get("/ping", summary="Is the frontend alive? As SageMaker asks", **_PING)
    @router.post("/ping", summary="The same, as vLLM takes it too", **_PING)
    async def ping() -> Response:
        return PlainTextResponse()

    @router.get(
        "/version", summary="The version, as in vLLM", responses={200: json_answer(VersionAnswer, "The version.")}
    )
    async def version() -> Response:
        return json_of(VersionAnswer(__version__))

    @router.get("/ready", summary="Can requests run?", responses={200: json_answer(Ready, "Yes.")})
    async def ready() -> Response:
        """200 while the scheduler is connected and has a GPU that is not draining, otherwise 503.

        Also 503 while the frontend shuts down.
        """
        if not admission.is_open:
            raise ClusterUnavailable("not ready: the frontend is shutting down")
        if not client.connected:
            raise ClusterUnavailable("not ready: the scheduler can't be reached")
        if client.limits is None or client.limits.num_gpus < 1:
            raise ClusterUnavailable("not ready: no GPU has joined yet")
        num_usable = client.limits.num_gpus - client.limits.num_draining
        if num_usable < 1:
            raise ClusterUnavailable("not ready: all GPUs are draining; requests wait for another GPU")
        return json_of(Ready(num_usable))

    return router
