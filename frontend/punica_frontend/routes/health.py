"""GET /health: this process lives. GET /ready: requests can run."""

from fastapi import APIRouter, Response

from punica_frontend.admission import Admission
from punica_frontend.answers import Health, Ready, json_of
from punica_frontend.openapi_page import json_answer
from punica_frontend.scheduler_client import SchedulerClient
from punica_serve.errors import ClusterUnavailable


def health_router(client: SchedulerClient, admission: Admission) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health", summary="Is the frontend alive?", responses={200: json_answer(Health, "Yes.")})
    async def health() -> Response:
        return json_of(Health())

    @router.get("/ready", summary="Can requests run?", responses={200: json_answer(Ready, "Yes.")})
    async def ready() -> Response:
        """200 while the scheduler is connected and a GPU is there that is not being drained, else 503; 503 again while
        the frontend ends.
        """
        if not admission.is_open:
            raise ClusterUnavailable("not ready: the frontend is shutting down")
        if not client.connected:
            raise ClusterUnavailable("not ready: the scheduler can't be reached")
        if client.limits is None or client.limits.num_gpus < 1:
            raise ClusterUnavailable("not ready: no GPU has joined yet")
        num_usable = client.limits.num_gpus - client.limits.num_draining
        if num_usable < 1:
            raise ClusterUnavailable("not ready: all GPUs are being drained; requests wait for another")
        return json_of(Ready(num_usable))

    return router
