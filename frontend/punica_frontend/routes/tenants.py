"""/v1/tenants: who there is, and what each may use. For administrators."""

from fastapi import APIRouter, Request, Response

from punica_frontend.answers import json_of
from punica_frontend.caller import admin_of
from punica_frontend.openapi_page import Responses, json_answer, refusals
from punica_frontend.tenancy.answers import DeletedTenant, TenantCard, TenantList
from punica_frontend.tenancy.schemas import TenantBody, TenantPatch
from punica_serve.protocol import TenantQuota
from punica_serve.registry.registry import Registry

_TENANT: Responses = {200: json_answer(TenantCard, "The tenant as it is now."), **refusals(400, 422)}


def tenants_router(registry: Registry) -> APIRouter:
    router = APIRouter(tags=["tenants"])

    @router.get("/v1/tenants", summary="List the tenants", responses={200: json_answer(TenantList, "All of them.")})
    async def list_tenants(request: Request) -> Response:
        """With what each may use."""
        admin_of(request)
        return json_of(TenantList([TenantCard.of(tenant) for tenant in registry.snapshot.tenants()]))

    @router.put("/v1/tenants/{tenant}", summary="Make a tenant, or set all that it may use", responses=_TENANT)
    async def put_tenant(tenant: str, body: TenantBody, request: Request) -> Response:
        """The body says all: what it does not name has no limit. It holds from the next request on."""
        admin = admin_of(request)
        made = await registry.put_tenant(
            tenant,
            TenantQuota(body.max_concurrent, body.requests_per_min, body.tokens_per_min),
            max_adapters=body.max_adapters,
            max_adapter_bytes=body.max_adapter_bytes,
            suspended=body.suspended,
            by=admin.name,
        )
        return json_of(TenantCard.of(made))

    @router.patch(
        "/v1/tenants/{tenant}", summary="Change some of what a tenant may use", responses=_TENANT | refusals(404)
    )
    async def patch_tenant(tenant: str, body: TenantPatch, request: Request) -> Response:
        """What the body does not name stays as it is. `{"suspended": true}` stops a tenant, and false lets it go on."""
        admin = admin_of(request)
        changed = await registry.patch_tenant(tenant, body.model_dump(exclude_unset=True), by=admin.name)
        return json_of(TenantCard.of(changed))

    @router.delete(
        "/v1/tenants/{tenant}",
        summary="Delete a tenant",
        responses={200: json_answer(DeletedTenant, "It is gone."), **refusals(404, 409)},
    )
    async def delete_tenant(tenant: str, request: Request) -> Response:
        """Its keys and grants end with it. One that has adapters stays until they are deleted."""
        await registry.delete_tenant(tenant, by=admin_of(request).name)
        return json_of(DeletedTenant(tenant))

    return router
