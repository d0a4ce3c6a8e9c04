"""/v1/cluster: the scheduler's view, and what operators may change."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from punica_frontend.api.caller import admin_of, caller_of
from punica_frontend.api.response_docs import Responses, json_answer, refusal
from punica_frontend.api.schemas import MAX_ID_CHARS, DrainBody
from punica_frontend.generation.answers import DrainAnswer, json_of
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_frontend.watch.frames import Frames
from punica_frontend.watch.view import ClusterView, GpuView, Viewer, encode
from punica_serve.registry.registry import Registry

GpuPath = Annotated[
    str, Path(max_length=MAX_ID_CHARS, description="The GPU's UUID or its name (`RUNNER/INDEX`), as in /v1/cluster.")
]
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
        """Returns the GPUs, the queue, counters and advice.

        Each GPU has its batch size over the last second, free KvCache pages, resident adapters and drain state. Rates
        and latencies are those of the last half minute; `marks` are cluster events; `advice` says how many GPUs to add,
        and which runners may be released.

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
    async def gpu(gpu: GpuPath, request: Request) -> Response:
        """Returns what `/v1/cluster` tells of a GPU, the LoRA pages in use, and the requests that are placed on it.

        Requests come with their tokens so far. Tenants see their own requests and the number of the others.
        """
        details, viewer = await client.gpu(gpu), Viewer(caller_of(request), registry)
        # In a thread: it looks through all adapters of the registry.
        body = await asyncio.to_thread(lambda: encode(viewer.gpu(details)))
        return Response(body, media_type="application/json")

    @router.post("/v1/cluster/drain", summary="Empty a GPU, or use it again", responses=_DRAIN_RESPONSES)
    async def drain(body: DrainBody, request: Request) -> Response:
        """Drains a GPU: it gets no new requests, and its requests move to other GPUs as those have room."""
        admin_of(request)
        await client.drain_gpu(body.gpu, drain=body.drain)
        return json_of(DrainAnswer(body.gpu, body.drain))

    return router
