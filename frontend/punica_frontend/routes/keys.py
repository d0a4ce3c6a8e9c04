"""/v1/keys: who may come in. For administrators."""

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from punica_frontend.answers import json_of
from punica_frontend.caller import admin_of
from punica_frontend.openapi_page import json_answer, refusals
from punica_frontend.tenancy.answers import KeyCard, KeyList, MadeKey, RevokedKey
from punica_frontend.tenancy.schemas import KeyBody
from punica_serve.registry.registry import Registry


def keys_router(registry: Registry) -> APIRouter:
    router = APIRouter(tags=["tenants"])

    @router.post(
        "/v1/keys",
        status_code=201,
        summary="Make an API key",
        responses={201: json_answer(MadeKey, "The key."), **refusals(400, 404, 422)},
    )
    async def make_key(body: KeyBody, request: Request) -> Response:
        """The answer is the only time that the key itself is told; what is kept of it is a hash."""
        admin = admin_of(request)
        expires_s = None if body.expires_in_s is None else time.time() + body.expires_in_s
        key, secret = await registry.make_key(body.tenant, body.role, body.name, expires_s, by=admin.name)
        return json_of(MadeKey.of(key, key=secret), 201)

    @router.get("/v1/keys", summary="List the API keys", responses={200: json_answer(KeyList, "All of them.")})
    async def list_keys(request: Request, tenant: Annotated[str | None, Query()] = None) -> Response:
        """Without the keys themselves."""
        admin_of(request)
        return json_of(KeyList([KeyCard.of(key) for key in registry.snapshot.keys(tenant)]))

    @router.delete(
        "/v1/keys/{key_id}",
        summary="Revoke an API key",
        responses={200: json_answer(RevokedKey, "It is of no use any more."), **refusals(404)},
    )
    async def revoke_key(key_id: str, request: Request) -> Response:
        """It lets nobody in from now on; at other frontends, within a second. Sessions from it end too."""
        await registry.revoke_key(key_id, by=admin_of(request).name)
        return json_of(RevokedKey(key_id))

    return router
