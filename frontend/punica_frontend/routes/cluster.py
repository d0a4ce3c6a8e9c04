"""/v1/cluster: the scheduler's view, as JSON objects, and what operators may do to it."""

from typing import Any

import msgspec
from fastapi import APIRouter
from fastapi.responses import JSONResponse

from punica_frontend.scheduler_client import SchedulerClient
from punica_frontend.schemas import DrainBody, ErrorBody

_DRAIN_RESPONSES: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorBody, "description": "No such GPU; the message names those there are."},
    503: {"model": ErrorBody, "description": "The scheduler can't be reached; try again later."},
}


def cluster_router(client: SchedulerClient) -> APIRouter:
    router = APIRouter(tags=["cluster"])

    @router.get("/v1/cluster", summary="GPUs, queue and counters")
    async def cluster() -> JSONResponse:
        """Each GPU's batch size, free KvCache pages and resident adapters, and whether it is being drained; the queue;
        what happened so far; and `advice`: how many GPUs more are wanted, and which runners could be released.
        """
        return JSONResponse(as_objects(await client.cluster()))

    @router.post("/v1/cluster/drain", summary="Empty a GPU, or use it again", responses=_DRAIN_RESPONSES)
    async def drain(body: DrainBody) -> JSONResponse:
        """Nothing new is placed on a GPU that is drained, and what runs there moves to others as they have room."""
        await client.drain_gpu(body.gpu, drain=body.drain)
        return JSONResponse({"gpu": body.gpu, "drain": body.drain})

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
