"""JSON Schema documents, as routes serve them and as docs/ has them."""

import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter, Response

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_MEDIA_TYPE = "application/schema+json"
_ANSWER: dict[str, Any] = {"description": "The document.", "content": {_MEDIA_TYPE: {"schema": {"type": "object"}}}}


def add_schema_route(
    router: APIRouter, path: str, make: Callable[[], Mapping[str, Any]], *, summary: str, description: str
) -> None:
    """Adds a route for the document, which is made at its first request."""

    @cache
    def document() -> bytes:
        return msgspec.json.encode(make())

    @router.get(path, summary=summary, description=description, response_class=Response, responses={200: _ANSWER})
    async def schema() -> Response:
        return Response(document(), media_type=_MEDIA_TYPE)


def write_to_argument(schema: Mapping[str, Any]) -> None:
    """Writes the schema to the file named on the command line."""
    text = json.dumps(schema, indent=2, ensure_ascii=False)
    Path(sys.argv[1]).write_text(text + "\n", encoding="utf-8")
