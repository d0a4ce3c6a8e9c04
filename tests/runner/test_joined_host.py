"""A host that joins a group; how it goes on once it has joined is in tests/e2e/test_group_hosts.py."""

import asyncio
import logging
from pathlib import Path

import pytest

from punica_runner import joined_host
from punica_serve.bench.free_ports import free_port
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.runner_section import RunnerConfig
from punica_serve.engine.ranks import group_listener
from punica_serve.engine.ranks.group_settings import Rendezvous
from punica_serve.engine.ranks.rank_ring import RankRing
from punica_serve.engine.ranks.remote_hosts import RemoteHosts
from punica_serve.errors import ConfigError
from waits import until


def _config(folder: Path, port: int) -> ClusterConfig:
    runner = RunnerConfig(hosts=2, rendezvous=f"127.0.0.1:{port}")
    return ClusterConfig(engine=EngineConfig(model=Path("none")), runner=runner, data_folder=folder)


async def test_a_number_that_no_host_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"`--host-index` is 2, but `runner\.hosts` is 2: hosts have the numbers 0 to 1"
    ):
        await joined_host.serve(_config(tmp_path, 1), "token", host=2)
    alone = ClusterConfig(engine=EngineConfig(model=Path("none")), data_folder=tmp_path)
    with pytest.raises(ConfigError, match="there is no group over several hosts"):
        await joined_host.serve(alone, "token", host=1)


async def test_it_dials_until_it_is_let_in_and_says_once_what_is_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First nobody is there, and then a leader whose config has other devices."""
    monkeypatch.setattr(joined_host, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(joined_host, "_HIGHEST_WAIT_S", 0.02)
    monkeypatch.setattr(group_listener, "_LOG_EVERY_S", 0.0)
    caplog.set_level(logging.WARNING)
    port = free_port()
    serving = asyncio.create_task(joined_host.serve(_config(tmp_path, port), "token", host=1))
    await until(lambda: "Connection refused; dialling again until it answers" in caplog.text)
    rendezvous, ring = Rendezvous("127.0.0.1", port, b"token"), RankRing(2)
    devices = ("cpu", "cpu", "1/cpu", "1/cpu")
    hosts = RemoteHosts(EngineConfig(model=Path("none")), devices, rendezvous, 10.0, ring, 1)
    try:
        refused = "refused a connection to the group from 127.0.0.1: host 1 has the devices cpu, host 0 cpu,cpu"
        await until(lambda: caplog.text.count(refused) > 2)
        assert caplog.text.count("refused this host: host 1 has the devices cpu, host 0 cpu,cpu") == 1
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        hosts.close()
        ring.close()
