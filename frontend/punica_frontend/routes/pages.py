"""Browser pages, their files, and the redirect from / to the dashboard."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from punica_frontend.dashboard.assets import Asset
from punica_frontend.dashboard.pages import Page
from punica_serve.errors import NotFound


def page_router(page: Page) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get(page.path)
    async def index(request: Request) -> Response:
        return _answer(request, page.index, page.policy)

    @router.get(f"{page.path}/{{name}}")
    async def file(name: str, request: Request) -> Response:
        asset = page.files.get(name)
        if asset is None:
            raise NotFound(f"{page.path} has no file {name[:64]!r}; open {page.path} itself")
        return _answer(request, asset, page.policy)

    return router


def start_router(page: Page) -> APIRouter:
    """Redirects the root path to this page."""
    router = APIRouter(tags=["cluster"])

    @router.get(
        "/",
        summary="To the dashboard",
        status_code=307,
        response_class=Response,
        responses={307: {"description": f"To `{page.path}`, where a browser logs in if necessary."}},
    )
    async def start() -> Response:
        """Redirects browsers to the dashboard."""
        return RedirectResponse(page.path)

    return router


def _answer(request: Request, asset: Asset, policy: str) -> Response:
    """Browsers revalidate each time and mostly get 304."""
    headers = {
        "etag": asset.etag,
        "cache-control": "no-cache",
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
