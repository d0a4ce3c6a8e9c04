"""/v1/login and /v1/logout: a browser's session, from an API key."""

import time

from fastapi import APIRouter, Request, Response

from punica_frontend.api.response_docs import json_answer, refusals
from punica_frontend.generation.answers import json_of
from punica_frontend.tenancy import sessions
from punica_frontend.tenancy.answers import LoggedOut, Session
from punica_frontend.tenancy.authenticator import Authenticator
from punica_frontend.tenancy.origin import check_origin
from punica_frontend.tenancy.schemas import LoginBody
from punica_frontend.tenancy.sessions import Sessions


def sessions_router(authenticator: Authenticator, cookies: Sessions) -> APIRouter:
    router = APIRouter(tags=["tenants"])

    @router.post(
        "/v1/login",
        summary="Begin a browser's session",
        responses={200: json_answer(Session, "The session; its cookie is set."), **refusals(401, 403, 422)},
    )
    async def login(body: LoginBody, request: Request) -> Response:
        """Sets a cookie with the key's rights, for twelve hours or until the key ends."""
        check_origin(request)
        key = await authenticator.key_of_secret(body.key)
        response = json_of(Session(key.tenant, key.role))
        response.set_cookie(
            sessions.NAME,
            cookies.cookie(key.key_id, time.time()),
            max_age=sessions.LIFETIME_S,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    @router.post(
        "/v1/logout",
        summary="End a browser's session",
        responses={200: json_answer(LoggedOut, "The cookie is deleted."), **refusals(403)},
    )
    async def logout(request: Request) -> Response:
        """Deletes the cookie."""
        check_origin(request)
        response = json_of(LoggedOut())
        response.delete_cookie(sessions.NAME, httponly=True, samesite="strict")
        return response

    return router
