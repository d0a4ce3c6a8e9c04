"""What a group's config means before any of its ranks starts."""

from pathlib import Path

import pytest
import torch

from punica_serve.config.engine_section import ColdStart, EngineConfig
from punica_serve.engine.group_start import with_cold_start


@pytest.mark.parametrize(
    ("cold_start", "num_devices", "device", "mode"),
    [
        (None, 1, "cpu", "layerwise"),
        (None, 1, "cuda", "layerwise"),
        (None, 2, "cpu", "layerwise"),
        (None, 2, "cuda", "wait"),
        ("layerwise", 2, "cuda", "layerwise"),
        ("auto", 1, "cuda", "auto"),
    ],
)
def test_groups_of_gpus_wait_for_adapters_unless_told_otherwise(
    tiny_llama: Path, cold_start: ColdStart | None, num_devices: int, device: str, mode: ColdStart
) -> None:
    config = with_cold_start(EngineConfig(model=tiny_llama, cold_start=cold_start), num_devices, torch.device(device))
    assert config.cold_start == mode
