"""GET /v1/adapters: adapters and where they are."""

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from punica_frontend.adapters.addresses import usable
from punica_frontend.adapters.bodies import AdapterPath
from punica_frontend.adapters.cards import AdapterDetail, AdapterList, detail_of, placed
from punica_frontend.adapters.paths import ADAPTER
from punica_frontend.adapters.residency import residencies, residency
from punica_frontend.api.caller import caller_of
from punica_frontend.api.response_docs import json_answer, refusals
from punica_frontend.generation.answers import json_of
from punica_frontend.routes.known_query import KNOWN_QUERY
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.errors import InvalidRequest, RegistryUnavailable
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry

MAX_PAGE = 1000

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="The most adapters of the page.")]
After = Annotated[str | None, Query(description="`full_name` of the last adapter of the page before.")]


def adapters_router(registry: Registry, client: SchedulerClient) -> APIRouter:
    router = APIRouter(tags=["adapters"])

    @router.get(
        "/v1/adapters",
        summary="List the adapters",
        dependencies=[KNOWN_QUERY],
        responses={200: json_answer(AdapterList, "A page of them."), **refusals(400, 422)},
    )
    async def list_adapters(request: Request, limit: Limit = MAX_PAGE, after: After = None) -> Response:
        """Lists the adapters that you may use, and where each is."""
        caller = caller_of(request)
        snapshot = registry.snapshot
        adapters = snapshot.adapters(caller.tenant_id, is_admin=caller.is_admin)
        page, has_more = page_of(adapters, limit, after)
        where = await residencies(client, {adapter.ref.digest for adapter in page})
        cards = [
            placed(adapter, caller, where[adapter.ref.digest], served=snapshot.shared.serves(adapter))
            for adapter in page
        ]
        return json_of(AdapterList(cards, has_more))

    @router.get(
        ADAPTER,
        summary="Show an adapter",
        responses={200: json_answer(AdapterDetail, "The adapter."), **refusals(404)},
    )
    async def show(request: Request, name: AdapterPath) -> Response:
        """Shows an adapter, where it is, and its versions; while the registry is down, only the served version."""
        caller = caller_of(request)
        adapter = await usable(registry, caller, name)
        versions: tuple[AdapterVersion, ...] = ()
        with suppress(RegistryUnavailable):  # the snapshot has the served version
            versions = await registry.versions(adapter.tenant_id, adapter.name)
        where = await residency(client, adapter.ref.digest)
        served = registry.snapshot.shared.serves(adapter)
        return json_of(detail_of(adapter, caller, where, versions or (adapter,), served=served))

    return router


def page_of(
    adapters: tuple[AdapterVersion, ...], limit: int, after: str | None
) -> tuple[tuple[AdapterVersion, ...], bool]:
    """Returns the page after ``after``, and whether there is another. Raises InvalidRequest."""
    first = 0
    if after is not None:
        names = [adapter.full_name for adapter in adapters]
        if after not in names:
            raise InvalidRequest("`after` names no adapter of this list; it may have been deleted", param="after")
        first = names.index(after) + 1
    return adapters[first : first + limit], len(adapters) > first + limit
