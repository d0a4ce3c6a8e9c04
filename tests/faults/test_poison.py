"""A request that kills every worker that runs it."""

import asyncio
import json

import pytest
from websockets.asyncio.client import connect

from punica_faults.cluster import FRONTENDS, Cluster
from punica_faults.load import Load
from punica_faults.poison import POISON_SEED
from punica_faults.references import Reference
from waits import DEADLINE_S

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]  # its waits end before, and say more


async def last_frame(url: str) -> dict[str, object]:
    """The only one, as a poison's request never gets a token."""
    async with connect(url, proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        body = {"prompt": "42", "lora_id": "roman", "seed": POISON_SEED, "temperature": 0.5}
        await socket.send(json.dumps({"op": "generate", "request_id": "poison", **body}))
        frame: dict[str, object] = json.loads(await socket.recv())
        return frame


async def test_a_poison_request_fails_alone_and_names_its_adapter(
    cluster: Cluster, references: list[Reference]
) -> None:
    load = Load(cluster.stream_urls, references, seed=0)
    async with load.running():
        await load.until_in_flight()
        in_flight = load.in_flight()
        frame = await last_frame(cluster.stream_urls[FRONTENDS[0]])
        await load.until_past(in_flight)
        await cluster.until_whole()
        await load.stop(in_flight)
    load.check()
    assert (frame["finish_reason"], frame["index"]) == ("error", 0)
    error = frame["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["param"]) == ("request_failed", "lora_id")
    assert "'roman'" in error["message"]
