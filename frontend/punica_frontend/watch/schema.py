"""The JSON Schema of WS /v1/cluster/watch's frames, derived from their types.

`python -m punica_frontend.watch.schema FILE` writes it.
"""

from typing import Any, get_args

from punica_frontend.api.response_docs import struct_schemas
from punica_frontend.api.schema_file import DIALECT, write_to_argument
from punica_frontend.watch.frames import WatchFrame
from punica_frontend.watch.view import CLUSTER_STRUCTS
from punica_serve.protocol import ClusterHistory, GpuHistory

_REF = "#/$defs/"


def watch_schema() -> dict[str, Any]:
    """Returns a schema of all frames."""
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
