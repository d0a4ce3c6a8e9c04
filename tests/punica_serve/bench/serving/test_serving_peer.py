import shlex
from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.bench.serving.serving_peer import vllm_script, write_peer_files
from punica_serve.config.engine_section import EngineConfig


def test_the_command_names_the_model_and_the_adapters_that_were_written(
    tmp_path: Path, demo_engine: EngineConfig
) -> None:
    model = read_model_config(demo_engine.model)
    with Progress() as progress:
        script = write_peer_files(tmp_path / "peer", demo_engine, model, num_adapters=2, rank=8, progress=progress)
    (command,) = script.read_text().splitlines()[1:]
    arguments = shlex.split(command)
    assert arguments[:2] == ["exec", "vllm"] and arguments[-1] == "$@"
    for number in range(2):
        folder = tmp_path / "peer" / "adapters" / str(number)
        assert f"dummy-{number}={folder}" in arguments
        assert read_adapter(folder, model).num_bytes > 0
    assert read_model_config(tmp_path / "peer" / "model").vocab_size == model.vocab_size
    assert "lora" not in (tmp_path / "peer" / "vllm-base.sh").read_text()


def test_many_adapters_share_a_few_folders(demo_engine: EngineConfig) -> None:
    script = vllm_script(Path("/peer"), demo_engine, num_adapters=40, rank=8)
    assert "dummy-39=/peer/adapters/7" in script and "--max-cpu-loras 40" in script and "--max-loras 32" in script


def test_without_adapters_vllm_runs_without_lora(demo_engine: EngineConfig) -> None:
    script = vllm_script(Path("/peer"), demo_engine, num_adapters=0, rank=8)
    assert "lora" not in script and "--max-num-seqs 32" in script


@pytest.fixture
def demo_engine() -> EngineConfig:
    return EngineConfig.model_validate({"model": "demo:model"})
