"""POST /v1/adapters/{name}/pin, /unpin and /prefetch: an adapter is near before anyone asks for it."""

from contextlib import suppress

from fastapi import APIRouter, Request, Response

from punica_frontend.adapters.addresses import changeable, usable
from punica_frontend.adapters.bodies import AdapterPath, PrefetchBody
from punica_frontend.adapters.cards import PlacedAdapter, Prefetch, placed
from punica_frontend.adapters.whereabouts import residency
from punica_frontend.answers import json_of
from punica_frontend.caller import caller_of
from punica_frontend.openapi_page import Responses, json_answer, refusals
from punica_frontend.scheduler_client import SchedulerClient
from punica_serve.errors import ClusterUnavailable
from punica_serve.registry.registry import Registry

_PATH = "/v1/adapters/{name:path}"
_PLACED: Responses = {200: json_answer(PlacedAdapter, "The adapter."), **refusals(404, 409)}
_PREFETCH: Responses = {202: json_answer(Prefetch, "It is on its way."), **refusals(404)}


def warmth_router(registry: Registry, client: SchedulerClient) -> APIRouter:
    router = APIRouter(tags=["adapters"])

    @router.post(f"{_PATH}/pin", summary="Keep an adapter in host memory", responses=_PLACED)
    async def pin(request: Request, name: AdapterPath) -> Response:
        """It stays in the host memory of every runner, and leaves a GPU only for adapters that are in use."""
        return await _set_pinned(registry, client, request, name, pinned=True)

    @router.post(f"{_PATH}/unpin", summary="Let an adapter leave host memory", responses=_PLACED)
    async def unpin(request: Request, name: AdapterPath) -> Response:
        """It leaves when others need the room."""
        return await _set_pinned(registry, client, request, name, pinned=False)

    @router.post(f"{_PATH}/prefetch", status_code=202, summary="Bring an adapter to GPUs", responses=_PREFETCH)
    async def prefetch(request: Request, name: AdapterPath, body: PrefetchBody | None = None) -> Response:
        """Before anyone asks for it; without a body, to all GPUs. `residency` tells where it has arrived."""
        caller = caller_of(request)
        adapter = await usable(registry, caller, name)
        gpus = body.gpus if body else None
        await client.warm(adapter.ref, gpus or ())
        return json_of(Prefetch(adapter.full_name, gpus), 202)

    return router


async def _set_pinned(
    registry: Registry, client: SchedulerClient, request: Request, name: str, *, pinned: bool
) -> Response:
    caller = caller_of(request)
    adapter = await changeable(registry, caller, name)
    adapter = await registry.set_pinned(adapter.tenant, adapter.name, pinned, by=caller.name)
    with suppress(ClusterUnavailable):  # what the registry says now, the warden tells the cluster later
        await client.warm(adapter.ref, pin=pinned)
    return json_of(placed(adapter, caller, await residency(client, adapter.ref.digest)))
