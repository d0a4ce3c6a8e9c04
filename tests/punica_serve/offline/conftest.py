"""Adapters for the tiny model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.protocol import AdapterRef


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Models this small lose more by waiting for a second thread than they gain."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_adapter(tiny_model: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AdapterRef]:
    """Random adapters, strong enough to change the model's answers."""

    def make(**settings: Any) -> AdapterRef:
        folder = tmp_path_factory.mktemp("adapter")
        write_random_adapter(folder, tiny_model, scale=0.5, **settings)
        return read_adapter(folder, tiny_model)

    return make
