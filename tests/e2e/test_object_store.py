"""A cluster whose adapters are in an object store: runners keep them on their disk, and go on when the store hangs."""

import asyncio
import io
import os
import shutil
import signal
import time
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from s3_server import BUCKET, S3Server, serve_s3
from up_cluster import Start, UpCluster
from waits import DEADLINE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # its waits have deadlines of their own, and say more

FETCH_TIMEOUT_S = 2.0
#: Within it the last of those who wait must have had their first tries, and the store be back.
STORE_PATIENCE_S = 30.0
#: More than the batches of both GPUs hold.
NUM_WAITING = 80
ANSWERS = {"roman": "XLII", "hex": "2a", "binary": "101010"}


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with serve_s3() as server:
        yield server
        server.process.send_signal(signal.SIGCONT)


@pytest.fixture
def stored(run_demo: Start, s3: S3Server, tmp_path: Path) -> Iterator[UpCluster]:
    with run_demo(
        data_folder=str(tmp_path / "data"),
        store={"url": f"s3://{BUCKET}/store", "options": s3.options},
        runner={"fetch_timeout_s": FETCH_TIMEOUT_S},
        scheduler={"store_patience_s": STORE_PATIENCE_S},
    ) as cluster:
        yield cluster


async def register(http: httpx.AsyncClient, folder: Path, notation: str) -> str:
    """A demo adapter in other bytes, whose name is ``own-`` and the notation; its digest."""
    made = folder / notation
    shutil.copytree(Path(str(files("punica_serve.demo"))) / "adapters" / notation, made)
    config = made / "adapter_config.json"
    config.write_text(config.read_text() + "\n\n")  # nothing to JSON
    answer = await http.post("/v1/adapters", json={"name": f"own-{notation}", "uri": str(made)})
    assert answer.is_success, answer.text
    return str(answer.json()["digest"])


async def ask(http: httpx.AsyncClient, notation: str) -> httpx.Response:
    return await http.post("/v1/generate", json={"prompt": "42", "lora_id": f"own-{notation}"})


async def until_they_wait_aside(http: httpx.AsyncClient) -> None:
    """The working sets are empty, whatever the store does."""

    async def is_so() -> bool:
        cluster = (await http.get("/v1/cluster")).json()
        return cluster["queue_length"] == NUM_WAITING and not any(gpu["working_set"] for gpu in cluster["gpus"])

    await until(is_so, "all requests whose adapter the store does not give wait")


async def test_runners_keep_what_they_have_fetched_and_go_on_when_the_store_hangs(
    stored: UpCluster, s3: S3Server, tmp_path: Path
) -> None:
    cache = tmp_path / "data" / "cache"
    async with httpx.AsyncClient(base_url=stored.url, timeout=120.0, trust_env=False) as http:
        digests = {notation: await register(http, tmp_path, notation) for notation in ANSWERS}
        assert (await ask(http, "roman")).json()["text"] == ANSWERS["roman"]
        assert digests["roman"] in os.listdir(cache) and digests["hex"] not in os.listdir(cache)
        residency = (await http.get("/v1/adapters/own-roman")).json()["residency"]
        assert residency["gpus"] and residency["hosts"] and residency["disks"]

        s3.process.send_signal(signal.SIGSTOP)
        hanging = asyncio.create_task(ask(http, "hex"))
        while not hanging.done():
            assert (await ask(http, "roman")).json()["text"] == ANSWERS["roman"]
        refused = hanging.result()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable"), refused.text

        old = stored.processes("punica_runner.worker")
        for pid in old:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: stored.num_gpus() == 2 and not set(old) & set(stored.processes("punica_runner.worker")))
        again = await ask(http, "roman")
        assert again.status_code == 200 and again.json()["text"] == ANSWERS["roman"], "from the disk"

        waiting = [asyncio.create_task(ask(http, "binary")) for _ in range(NUM_WAITING)]
        await until_they_wait_aside(http)
        assert (await ask(http, "roman")).json()["text"] == ANSWERS["roman"]
        s3.process.send_signal(signal.SIGCONT)
        texts = [answer.json().get("text", answer.text) for answer in await asyncio.gather(*waiting)]
        assert texts == [ANSWERS["binary"]] * NUM_WAITING, "none was lost"
        for notation, text in ANSWERS.items():
            assert (await ask(http, notation)).json()["text"] == text
        assert set(digests.values()) <= set(os.listdir(cache))
        deleted = await http.delete("/v1/adapters/own-roman", params={"wait_s": 50})
        assert (deleted.status_code, deleted.json()["status"]) == (200, "deleted")
        assert digests["roman"] not in os.listdir(cache)
        objects = s3.filesystem().find(f"{BUCKET}/store")
        assert not [path for path in objects if digests["roman"] in path]
        assert [path for path in objects if digests["hex"] in path]


def zipped_roman() -> bytes:
    """The demo's adapter in other bytes, as one archive."""
    roman = Path(str(files("punica_serve.demo"))) / "adapters" / "roman"
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("own/adapter_config.json", (roman / "adapter_config.json").read_text() + "\n")
        archive.write(roman / "adapter_model.safetensors", "own/adapter_model.safetensors")
    return target.getvalue()


def test_an_upload_is_served_and_removed_and_a_dead_store_stops_only_registrations(
    stored: UpCluster, s3: S3Server, tmp_path: Path
) -> None:
    upload: Any = {"content": zipped_roman(), "headers": {"Content-Type": "application/zip"}}
    with httpx.Client(base_url=stored.url, timeout=60.0, trust_env=False) as http:
        assert http.post("/v1/adapters?name=own", **upload).status_code == 201
        assert len(s3.filesystem().find(BUCKET)) == 2
        answer = http.post("/v1/generate", json={"prompt": "42", "lora_id": "own"})
        assert answer.json()["text"] == "XLII", answer.text
        assert http.delete("/v1/adapters/own", params={"wait_s": 50}).status_code == 200
        assert not s3.filesystem().find(BUCKET)
        cache = tmp_path / "data" / "cache"
        assert sorted(os.listdir(cache)) == ["incoming", "packed"]
        deadline_s = time.monotonic() + DEADLINE_S
        while os.listdir(cache / "packed") != ["incoming"]:  # workers remove what they packed behind all else
            assert time.monotonic() < deadline_s, os.listdir(cache / "packed")
            time.sleep(0.1)

        s3.process.kill()
        s3.process.wait()
        refused = http.post("/v1/adapters?name=own", **upload)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable"), refused.text
        answer = http.post("/v1/generate", json={"prompt": "42", "lora_id": "roman"})
        assert answer.json()["text"] == "XLII", answer.text
