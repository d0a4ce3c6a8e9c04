"""/v1/tenants/{tenant}/grants: whose adapters a tenant may use beside its own. For administrators."""

from fastapi import APIRouter, Request, Response

from punica_frontend.answers import json_of
from punica_frontend.caller import admin_of
from punica_frontend.openapi_page import json_answer, refusals
from punica_frontend.tenancy.answers import GrantCard, GrantList, RevokedGrant
from punica_serve.registry.names import full_name
from punica_serve.registry.records import Grant
from punica_serve.registry.registry import Registry

_PATH = "/v1/tenants/{tenant}/grants/{owner}/{name}"


def grants_router(registry: Registry) -> APIRouter:
    router = APIRouter(tags=["tenants"])

    @router.get(
        "/v1/tenants/{tenant}/grants",
        summary="List the adapters of others that a tenant may use",
        responses={200: json_answer(GrantList, "All of them."), **refusals(404)},
    )
    async def list_grants(tenant: str, request: Request) -> Response:
        """With the name by which the tenant gets each."""
        admin_of(request)
        snapshot = registry.snapshot
        snapshot.tenant(tenant)
        return json_of(GrantList([GrantCard.of(grant, snapshot) for grant in snapshot.grants() if grant.to == tenant]))

    @router.put(
        _PATH,
        summary="Let a tenant use another's adapter",
        responses={200: json_answer(GrantCard, "It may use it."), **refusals(400, 404, 409, 422)},
    )
    async def grant(tenant: str, owner: str, name: str, request: Request) -> Response:
        """Whichever version of it is the newest. A granted name goes before a shared one, and the tenant's own before
        both: `name` and `shadows` say what is what.
        """
        await registry.grant(owner, name, tenant, by=admin_of(request).name)
        return json_of(GrantCard.of(Grant(owner, name, tenant), registry.snapshot))

    @router.delete(
        _PATH,
        summary="Take a grant back",
        responses={200: json_answer(RevokedGrant, "It may not use it."), **refusals(400, 422)},
    )
    async def revoke(tenant: str, owner: str, name: str, request: Request) -> Response:
        """Requests that run go on; new ones find no such adapter."""
        await registry.revoke(owner, name, tenant, by=admin_of(request).name)
        return json_of(RevokedGrant(full_name(owner, name), tenant))

    return router
