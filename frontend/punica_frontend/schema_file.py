"""Documents of JSON Schema, as routes serve them and as docs/ has them."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_TYPE = "application/schema+json"

#: How the OpenAPI page tells of a route that serves such a document.
SCHEMA_ANSWER: dict[str, Any] = {
    "description": "The document.",
    "content": {SCHEMA_TYPE: {"schema": {"type": "object"}}},
}


def write_to_argument(schema: Mapping[str, Any]) -> None:
    """For a module that is run with a file's name."""
    text = json.dumps(schema, indent=2, ensure_ascii=False)
    Path(sys.argv[1]).write_text(text + "\n", encoding="utf-8")
