"""A tiny base model, and adapter folders for it that tests may break."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from tiny_config import tiny_config


@pytest.fixture(scope="session")
def model() -> ModelConfig:
    return tiny_config()


@pytest.fixture
def folder(tmp_path: Path, model: ModelConfig) -> Path:
    """A good adapter of rank 4 on q_proj and up_proj."""
    return write_random_adapter(tmp_path / "good", model, rank=4, seed=0, target_modules=("q_proj", "up_proj"))


@pytest.fixture
def set_config(folder: Path) -> Callable[..., None]:
    """Sets fields of the folder's adapter_config.json."""

    def set_fields(**fields: Any) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return set_fields


Tensors = dict[str, np.ndarray]


@pytest.fixture
def edit_tensors(folder: Path) -> Callable[[Callable[[Tensors], object]], None]:
    """Changes the tensors of the folder's adapter_model.safetensors in place."""

    def edit(change: Callable[[Tensors], object]) -> None:
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return edit
