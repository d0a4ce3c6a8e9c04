"""/v1/tenants/{tenant}/grants: other tenants' adapters that a tenant may use. For administrators."""

from fastapi import APIRouter, Request, Response

from punica_frontend.api.caller import admin_of
from punica_frontend.api.response_docs import json_answer, refusals
from punica_frontend.generation.answers import json_of
from punica_frontend.tenancy.answers import GrantCard, GrantList, RevokedGrant
from punica_serve.registry.names import full_name
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
        """Lists grants with the tenant's name for each adapter."""
        admin_of(request)
        snapshot = registry.snapshot
        to_id = snapshot.tenant(tenant).tenant_id
        mine = (grant for grant in snapshot.grants() if grant.to_id == to_id)
        cards = [GrantCard.of(grant, snapshot.tenant_of(grant.tenant_id).name, tenant, snapshot) for grant in mine]
        return json_of(GrantList(cards))

    @router.put(
        _PATH,
        summary="Let a tenant use another's adapter",
        responses={200: json_answer(GrantCard, "It may use it."), **refusals(400, 404, 409, 422)},
    )
    async def grant(tenant: str, owner: str, name: str, request: Request) -> Response:
        """Grants the adapter's newest version, now and later.

        A granted adapter takes precedence over a shared one of the same name, and the tenant's own over both: `name`
        and `shadows` show the result.
        """
        granted = await registry.grant(owner, name, tenant, by=admin_of(request).name)
        return json_of(GrantCard.of(granted, owner, tenant, registry.snapshot))

    @router.delete(
        _PATH,
        summary="Take a grant back",
        responses={200: json_answer(RevokedGrant, "It may no longer use it."), **refusals(400, 422)},
    )
    async def revoke(tenant: str, owner: str, name: str, request: Request) -> Response:
        """Running requests finish; new ones no longer find the adapter."""
        await registry.revoke(owner, name, tenant, by=admin_of(request).name)
        return json_of(RevokedGrant(full_name(owner, name), tenant))

    return router
