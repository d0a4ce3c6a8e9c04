"""The schema that is served is the one in docs/, and says of frames what the checks of frames say."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest
from msgspec import UNSET

from punica_frontend.api.errors import error_object
from punica_frontend.generation.answers import Frame, Logprob, TopLogprob, usage
from punica_frontend.openai.chat_answers import ChatChunk, ChunkChoice, Delta
from punica_frontend.openai.completion_answers import CompletionChoice, completion
from punica_frontend.openai.head import Head
from punica_frontend.websocket import stream_schema
from punica_frontend.websocket.frame_types import FRAME, ChunkFrame, PongFrame, ServerFrame
from punica_serve.errors import InvalidRequest

HEAD = Head("cmpl-1", 1, "numbers")
DOCUMENTED = Path(__file__).parents[3] / "docs" / "generate-stream.schema.json"


def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    """For frames of one direction."""
    return jsonschema_rs.Draft202012Validator({**stream_schema.stream_schema(), "anyOf": [{"$ref": f"#/$defs/{name}"}]})


async def test_the_page_in_docs_and_the_route_are_up_to_date(
    client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["stream_schema", str(tmp_path / "written.json")])
    runpy.run_path(stream_schema.__file__, run_name="__main__")
    assert DOCUMENTED.read_text() == (tmp_path / "written.json").read_text(), "run `make docs`"
    response = await client.get("/v1/generate/stream/schema")
    assert response.headers["content-type"] == "application/schema+json"
    assert response.json() == json.loads(DOCUMENTED.read_text())


@pytest.mark.parametrize(
    "frame",
    [
        {"op": "generate", "request_id": "a", "prompt": "4", "stop": "x", "seed": 7, "logprobs": 2, "top_p": None},
        {"op": "generate", "request_id": "a", "format": "openai", "model": "roman", "prompt": ["4"], "n": 2},
        {"op": "generate", "request_id": "a", "format": "openai", "messages": [{"role": "user", "content": "4"}]},
        {"op": "cancel", "request_id": "a"},
        {"op": "ping"},
        {"op": "ping", "nonce": "n"},
    ],
)
def test_frames_that_a_client_may_send(frame: dict[str, Any]) -> None:
    FRAME.validate_python(frame)
    validator("ClientFrame").validate(frame)
    assert not validator("ServerFrame").is_valid(frame)


@pytest.mark.parametrize(
    "frame",
    [
        {"op": "generate", "prompt": "4"},
        {"op": "generate", "request_id": "", "prompt": "4"},
        {"op": "generate", "request_id": "a", "prompt": "4", "max_tokens": 0},
        {"op": "generate", "request_id": "a", "prompt": "4", "top": 1},
        {"op": "generate", "request_id": "a", "prompt": "4", "format": "tgi"},
        {"op": "generate", "request_id": "a", "format": "openai"},
        {"op": "generate", "format": "openai", "prompt": "4"},
        {"op": "cancel"},
        {"op": "ping", "nonce": 7},
        {"op": "explode", "request_id": "a"},
        [],
    ],
)
def test_frames_that_a_client_may_not_send(frame: Any) -> None:
    with pytest.raises(ValueError):
        FRAME.validate_json(json.dumps(frame))
    assert not validator("ClientFrame").is_valid(frame)


@pytest.mark.parametrize(
    "frame",
    [
        Frame("a", 3, (5,), "x", logprobs=(Logprob(5, -0.5, (TopLogprob(5, -0.5),)),)),
        Frame("a", 4, finish_reason="stop", usage=usage(3, 4)),
        Frame(None, 0, finish_reason="error", error=error_object(InvalidRequest("wrong"))),
        ChunkFrame("a", completion(HEAD, [CompletionChoice(0, "x")], UNSET), None, done=False),
        ChunkFrame("a", ChatChunk("chatcmpl-1", 1, "numbers", [ChunkChoice(0, Delta("x"))]), None, done=True),
        ChunkFrame(None, None, error_object(InvalidRequest("wrong")), done=True),
        PongFrame("n"),
        PongFrame(None),
    ],
)
def test_frames_that_the_server_sends(frame: ServerFrame) -> None:
    sent = json.loads(msgspec.json.encode(frame))
    validator("ServerFrame").validate(sent)
    assert not validator("ClientFrame").is_valid(sent)
