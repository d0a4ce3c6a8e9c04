"""/v1/cluster: the scheduler's view, as JSON objects, and what operators may do to it."""

from fastapi import APIRouter, Request, Response

from punica_frontend.answers import Drain, json_of
from punica_frontend.caller import admin_of, caller_of
from punica_frontend.openapi_page import Responses, json_answer, refusal
from punica_frontend.scheduler_client import SchedulerClient
from punica_frontend.schemas import DrainBody
from punica_frontend.watch.frames import Frames
from punica_frontend.watch.view import ClusterView, Viewer
from punica_serve.registry.registry import Registry

_DRAIN_RESPONSES: Responses = {
    200: json_answer(Drain, "Told to the scheduler."),
    **refusal(404, "No such GPU; the message names those there are."),
}


def cluster_router(client: SchedulerClient, registry: Registry, frames: Frames) -> APIRouter:
    router = APIRouter(tags=["cluster"])

    @router.get(
        "/v1/cluster",
        summary="GPUs, queue and counters",
        responses={200: json_answer(ClusterView, "The cluster as its scheduler sees it.")},
    )
    async def cluster(request: Request) -> Response:
        """Each GPU's batch size, free KvCache pages and resident adapters, and whether it is being drained; the queue;
        what happened so far; the rates and latencies of the last half minute; what to mark on a chart; and `advice`:
        how many GPUs more are wanted, and which runners could be released.

        Of the resident adapters, those that the caller may use, by their digests; `adapters` names them. An
        administrator sees all. `WS /v1/cluster/watch?per_s=1` tells the same again and again.
        """
        told = await frames.cluster(await client.cluster(), Viewer(caller_of(request), registry))
        return Response(told.body, media_type="application/json")

    @router.post("/v1/cluster/drain", summary="Empty a GPU, or use it again", responses=_DRAIN_RESPONSES)
    async def drain(body: DrainBody, request: Request) -> Response:
        """Nothing new is placed on a GPU that is drained, and what runs there moves to others as they have room."""
        admin_of(request)
        await client.drain_gpu(body.gpu, drain=body.drain)
        return json_of(Drain(body.gpu, body.drain))

    return router
