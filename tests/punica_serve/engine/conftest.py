"""Engines over the tiny model."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.config import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import AdapterRef

MakeEngine = Callable[..., Engine]
MakeAdapter = Callable[..., AdapterRef]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Models this small lose more by waiting for a second thread than they gain."""
    torch.set_num_threads(1)


@pytest.fixture
def make_engine(tiny_llama: Path) -> Iterator[MakeEngine]:
    """Engines on the tiny model in float32; audited and closed at the end."""
    engines: list[Engine] = []

    def make(model: Path = tiny_llama, device: str = "cpu", **settings: Any) -> Engine:
        defaults = {"dtype": "float32", "page_size": 4, "num_kv_pages": 256, "num_lora_pages": 64}
        engines.append(Engine(EngineConfig(model=model, **{**defaults, **settings}), device))
        return engines[-1]

    yield make
    for engine in engines:
        engine.check_invariants()
        engine.close()


@pytest.fixture(scope="session")
def make_adapter(tiny_model: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> MakeAdapter:
    """Random adapters for the tiny model, strong enough to change what it says."""

    def make(rank: int = 8, seed: int = 0, **settings: Any) -> AdapterRef:
        folder = tmp_path_factory.mktemp("adapter")
        write_random_adapter(folder, tiny_model, rank=rank, seed=seed, **{"scale": 0.5, **settings})
        return read_adapter(folder, tiny_model).ref

    return make
