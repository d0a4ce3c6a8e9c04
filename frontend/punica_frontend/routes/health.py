"""GET /health: this process lives. GET /ready: requests can run."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from punica_frontend.admission import Admission
from punica_frontend.scheduler_client import SchedulerClient
from punica_serve.errors import ClusterUnavailable


def health_router(client: SchedulerClient, admission: Admission) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health", summary="Is the frontend alive?")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @router.get("/ready", summary="Can requests run?")
    async def ready() -> JSONResponse:
        """200 once the scheduler is connected and at least one GPU has joined, else 503; 503 again while it ends."""
        if not admission.is_open:
            raise ClusterUnavailable("not ready: the frontend is shutting down")
        if not client.connected:
            raise ClusterUnavailable("not ready: the scheduler can't be reached")
        if client.limits is None or client.limits.num_gpus < 1:
            raise ClusterUnavailable("not ready: no GPU has joined yet")
        return JSONResponse({"status": "ready", "num_gpus": client.limits.num_gpus})

    return router
