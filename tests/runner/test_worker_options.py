"""A worker reads from its command line what its supervisor has written there."""

from pathlib import Path

import pytest

from punica_runner.supervisor import engine_worker_command
from punica_runner.worker_options import WorkerOptions
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.runner_section import RunnerConfig
from punica_serve.config.simulation_section import SimulationConfig
from punica_serve.config.store_section import StoreConfig
from punica_serve.process.module_command import module_command
from punica_serve.shapes import shape_folder
from punica_serve.store.packed_folder import PackedCache


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    return ClusterConfig(
        engine=EngineConfig(model=shape_folder("llama-2-7b"), max_batch_size=7),
        runner=RunnerConfig(devices=("simulated", "simulated")),
        simulation=SimulationConfig(speed=50.0),
        store=StoreConfig(cache_bytes=10**9),
        data_folder=tmp_path,
    )


def test_the_sections_of_the_config_come_through(config: ClusterConfig) -> None:
    command = engine_worker_command(config, "host 0", 1)
    options = WorkerOptions.parse([*command[len(module_command("")) :], "--read-fd", "3", "--write-fd", "4"])
    assert (options.engine.max_batch_size, options.batch_limit) == (7, "max_batch_size")
    assert (options.runner, options.simulation) == (config.runner, config.simulation)
    assert (options.device, options.runner_id, options.index) == ("simulated", "host 0", 1)
    assert options.cache == PackedCache(config.data_folder / "cache", 10**9)
    assert (options.read_fd, options.write_fd, options.otlp_endpoint) == (3, 4, None)


def test_a_command_line_of_nobody_ends_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        WorkerOptions.parse(["--index", "one"])
    assert "punica_runner.worker: error:" in capsys.readouterr().err
