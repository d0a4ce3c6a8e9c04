from pathlib import Path

import torch

from punica_serve.base_model.memory_budget import adapter_num_bytes
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import parse_config
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory.auto_sizes import host_bytes, lora_pages

CPU = torch.device("cpu")


def test_numbers_are_taken_as_they_are(tiny_model: ModelConfig) -> None:
    config = EngineConfig(model=Path("m"), num_lora_pages=7, host_cache_bytes=0)
    assert lora_pages(config, tiny_model, torch.float32, CPU) == config.lora_pages == 7
    assert host_bytes(config, tiny_model, torch.float32, CPU) == 0


def test_auto_follows_the_batch_and_the_rank(tiny_model: ModelConfig) -> None:
    document = {"engine": {"model": "m", "num_lora_pages": "auto", "host_cache_bytes": "auto", "max_batch_size": 20}}
    config = parse_config(document, source="test", folder=Path()).engine.model_copy(update={"expected_lora_rank": 64})
    assert lora_pages(config, tiny_model, torch.float32, CPU) == config.lora_pages == 160
    assert host_bytes(config, tiny_model, torch.float32, CPU) == 80 * adapter_num_bytes(tiny_model, 64, 4)
    assert EngineConfig.model_validate_json(config.model_dump_json()) == config, "as workers get it"
