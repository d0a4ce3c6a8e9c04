"""GET /v1/cluster: the scheduler's view, as JSON objects."""

from typing import Any

import msgspec
from fastapi import APIRouter
from fastapi.responses import JSONResponse

from punica_frontend.scheduler_client import SchedulerClient


def cluster_router(client: SchedulerClient) -> APIRouter:
    router = APIRouter(tags=["cluster"])

    @router.get("/v1/cluster", summary="GPUs, queue and counters")
    async def cluster() -> JSONResponse:
        """Each GPU's batch size, free KvCache pages and resident adapters; the queue; what happened so far."""
        return JSONResponse(as_objects(await client.cluster()))

    return router


def as_objects(value: Any) -> Any:
    """Structs, which travel as arrays between processes, to objects with named fields."""
    if isinstance(value, msgspec.Struct):
        return {name: as_objects(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [as_objects(item) for item in value]
    if isinstance(value, dict):
        return {key: as_objects(item) for key, item in value.items()}
    return value
