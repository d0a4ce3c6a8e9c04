"""/v1/usage: tenants' usage. /v1/audit: changes and who made them."""

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from punica_frontend.api.caller import Caller, admin_of, caller_of
from punica_frontend.api.response_docs import json_answer, refusals
from punica_frontend.generation.answers import json_of
from punica_frontend.routes.known_query import KNOWN_QUERY
from punica_frontend.tenancy.answers import AuditCard, AuditList, UsageList, UsageRow
from punica_serve.errors import Forbidden, InvalidRequest, NotFound
from punica_serve.registry.registry import Registry

_DAY_S = 24 * 3600
_MAX_S = 2**53

TenantId = Annotated[str | None, Query(description="Instead of `tenant`; the only way to name a deleted tenant.")]
Moment = Annotated[float | None, Query(ge=0, le=_MAX_S, description="Seconds since 1970.")]


def usage_router(registry: Registry) -> APIRouter:
    router = APIRouter(tags=["tenants"])

    @router.get(
        "/v1/usage",
        summary="What tenants used",
        dependencies=[KNOWN_QUERY],
        responses={
            200: json_answer(UsageList, "By hour, tenant, adapter and version."),
            **refusals(400, 403, 404, 422),
        },
    )
    async def usage(
        request: Request,
        tenant: Annotated[str | None, Query(description="Default: the caller's own; for admins: all.")] = None,
        tenant_id: TenantId = None,
        since: Moment = None,
        until: Moment = None,
    ) -> Response:
        """Requests, tokens in and out, and GPU time, by hour, tenant and version of an adapter (null: the base model).

        Covers the hours that begin at or after `since` (default: a day ago) and before `until` (default: now). Only
        administrators may see other tenants' usage: all of it, including deleted tenants', or one tenant's.
        """
        caller = caller_of(request)
        if not caller.is_admin:
            _check_own(caller, tenant, tenant_id)
        whose = await _tenant_id(registry, tenant, tenant_id) if caller.is_admin else caller.tenant_id
        now_s = time.time()
        rows = await registry.usage(
            whose, now_s - _DAY_S if since is None else since, now_s if until is None else until
        )
        return json_of(UsageList([UsageRow.of(row) for row in rows]))

    @router.get(
        "/v1/audit",
        summary="Who changed what",
        dependencies=[KNOWN_QUERY],
        responses={200: json_answer(AuditList, "The newest first."), **refusals(400, 404, 422)},
    )
    async def audit(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
        before: Annotated[int | None, Query(ge=0, le=_MAX_S, description="Entries older than this one's id.")] = None,
        tenant: Annotated[str | None, Query(description="Default: all, including deleted ones.")] = None,
        tenant_id: TenantId = None,
    ) -> Response:
        """Changes of adapters, grants, keys and tenants, newest first. For administrators."""
        admin_of(request)
        whose = await _tenant_id(registry, tenant, tenant_id)
        entries = await registry.audit_log(limit, before, tenant_id=whose)
        return json_of(AuditList([AuditCard.of(entry) for entry in entries]))

    return router


def _check_own(caller: Caller, tenant: str | None, tenant_id: str | None) -> None:
    """Raises Forbidden for another tenant."""
    for param, asked, own in (("tenant", tenant, caller.tenant), ("tenant_id", tenant_id, caller.tenant_id)):
        if asked not in (None, own):
            raise Forbidden("only administrators may see the usage of other tenants", param=param)


async def _tenant_id(registry: Registry, tenant: str | None, tenant_id: str | None) -> str | None:
    """Returns the id of the tenant that an administrator asks for; None means all tenants.

    A name means its current tenant. Raises NotFound if there is none, and InvalidRequest for both parameters.
    """
    if tenant is None:
        return tenant_id
    if tenant_id is not None:
        raise InvalidRequest("give `tenant` or `tenant_id`, not both", param="tenant_id")
    try:
        return (await registry.tenant(tenant)).tenant_id
    except NotFound as error:
        raise NotFound(f"{error.message}; name a deleted tenant by `tenant_id`", param="tenant") from None
