"""/v1/cluster: the scheduler's view, and what operators may change."""

from fastapi import APIRouter, Request, Response

from punica_frontend.api.caller import admin_of, caller_of
from punica_frontend.api.response_docs import Responses, json_answer, refusal
from punica_frontend.api.schemas import DrainBody
from punica_frontend.generation.answers import DrainAnswer, json_of
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_frontend.watch.frames import Frames
from punica_frontend.watch.view import ClusterView, GpuView, Viewer, encode
from punica_serve.registry.registry import Registry

_NO_SUCH_GPU: Responses = refusal(404, "There is no such GPU; the message names all GPUs.")
_DRAIN_RESPONSES: Responses = {200: json_answer(DrainAnswer, "The scheduler has the order."), **_NO_SUCH_GPU}


def cluster_router(client: SchedulerClient, registry: Registry, frames: Frames) -> APIRouter:
    router = APIRouter(tags=["cluster"])

    @router.get(
        "/v1/cluster",
        summary="GPUs, queue and counters",
        responses={200: json_answer(ClusterView, "The cluster as its scheduler sees it.")},
    )
    async def cluster(request: Request) -> Response:
        """Returns each GPU's batch size over the last second, free KvCache pages, resident adapters and drain state;

        the queue; counters; rates and latencies of the last half minute; cluster events (`marks`); and `advice`: how
        many GPUs to add, and which runners may be released.

        Resident adapters are those that the caller may use, by digest; `adapters` names them. An administrator sees all
        of them, and how many each host caches. `WS /v1/cluster/watch?per_s=1` sends the same repeatedly.
        """
        encoded = await frames.cluster(await client.cluster(), Viewer(caller_of(request), registry))
        return Response(encoded.body, media_type="application/json")

    @router.get(
        "/v1/cluster/gpus/{gpu:path}",
        summary="One GPU and its requests",
        responses={200: json_answer(GpuView, "The GPU as the scheduler sees it."), **_NO_SUCH_GPU},
    )
    async def gpu(gpu: str, request: Request) -> Response:
        """Returns a GPU, by UUID or by name (`RUNNER/INDEX`): what `/v1/cluster` tells of it, the LoRA pages in use,

        and the requests that are placed on it with their tokens so far. Tenants see their own requests and the number
        of the others.
        """
        view = Viewer(caller_of(request), registry).gpu(await client.gpu(gpu))
        return Response(encode(view), media_type="application/json")

    @router.post("/v1/cluster/drain", summary="Empty a GPU, or use it again", responses=_DRAIN_RESPONSES)
    async def drain(body: DrainBody, request: Request) -> Response:
        """Nothing new is placed on a draining GPU, and its requests move to other GPUs as those have room."""
        admin_of(request)
        await client.drain_gpu(body.gpu, drain=body.drain)
        return json_of(DrainAnswer(body.gpu, body.drain))

    return router
