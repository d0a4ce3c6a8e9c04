"""DELETE /v1/adapters/{name}, and the progress of deletions."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from punica_frontend.adapters.addresses import changeable
from punica_frontend.adapters.bodies import AdapterPath
from punica_frontend.adapters.cards import Deletion
from punica_frontend.adapters.paths import ADAPTER
from punica_frontend.adapters.reconciler import AdapterReconciler
from punica_frontend.adapters.residency import residency
from punica_frontend.api.caller import Caller, caller_of
from punica_frontend.api.response_docs import json_answer, refusal, refusals
from punica_frontend.generation.answers import json_of
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.errors import AdapterNotFound
from punica_serve.registry.registry import Registry

#: A deletion that takes longer is answered with 202, unless the client asks to wait longer.
WAIT_S = 5.0
MAX_WAIT_S = 60.0

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The digest of the adapter's bytes.")]
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="How long to wait for the deletion, in seconds.")]


def deletions_router(registry: Registry, client: SchedulerClient, reconciler: AdapterReconciler) -> APIRouter:
    router = APIRouter(tags=["adapters"])

    @router.delete(
        ADAPTER,
        summary="Delete an adapter",
        responses={
            200: json_answer(Deletion, "Nothing is left of it, except bytes that another adapter shares."),
            202: json_answer(Deletion, "Requests still use it, or a runner is slow."),
            **refusals(404, 409),
        },
    )
    async def delete(request: Request, name: AdapterPath, wait_s: Wait = WAIT_S) -> Response:
        """New requests no longer find the adapter, at other frontends within a second.

        Requests that use it finish; then its memory is freed on all GPUs, hosts and disks, and its files are removed
        from the store. 200 means that all of this is done, or that other adapters have the same bytes: `shared_with`.
        """
        caller = caller_of(request)
        adapter = await changeable(registry, caller, name)
        deleted = await registry.delete(adapter.tenant_id, adapter.name, by=caller.name)
        is_gone = await reconciler.wait_deleted(deleted, wait_s)
        digest = adapter.ref.digest
        return await _answer_of(client, digest, is_gone=is_gone, shared_with=_users_of(registry, caller, digest))

    @router.get(
        "/v1/adapter-deletions/{digest}",
        summary="The progress of a deletion",
        responses={
            200: json_answer(Deletion, "Its progress."),
            **refusal(404, "No adapter of yours with these bytes was deleted, or one that you may use has them."),
        },
    )
    async def deletion(request: Request, digest: Digest) -> Response:
        """`deleting` while an adapter that was yours, with these bytes, is still somewhere."""
        caller = caller_of(request)
        if users := _users_of(registry, caller, digest):
            raise AdapterNotFound(f"these bytes are not deleted: {', '.join(users)} has them", param="digest")
        unused = (await registry.unused_files()).get(digest)
        if unused is not None and (caller.is_admin or caller.tenant_id in unused.tenant_ids):
            return await _answer_of(client, digest, is_gone=False)
        owners = await registry.past_owners(digest)
        if not (owners if caller.is_admin else caller.tenant_id in owners):
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
    """Returns only adapters that the caller may use, even if others have the same bytes."""
    adapters = registry.snapshot.adapters(caller.tenant_id, is_admin=caller.is_admin)
    return tuple(adapter.full_name for adapter in adapters if adapter.ref.digest == digest)
