"""The JSON Schema of the frames of WS /v1/cluster/watch, made from the types that they are written from.

`python -m punica_frontend.watch.schema FILE` writes it.
"""

from typing import Any, get_args

from punica_frontend.openapi_page import struct_schemas
from punica_frontend.schema_file import DIALECT, write_to_argument
from punica_frontend.watch.frames import WatchFrame
from punica_frontend.watch.view import CLUSTER_STRUCTS
from punica_serve.protocol import ClusterHistory, GpuHistory

_REF = "#/$defs/"


def watch_schema() -> dict[str, Any]:
    """A document that holds for any frame."""
    frames = get_args(WatchFrame)
    definitions = struct_schemas((*frames, *CLUSTER_STRUCTS, ClusterHistory, GpuHistory), _REF)
    return {
        "$schema": DIALECT,
        "title": "Frames of WS /v1/cluster/watch",
        "description": "Each frame is one websocket message of text; all come from the server.",
        "anyOf": [{"$ref": f"{_REF}{frame.__name__}"} for frame in frames],
        "$defs": dict(sorted(definitions.items())),
    }


if __name__ == "__main__":
    write_to_argument(watch_schema())
