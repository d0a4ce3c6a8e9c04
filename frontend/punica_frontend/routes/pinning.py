"""POST /v1/adapters/{name}/pin, /unpin and /prefetch: adapters are loaded before a request asks for them."""

from contextlib import suppress

from fastapi import APIRouter, Request, Response

from punica_frontend.adapters.addresses import changeable, loadable
from punica_frontend.adapters.bodies import AdapterPath, PrefetchBody
from punica_frontend.adapters.cards import PlacedAdapter, Prefetch, placed
from punica_frontend.adapters.residency import residency
from punica_frontend.api.caller import caller_of
from punica_frontend.api.response_docs import Responses, json_answer, refusals
from punica_frontend.generation.answers import json_of
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.errors import ClusterUnavailable
from punica_serve.registry.registry import Registry

_PATH = "/v1/adapters/{name:path}"
_PLACED: Responses = {200: json_answer(PlacedAdapter, "The adapter."), **refusals(404, 409)}
_PREFETCH: Responses = {202: json_answer(Prefetch, "It is being loaded."), **refusals(400, 404, 422)}


def pinning_router(registry: Registry, client: SchedulerClient) -> APIRouter:
    router = APIRouter(tags=["adapters"])

    @router.post(f"{_PATH}/pin", summary="Pin an adapter in host memory", responses=_PLACED)
    async def pin(request: Request, name: AdapterPath) -> Response:
        """The adapter stays in every runner's host memory, and leaves a GPU only for adapters in use."""
        return await _set_pinned(registry, client, request, name, pinned=True)

    @router.post(f"{_PATH}/unpin", summary="Unpin an adapter", responses=_PLACED)
    async def unpin(request: Request, name: AdapterPath) -> Response:
        """The adapter leaves host memory when others need the room."""
        return await _set_pinned(registry, client, request, name, pinned=False)

    @router.post(f"{_PATH}/prefetch", status_code=202, summary="Load an adapter to GPUs", responses=_PREFETCH)
    async def prefetch(request: Request, name: AdapterPath, body: PrefetchBody | None = None) -> Response:
        """Loads the adapter to the given GPUs, or to all without a body. `residency` shows where it is."""
        caller = caller_of(request)
        adapter = await loadable(registry, caller, name)
        gpus = body.gpus if body else None
        await client.prefetch(adapter.ref, gpus or ())
        return json_of(Prefetch(adapter.full_name, gpus), 202)

    return router


async def _set_pinned(
    registry: Registry, client: SchedulerClient, request: Request, name: str, *, pinned: bool
) -> Response:
    caller = caller_of(request)
    adapter = await changeable(registry, caller, name)
    adapter = await registry.set_pinned(adapter.tenant_id, adapter.name, pinned, by=caller.name)
    if served := registry.snapshot.shared.serves(adapter):
        with suppress(ClusterUnavailable):  # the reconciler sends it to the cluster later
            await client.prefetch(adapter.ref, pin=pinned)
    return json_of(placed(adapter, caller, await residency(client, adapter.ref.digest), served=served))
