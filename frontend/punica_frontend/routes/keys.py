"""/v1/keys: API keys. For administrators."""

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from punica_frontend.api.caller import admin_of
from punica_frontend.api.response_docs import json_answer, refusals
from punica_frontend.generation.answers import json_of
from punica_frontend.routes.known_query import KNOWN_QUERY
from punica_frontend.tenancy.answers import KeyCard, KeyList, MadeKey, RevokedKey
from punica_frontend.tenancy.schemas import Force, KeyBody
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
        """The answer is the only time that the key is shown; the registry stores its hash."""
        admin = admin_of(request)
        expires_s = None if body.expires_in_s is None else time.time() + body.expires_in_s
        key, secret = await registry.make_key(body.tenant, body.role, body.name, expires_s, by=admin.name)
        return json_of(MadeKey.of(key, key=secret), 201)

    @router.get(
        "/v1/keys",
        summary="List the API keys",
        dependencies=[KNOWN_QUERY],
        responses={200: json_answer(KeyList, "All of them."), **refusals(400, 422)},
    )
    async def list_keys(request: Request, tenant: Annotated[str | None, Query()] = None) -> Response:
        """Lists keys without their secrets."""
        admin_of(request)
        return json_of(KeyList([KeyCard.of(key) for key in registry.snapshot.keys(tenant)]))

    @router.delete(
        "/v1/keys/{key_id}",
        summary="Revoke an API key",
        responses={200: json_answer(RevokedKey, "The key is revoked."), **refusals(404, 409, 422)},
    )
    async def revoke_key(key_id: str, request: Request, force: Force = False) -> Response:
        """The key and its sessions are refused from now on, at other frontends within a second.

        An administrator's last key is revoked only with `force`, since the API then has none.
        """
        await registry.revoke_key(key_id, force=force, by=admin_of(request).name)
        return json_of(RevokedKey(key_id))

    return router
