"""The schema that is served is the one in docs/, and real frames fit it."""

import asyncio
import json
import runpy
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from websockets.asyncio.client import connect

from echo_cluster import EchoCluster
from punica_frontend.watch import schema
from punica_serve.protocol import Mark
from waits import DEADLINE_S

DOCUMENTED = Path(__file__).parents[3] / "docs" / "cluster-watch.schema.json"


async def test_the_page_in_docs_and_the_route_are_up_to_date(
    client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["schema", str(tmp_path / "written.json")])
    runpy.run_path(schema.__file__, run_name="__main__")
    assert DOCUMENTED.read_text() == (tmp_path / "written.json").read_text(), "run `make docs`"
    response = await client.get("/v1/cluster/watch/schema")
    assert response.headers["content-type"] == "application/schema+json"
    assert response.json() == json.loads(DOCUMENTED.read_text())


@pytest.fixture
async def frames(address: str, cluster: EchoCluster) -> AsyncIterator[dict[str, Any]]:
    """One of each type, by type, as a watcher is sent them."""
    cluster.marks = [Mark(1, 5, "migrated", (), 2)]
    seen: dict[str, Any] = {}
    async with asyncio.timeout(DEADLINE_S), connect(f"ws://{address}/v1/cluster/watch?per_s=5", proxy=None) as socket:
        while seen.keys() != {"history", "cluster", "unavailable"}:
            frame = json.loads(await socket.recv())
            seen.setdefault(frame["type"], frame)
            cluster.connected = "cluster" not in seen
        yield seen


async def test_frames_as_they_are_sent_fit(frames: dict[str, Any]) -> None:
    validator = jsonschema_rs.Draft202012Validator(schema.watch_schema())
    for frame in frames.values():
        validator.validate(frame)


async def test_missing_fields_and_other_types_do_not_fit(frames: dict[str, Any]) -> None:
    validator = jsonschema_rs.Draft202012Validator(schema.watch_schema())
    for name, frame in frames.items():
        (part,) = frame.keys() - {"type"}
        for wrong in (
            {**frame, "type": "explosion"},
            {"type": name},
            {**frame, part: 7},
            {**frame, part: dict(list(frame[part].items())[1:])},
        ):
            assert not validator.is_valid(wrong), wrong
