"""The JSON Schema of WS /v1/generate/stream's frames, derived from the types that check and write them.

`python -m punica_frontend.websocket.stream_schema FILE` writes it.
"""

import inspect
from typing import Any

import msgspec

from punica_frontend.api.schema_file import DIALECT, write_to_argument
from punica_frontend.websocket.frame_types import FRAME, SERVER_FRAMES


def stream_schema() -> dict[str, Any]:
    """Returns a schema of all frames; its definitions ClientFrame and ServerFrame cover one direction each."""
    client = FRAME.json_schema(ref_template="#/$defs/{model}")
    definitions = client.pop("$defs")
    references, of_server = msgspec.json.schema_components(SERVER_FRAMES, ref_template="#/$defs/{name}")
    definitions |= of_server
    definitions["ClientFrame"] = {"description": "Frames that a client sends.", **client}
    definitions["ServerFrame"] = {"description": "Frames that the server sends.", "anyOf": list(references)}
    return {
        "$schema": DIALECT,
        "title": "Frames of WS /v1/generate/stream",
        "description": "Each frame is one websocket message of text.",
        "anyOf": [{"$ref": "#/$defs/ClientFrame"}, {"$ref": "#/$defs/ServerFrame"}],
        "$defs": {name: _with_clean_text(definitions[name]) for name in sorted(definitions)},
    }


def _with_clean_text(schema: dict[str, Any]) -> dict[str, Any]:
    """Removes a docstring's indentation from the description."""
    if "description" in schema:
        schema = {**schema, "description": inspect.cleandoc(schema["description"])}
    return schema


if __name__ == "__main__":
    write_to_argument(stream_schema())
