"""/v1/usage: what tenants used. /v1/audit: who changed what."""

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from punica_frontend.answers import json_of
from punica_frontend.caller import admin_of, caller_of
from punica_frontend.openapi_page import json_answer, refusals
from punica_frontend.tenancy.answers import AuditCard, AuditList, UsageList, UsageRow
from punica_serve.errors import Forbidden
from punica_serve.registry.registry import Registry

_DAY_S = 24 * 3600
_MAX_S = 2**53

Moment = Annotated[float | None, Query(ge=0, le=_MAX_S, description="Seconds since 1970.")]


def usage_router(registry: Registry) -> APIRouter:
    router = APIRouter(tags=["tenants"])

    @router.get(
        "/v1/usage",
        summary="What tenants used",
        responses={200: json_answer(UsageList, "By hour, tenant, adapter and version."), **refusals(403)},
    )
    async def usage(
        request: Request,
        tenant: Annotated[str | None, Query(description="Default: the caller's own; an admin's: all.")] = None,
        since: Moment = None,
        until: Moment = None,
    ) -> Response:
        """Requests, tokens in and out, and GPU time, by hour, tenant and version of an adapter (null: the base model).

        The hours that begin from `since` on (default: a day ago) and before `until` (default: now). Other tenants'
        usage is for administrators.
        """
        caller = caller_of(request)
        if not caller.is_admin and tenant not in (None, caller.tenant):
            raise Forbidden("the usage of other tenants is for administrators", param="tenant")
        whose = tenant if caller.is_admin else caller.tenant
        now_s = time.time()
        rows = await registry.usage(
            whose, now_s - _DAY_S if since is None else since, now_s if until is None else until
        )
        return json_of(UsageList([UsageRow.of(row) for row in rows]))

    @router.get("/v1/audit", summary="Who changed what", responses={200: json_answer(AuditList, "The newest first.")})
    async def audit(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
        before: Annotated[int | None, Query(ge=0, le=_MAX_S, description="Entries older than this one's id.")] = None,
    ) -> Response:
        """Changes of adapters, grants, keys and tenants, the newest first. For administrators."""
        admin_of(request)
        entries = await registry.audit_log(limit, before)
        return json_of(AuditList([AuditCard.of(entry) for entry in entries]))

    return router
