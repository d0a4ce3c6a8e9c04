import logging
from pathlib import Path

import pytest
import torch

from punica_serve.base_model.memory_budget import adapter_num_bytes
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import parse_config
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory import auto_sizes
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


def test_what_memory_limits_is_logged_with_the_adapters_that_have_room(
    tiny_model: ModelConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(model=Path("m"), max_batch_size=20, expected_lora_rank=64)
    adapter = adapter_num_bytes(tiny_model, 64, 4)
    monkeypatch.setattr(auto_sizes, "available_bytes", lambda: 14 * adapter + 1)
    monkeypatch.setattr(auto_sizes, "total_bytes", lambda _: 100 * adapter)
    monkeypatch.setattr(auto_sizes, "free_bytes", lambda _: 90 * adapter)
    with caplog.at_level(logging.INFO):
        assert host_bytes(config, tiny_model, torch.float32, CPU) == 7 * adapter
        assert lora_pages(config, tiny_model, torch.float32, torch.device("cuda")) == 160
        monkeypatch.setattr(auto_sizes, "free_bytes", lambda _: 60 * adapter)
        assert lora_pages(config, tiny_model, torch.float32, torch.device("cuda")) == 100
    assert caplog.messages == [
        "the host has room for 7 adapters of rank 64 at once; more are limited by its memory",
        "the GPU has room for 12 adapters of rank 64 at once; more are limited by its memory",
    ]
