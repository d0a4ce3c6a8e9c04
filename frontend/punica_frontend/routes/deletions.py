"""DELETE /v1/adapters/{name}, and how far a deletion is."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from punica_frontend.adapters.addresses import changeable
from punica_frontend.adapters.bodies import AdapterPath
from punica_frontend.adapters.cards import Deletion
from punica_frontend.adapters.warden import Warden
from punica_frontend.adapters.whereabouts import residency
from punica_frontend.answers import json_of
from punica_frontend.caller import Caller, caller_of
from punica_frontend.openapi_page import json_answer, refusal, refusals
from punica_frontend.scheduler_client import SchedulerClient
from punica_serve.errors import AdapterNotFound
from punica_serve.registry.registry import Registry

#: A deletion that takes longer is answered with 202, unless the client wants to wait.
WAIT_S = 5.0
MAX_WAIT_S = 60.0

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="Of the adapter's bytes.")]
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="At most so long.")]


def deletions_router(registry: Registry, client: SchedulerClient, warden: Warden) -> APIRouter:
    router = APIRouter(tags=["adapters"])

    @router.delete(
        "/v1/adapters/{name:path}",
        summary="Delete an adapter",
        responses={
            200: json_answer(Deletion, "Nothing is left of it, but for bytes that another adapter has too."),
            202: json_answer(Deletion, "Requests still use it, or a runner is slow."),
            **refusals(404, 409),
        },
    )
    async def delete(request: Request, name: AdapterPath, wait_s: Wait = WAIT_S) -> Response:
        """At once no new request finds it here, and within a second none at other frontends. Requests that use it
        finish; then its memory is freed on all GPUs, hosts and disks, and in the store. 200 says that all of this is
        done, or that others have the same bytes: `shared_with`.
        """
        caller = caller_of(request)
        adapter = await changeable(registry, caller, name)
        deleted = await registry.delete(adapter.tenant, adapter.name, by=caller.name)
        is_gone = await warden.gone(deleted, wait_s)
        digest = adapter.ref.digest
        return await _answer_of(client, digest, is_gone=is_gone, shared_with=_users_of(registry, caller, digest))

    @router.get(
        "/v1/adapter-deletions/{digest}",
        summary="How far a deletion is",
        responses={
            200: json_answer(Deletion, "How far it is."),
            **refusal(404, "No adapter of yours with these bytes was deleted, or another that you may use has them."),
        },
    )
    async def deletion(request: Request, digest: Digest) -> Response:
        """`deleting` as long as an adapter that was yours, with these bytes, is still somewhere."""
        caller = caller_of(request)
        if users := _users_of(registry, caller, digest):
            raise AdapterNotFound(f"these bytes are not deleted: {', '.join(users)} has them", param="digest")
        forgotten = (await registry.forgotten()).get(digest)
        if forgotten is not None and (caller.is_admin or caller.tenant in forgotten.tenants):
            return await _answer_of(client, digest, is_gone=False)
        owners = await registry.past_owners(digest)
        if not (owners if caller.is_admin else caller.tenant in owners):
            raise AdapterNotFound("no adapter of yours with these bytes was deleted", param="digest")
        return await _answer_of(client, digest, is_gone=True)

    return router


async def _answer_of(
    client: SchedulerClient, digest: str, *, is_gone: bool, shared_with: tuple[str, ...] = ()
) -> Response:
    status_url = f"/v1/adapter-deletions/{digest}"
    if is_gone:
        return json_of(Deletion(digest, "deleted", status_url, shared_with))
    where = await residency(client, digest)
    return json_of(Deletion(digest, "deleting", status_url, shared_with, where), 202)


def _users_of(registry: Registry, caller: Caller, digest: str) -> tuple[str, ...]:
    """Of others' adapters nobody is told, though they may have the same bytes."""
    adapters = registry.snapshot.adapters(caller.tenant, is_admin=caller.is_admin)
    return tuple(adapter.full_name for adapter in adapters if adapter.ref.digest == digest)
