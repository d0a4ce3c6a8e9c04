"""A group over two hosts serves the demo as one device does, and gets over the death of each of its processes."""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
import yaml

from host_group import FOLLOWERS, LEADER, HostGroup, on_two_hosts
from process_tree import alive
from punica_serve import LLM, SamplingParams
from s3_server import BUCKET, serve_s3
from up_cluster import CONFIGS, Stream, wait_until
from waits import DEADLINE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]

_LORA_IDS = ("roman", "english", None, "hex", "french", "binary")
_NUM_TOKENS = 200
#: Room for some of the adapters at a time.
_ENGINE = {"num_lora_pages": 10, "num_kv_pages": 512}
_ANSWERS = {"roman": "XLII", "hex": "2a", "binary": "101010", "english": "forty-two", "french": "quarante-deux"}


def _of_one_device() -> list[list[int]]:
    adapters = yaml.safe_load((CONFIGS / "demo.yaml").read_text())["adapters"]
    params = [SamplingParams(max_tokens=_NUM_TOKENS, ignore_eos=True, temperature=1.0, seed=seed) for seed in range(6)]
    with LLM("demo:model", adapters, dtype="float32", num_kv_pages=512) as llm:
        answers = llm.generate([f"{40 + seed}" for seed in range(6)], list(_LORA_IDS), params, progress=False)
        return [answer.token_ids for answer in answers]


async def _serve_through(cluster: HostGroup, end: Callable[[], None], expected: list[list[int]]) -> None:
    """Ends something while all streams run; they come out whole."""
    shared = {"max_tokens": _NUM_TOKENS, "ignore_eos": True, "temperature": 1.0}
    streams = [Stream() for _ in expected]
    before = cluster.processes(LEADER) + cluster.processes(FOLLOWERS)
    async with asyncio.TaskGroup() as tasks:
        for seed, stream in enumerate(streams):
            request = {"prompt": f"{40 + seed}", "lora_id": _LORA_IDS[seed], "seed": seed, **shared}
            tasks.create_task(cluster.stream(request, stream))
        await until(lambda: any(stream.token_ids for stream in streams), describe=cluster.logs)
        await asyncio.to_thread(end)
    assert [stream.token_ids for stream in streams] == expected
    await until(lambda: not alive(before), describe=cluster.logs)
    await until(lambda: cluster.num_gpus() == 1, describe=cluster.logs)


def _own_bytes(folder: Path, name: str) -> Path:
    """A copy of a demo adapter with another digest than the config's."""
    made = folder / name
    shutil.copytree(Path(str(files("punica_serve.demo"))) / "adapters" / name, made)
    config = made / "adapter_config.json"
    config.write_text(config.read_text() + "\n\n")  # nothing to JSON
    return made


def _on_disk(folder: Path, host: int) -> set[str]:
    """Digests of the adapters on a host's disk."""
    return {path.name for path in (folder / f"host{host}/data/cache").iterdir()}


async def test_it_serves_what_one_device_does_whatever_ends(tmp_path: Path) -> None:
    expected = await asyncio.to_thread(_of_one_device)
    with on_two_hosts(tmp_path, engine=_ENGINE, runner={"silence_timeout_s": 6.0}) as cluster:
        (gpu,) = (each["gpu"] for each in cluster.snapshot()["gpus"])
        assert (gpu["device"], len(gpu["ranks"])) == ("cpu,1/cpu", 2)
        assert [len(cluster.processes_of(host, FOLLOWERS)) for host in (0, 1)] == [0, 1]

        def end_rank(number: int) -> None:
            os.kill(cluster.processes_of(1, FOLLOWERS)[0], number)

        def freeze_host() -> None:
            """Its rank lives, and gets nothing any more."""
            child = cluster.children["host1"]
            child.send_signal(signal.SIGSTOP)
            wait_until(lambda: not cluster.processes_of(1, FOLLOWERS), cluster.logs)
            child.send_signal(signal.SIGCONT)

        def end_host() -> None:
            cluster.children["host1"].kill()
            cluster.children["host1"].wait(DEADLINE_S)
            cluster.start_runner(1)

        for end in (
            lambda: end_rank(signal.SIGKILL),
            lambda: end_rank(signal.SIGSTOP),
            lambda: os.kill(cluster.processes_of(0, LEADER)[0], signal.SIGKILL),
            freeze_host,
            end_host,
        ):
            await _serve_through(cluster, end, expected)
    log = (tmp_path / "host1.log").read_text()
    assert "Traceback" not in log, "a rank whose leader has ended has not failed itself"


async def test_both_hosts_fetch_adapters_from_the_store(tmp_path: Path) -> None:
    """Each to its own disk, for two ranks; and what was deleted leaves both."""
    with serve_s3() as s3:
        store = {"url": f"s3://{BUCKET}/store", "options": s3.options}
        with on_two_hosts(tmp_path, engine=_ENGINE, store=store, runner={"devices": ["cpu,cpu"]}) as cluster:
            assert [len(cluster.processes_of(host, FOLLOWERS)) for host in (0, 1)] == [1, 2]
            async with httpx.AsyncClient(base_url=cluster.url, timeout=DEADLINE_S, trust_env=False) as http:
                digests = {}
                for name in _ANSWERS:
                    folder = _own_bytes(tmp_path, name)
                    answer = await http.post("/v1/adapters", json={"name": f"own-{name}", "uri": str(folder)})
                    assert answer.is_success, answer.text
                    digests[name] = answer.json()["digest"]
                for _ in range(2):  # the second time most have been evicted
                    for name, text in _ANSWERS.items():
                        body = {"model": f"own-{name}", "prompt": "42", "max_tokens": 20, "temperature": 0}
                        answer = await http.post("/v1/completions", json=body)
                        assert answer.is_success, answer.text + cluster.logs()
                        assert answer.json()["choices"][0]["text"].strip() == text
                assert all(set(digests.values()) <= _on_disk(tmp_path, host) for host in (0, 1))
                answer = await http.delete("/v1/adapters/own-hex")
                assert answer.is_success, answer.text
                await until(lambda: not any(digests["hex"] in _on_disk(tmp_path, host) for host in (0, 1)))
