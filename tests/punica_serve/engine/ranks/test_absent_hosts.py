"""Groups whose other hosts are not there."""

from pathlib import Path

import pytest

from punica_serve.bench.free_ports import free_port
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.engine.ranks.group_settings import GroupSettings, Rendezvous
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.errors import ConfigError


def test_a_host_that_does_not_come_is_named_with_what_to_do(tiny_llama: Path) -> None:
    port = free_port()
    for _ in range(2):  # the address is free again afterwards
        settings = GroupSettings(ready_timeout_s=0.3, rendezvous=Rendezvous("127.0.0.1", port, b"token"))
        late = rf"host 1 did not come to 127\.0\.0\.1:{port}; run `punica-serve runner --host-index 1` there$"
        with pytest.raises(RankLost, match=rf"^rank 1 \(1/cpu\) did not start within 0\.3 s: {late}"):
            Engine(EngineConfig(model=tiny_llama), "cpu,1/cpu", others=settings)


def test_only_a_runner_has_a_group_over_several_hosts(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="a group over several hosts is a runner's"):
        Engine(EngineConfig(model=tiny_llama), "cpu,1/cpu")
