"""The application class: FastAPI with our OpenAPI page and our outermost middleware."""

import copy
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from punica_frontend.generation.request_ids import RequestIds
from punica_frontend.http.cors import Cors
from punica_frontend.http.status_counts import RouteTemplates, StatusCounts
from punica_frontend.metrics.metrics import AnswerKind
from punica_frontend.openapi_page import completed_page


class Api(FastAPI):
    """A FastAPI application with a complete OpenAPI page, whose every answer has a request id."""

    def __init__(
        self,
        *,
        title: str,
        version: str,
        description: str,
        needs_key: Callable[[], bool],
        public_paths: Collection[str],
        cors_origins: Collection[str],
        num_answers: Counter[AnswerKind],
    ) -> None:
        """``needs_key`` says whether callers need an API key now, except on ``public_paths``.

        Pages of ``cors_origins`` may read answers. ``num_answers`` counts all answers.
        """
        # FastAPI's own pages load scripts from other hosts, so we serve /docs ourselves. Its slash redirects trust the
        # Host header and lose bodies, so ``WithoutTrailingSlash`` handles such paths.
        super().__init__(
            title=title,
            version=version,
            description=description,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            # We trace requests ourselves, and FastAPI would look for OpenTelemetry's providers in each.
            telemetry={"tracing": False, "metrics": False, "logs": False},
        )
        self._needs_key = needs_key
        self._public_paths = public_paths
        self._cors_origins = cors_origins
        self._num_answers = num_answers
        self._pages: dict[bool, dict[str, Any]] = {}

    def include(self, router: APIRouter) -> None:
        """Adds a router's routes to our own: FastAPI would look for a request's route in each router, twice."""
        self.router.routes += router.routes

    def build_middleware_stack(self) -> ASGIApp:
        """Wraps Starlette's error handler too, so that even a 500 has a request id."""
        stack = super().build_middleware_stack()
        stack = RequestIds(Cors(stack, self._cors_origins) if self._cors_origins else stack)
        return StatusCounts(stack, RouteTemplates(self.routes), self._num_answers)

    def openapi(self) -> dict[str, Any]:
        needs_key = self._needs_key()
        if needs_key not in self._pages:
            public_paths = self._public_paths if needs_key else None
            self._pages[needs_key] = completed_page(copy.deepcopy(super().openapi()), public_paths)
        return self._pages[needs_key]
