"""/v1/tenants: tenants, their limits and promises. For administrators."""

from fastapi import APIRouter, Request, Response

from punica_frontend.api.caller import admin_of
from punica_frontend.api.response_docs import Responses, json_answer, refusals
from punica_frontend.generation.answers import json_of
from punica_frontend.routes.known_query import KNOWN_QUERY
from punica_frontend.tenancy.answers import DeletedTenant, TenantCard, TenantList
from punica_frontend.tenancy.schemas import Force, TenantBody, TenantPatch
from punica_serve.protocol import NO_SLO, TenantQuota
from punica_serve.registry.registry import Registry

_TENANT: Responses = {200: json_answer(TenantCard, "The tenant as it is now."), **refusals(400, 422)}


def tenants_router(registry: Registry) -> APIRouter:
    router = APIRouter(tags=["tenants"])

    @router.get(
        "/v1/tenants",
        summary="List the tenants",
        dependencies=[KNOWN_QUERY],
        responses={200: json_answer(TenantList, "All of them."), **refusals(400)},
    )
    async def list_tenants(request: Request) -> Response:
        """Lists tenants with their limits."""
        admin_of(request)
        return json_of(TenantList([TenantCard.of(tenant) for tenant in registry.snapshot.tenants()]))

    @router.put("/v1/tenants/{tenant}", summary="Create a tenant, or set all its limits", responses=_TENANT)
    async def put_tenant(tenant: str, body: TenantBody, request: Request) -> Response:
        """Limits and promises that the body does not name are removed. Takes effect with the next request."""
        admin = admin_of(request)
        made = await registry.put_tenant(
            tenant,
            TenantQuota(body.max_concurrent, body.requests_per_min, body.tokens_per_min),
            max_adapters=body.max_adapters,
            max_adapter_bytes=body.max_adapter_bytes,
            suspended=body.suspended,
            slo=body.slo.slo if body.slo else NO_SLO,
            by=admin.name,
        )
        return json_of(TenantCard.of(made))

    @router.patch("/v1/tenants/{tenant}", summary="Change some of a tenant's limits", responses=_TENANT | refusals(404))
    async def patch_tenant(tenant: str, body: TenantPatch, request: Request) -> Response:
        """Fields that the body does not name stay. `{"suspended": true}` suspends a tenant, and false resumes it."""
        admin = admin_of(request)
        changed = await registry.patch_tenant(tenant, body.terms(), by=admin.name)
        return json_of(TenantCard.of(changed))

    @router.delete(
        "/v1/tenants/{tenant}",
        summary="Delete a tenant",
        responses={200: json_answer(DeletedTenant, "It is gone."), **refusals(404, 409)},
    )
    async def delete_tenant(tenant: str, request: Request, force: Force = False) -> Response:
        """Deletes the tenant with its keys and grants.

        A tenant with adapters can't be deleted before them, nor one with the last admin key unless `force` is true.
        Usage and audit log are kept under its `tenant_id`.
        """
        gone = await registry.delete_tenant(tenant, force=force, by=admin_of(request).name)
        return json_of(DeletedTenant(gone.name, gone.tenant_id))

    return router
