"""The OpenAPI page: whatever FastAPI can't derive from our routes, stated once for all of them.

Routes describe their own answers with ``api.response_docs``. This module adds what applies before any route runs: API
keys, body limits and connection limits.
"""

import copy
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from punica_frontend.adapters.cards import (
    AdapterCard,
    AdapterDetail,
    AdapterList,
    Deletion,
    PlacedAdapter,
    Prefetch,
    RegisteredAdapter,
)
from punica_frontend.adapters.vllm_answers import VllmErrorBody
from punica_frontend.api.response_docs import REF, refusals, struct_schemas
from punica_frontend.api.schemas import ErrorBody
from punica_frontend.generation.answers import DrainAnswer, Frame, GenerateAnswer, Health, Ready, VersionAnswer
from punica_frontend.generation.request_ids import RequestIds
from punica_frontend.http.cors import Cors
from punica_frontend.http.status_counts import RouteTemplates, StatusCounts
from punica_frontend.metrics.metrics import AnswerKind
from punica_frontend.openai.chat_answers import ChatChunk, ChatCompletion
from punica_frontend.openai.completion_answers import Completion
from punica_frontend.openai.model_cards import ModelCard, ModelList
from punica_frontend.openai.token_answers import Detokenized, Tokens
from punica_frontend.tenancy import answers as tenancy
from punica_frontend.tenancy.auth_middleware import PUBLIC_GETS
from punica_frontend.tgi.answers import Generated, StreamEvent
from punica_frontend.tgi.errors import TgiErrorBody
from punica_frontend.tgi.info import Info
from punica_frontend.watch.view import CLUSTER_STRUCTS, GPU_STRUCTS

#: Structs in answers. FastAPI finds pydantic models itself. All are JSON objects on the page, even those that travel as
#: arrays between processes.
STRUCTS = (
    ErrorBody,
    GenerateAnswer,
    Frame,
    Health,
    Ready,
    VersionAnswer,
    DrainAnswer,
    Completion,
    ChatCompletion,
    ChatChunk,
    ModelCard,
    ModelList,
    Tokens,
    Detokenized,
    TgiErrorBody,
    Generated,
    StreamEvent,
    Info,
    AdapterCard,
    RegisteredAdapter,
    PlacedAdapter,
    AdapterDetail,
    AdapterList,
    Deletion,
    Prefetch,
    VllmErrorBody,
    *tenancy.STRUCTS,
    *CLUSTER_STRUCTS,
    *GPU_STRUCTS,
)

_LIMITS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
MAX_UINT64 = (1 << 64) - 1

_SECURITY_SCHEMES = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key."},
    "session": {"type": "apiKey", "in": "cookie", "name": "punica_session", "description": "From /v1/login."},
}


class Api(FastAPI):
    """A FastAPI application with a complete OpenAPI page."""

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
        )
        self._needs_key = needs_key
        self._public_paths = public_paths
        self._cors_origins = cors_origins
        self._num_answers = num_answers
        #: FastAPI keeps those of routers to itself.
        self._routes_of_routers: list[BaseRoute] = []
        self._pages: dict[bool, dict[str, Any]] = {}

    def include(self, router: APIRouter) -> None:
        """Includes a router, and counts answers by its routes."""
        self.include_router(router)
        self._routes_of_routers += router.routes

    def build_middleware_stack(self) -> ASGIApp:
        """Wraps Starlette's error handler too, so that even a 500 has a request id."""
        stack = super().build_middleware_stack()
        stack = RequestIds(Cors(stack, self._cors_origins) if self._cors_origins else stack)
        return StatusCounts(stack, RouteTemplates([*self.routes, *self._routes_of_routers]), self._num_answers)

    def openapi(self) -> dict[str, Any]:
        needs_key = self._needs_key()
        if needs_key not in self._pages:
            public_paths = self._public_paths if needs_key else None
            self._pages[needs_key] = _completed(copy.deepcopy(super().openapi()), public_paths)
        return self._pages[needs_key]


def _completed(page: dict[str, Any], public_paths: Collection[str] | None) -> dict[str, Any]:
    """Adds structs, security and common errors to a page. ``public_paths`` is None if no path needs a key."""
    components = page.setdefault("components", {})
    schemas = struct_schemas(STRUCTS) | components.get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own shapes; our errors have another
        schemas.pop(name, None)
    components["schemas"] = _with_whole_limits(dict(sorted(schemas.items())))
    components["securitySchemes"] = _SECURITY_SCHEMES
    for path, operations in page["paths"].items():
        for method, operation in operations.items():
            is_open = public_paths is None or path in public_paths or (method == "get" and path in PUBLIC_GETS)
            _complete(operation, needs_key=not is_open)
    return page


def _complete(operation: dict[str, Any], *, needs_key: bool) -> None:
    """Adds the errors that can occur before the route's handler runs."""
    statuses = {500, 503}
    responses = operation["responses"]
    if f"{REF}HTTPValidationError" in str(responses.get("422")):  # FastAPI adds it wherever a field can be wrong
        del responses["422"]
        # Routes that declare 400 use it in place of 422 too.
        statuses |= set() if "400" in responses else {422}
    if "requestBody" in operation:
        statuses |= {400, 408, 413, 415}
    if needs_key:
        statuses |= {401, 403}
        operation["security"] = [{name: []} for name in _SECURITY_SCHEMES]
    everywhere = {str(status): response for status, response in refusals(*statuses).items()}
    operation["responses"] = dict(sorted({**everywhere, **responses}.items()))


def _with_whole_limits(schema: Any) -> Any:
    """Restores integer limits, which FastAPI turns into floats; 2^64 - 1 is not exact as a float."""
    if isinstance(schema, list):
        return [_with_whole_limits(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: _with_whole_limits(item) for key, item in schema.items()}
    if schema.get("type") == "integer":
        for key in _LIMITS & schema.keys():
            schema[key] = min(int(schema[key]), MAX_UINT64)
    return schema
