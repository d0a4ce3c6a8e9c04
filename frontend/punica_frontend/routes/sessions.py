"""/v1/login and /v1/logout: a browser's session, from an API key."""

import time

from fastapi import APIRouter, Request, Response

from punica_frontend.answers import json_of
from punica_frontend.openapi_page import json_answer, refusals
from punica_frontend.tenancy import sessions
from punica_frontend.tenancy.answers import LoggedOut, Session
from punica_frontend.tenancy.door import Door
from punica_frontend.tenancy.origin import check_origin
from punica_frontend.tenancy.schemas import LoginBody
from punica_frontend.tenancy.sessions import Sessions


def sessions_router(door: Door, cookies: Sessions) -> APIRouter:
    router = APIRouter(tags=["tenants"])

    @router.post(
        "/v1/login",
        summary="Begin a browser's session",
        responses={200: json_answer(Session, "With a cookie."), **refusals(401, 403, 422)},
    )
    async def login(body: LoginBody, request: Request) -> Response:
        """Sets a cookie that lets a browser in as the key does, for twelve hours or until the key ends."""
        check_origin(request)
        key = await door.key_of_secret(body.key)
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
        responses={200: json_answer(LoggedOut, "The cookie is taken back."), **refusals(403)},
    )
    async def logout(request: Request) -> Response:
        """Takes the cookie back."""
        check_origin(request)
        response = json_of(LoggedOut())
        response.delete_cookie(sessions.NAME, httponly=True, samesite="strict")
        return response

    return router
