from pathlib import Path
from typing import Any

import numpy as np
import pytest

from punica_serve.adapters.adapter import Adapter
from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig


def _written(folder: Path, model: ModelConfig, **options: Any) -> Adapter:
    return load_adapter(read_adapter(write_random_adapter(folder, model, **options), model), model)


def test_all_seven_modules_by_default(tmp_path: Path, model: ModelConfig) -> None:
    adapter = _written(tmp_path / "new" / "folder", model, rank=5, seed=0)
    assert set(adapter.pairs) == {(layer, module) for layer in range(2) for module in model.linear_shapes}
    assert adapter.ref.ranks == dict.fromkeys(model.linear_shapes, 5)
    assert {pair.scaling for pair in adapter.pairs.values()} == {1.0}


def test_the_seed_decides_the_bytes(tmp_path: Path, model: ModelConfig) -> None:
    digests = [
        read_adapter(write_random_adapter(tmp_path / str(i), model, rank=2, seed=seed), model).digest
        for i, seed in enumerate([7, 7, 8])
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_options_are_kept(tmp_path: Path, model: ModelConfig, dtype: str) -> None:
    options: dict[str, Any] = {"target_modules": ("k_proj",), "lora_alpha": 6.0, "dtype": dtype}
    adapter = _written(tmp_path, model, rank=3, seed=0, **options)
    assert set(adapter.pairs) == {(0, "k_proj"), (1, "k_proj")}
    assert {(pair.a.dtype, pair.b.dtype, pair.scaling) for pair in adapter.pairs.values()} == {(dtype, dtype, 2.0)}


def test_updates_have_the_scale_asked_for(tmp_path: Path, model: ModelConfig) -> None:
    pair = _written(tmp_path, model, rank=64, seed=0, scale=0.1).pairs[0, "down_proj"]
    inputs = np.random.default_rng(0).normal(size=(500, 40))
    assert np.std(inputs @ pair.a.array.T @ pair.b.array.T) == pytest.approx(0.1, rel=0.25)
