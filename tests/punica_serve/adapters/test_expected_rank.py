from pathlib import Path
from typing import Any

from punica_serve.adapters.expected_rank import engine_of
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig, parse_config


def _config(folder: Path, engine: dict[str, Any], **sections: Any) -> ClusterConfig:
    return parse_config({"engine": {"model": "m", **engine}, **sections}, source="test", folder=folder)


def test_auto_knows_the_highest_rank_of_the_files_adapters(tmp_path: Path, model: ModelConfig) -> None:
    for rank in (24, 40):
        write_random_adapter(tmp_path / f"{rank}", model, rank=rank, seed=0)
    adapters = {"a": "24", "b": "40", "gone": "nowhere"}
    auto = {"num_lora_pages": "auto"}
    assert engine_of(_config(tmp_path, auto, adapters=adapters)).expected_lora_rank == 40
    assert engine_of(_config(tmp_path, auto, dummy_adapters={"count": 2, "rank": [8, 96]})).expected_lora_rank == 96
    assert engine_of(_config(tmp_path, auto)).expected_lora_rank == 16
    given = {"num_lora_pages": 64, "host_cache_bytes": 0}
    assert engine_of(_config(tmp_path, given, adapters=adapters)).expected_lora_rank == 16, "nobody asks"
