"""Writes PEFT folders of random weights, for tests and benchmarks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors.numpy import save_file

from punica_serve.adapters.adapter import STORAGE_DTYPES
from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.adapters.layout import weight_name
from punica_serve.adapters.targets import updatable_modules
from punica_serve.base_model.model_config import ModelConfig


def write_random_adapter(
    folder: Path,
    model: ModelConfig,
    *,
    rank: int,
    seed: int,
    target_modules: Sequence[str] | None = None,
    lora_alpha: float | None = None,
    dtype: Literal["F32", "F16"] = "F32",
    scale: float = 1.0,
) -> Path:
    """Writes a valid PEFT folder of normally distributed weights, for all linear modules by default, and returns it.

    At the default alpha, which equals the rank, an input of unit variance gives an update of standard deviation
    ``scale``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target_modules = tuple(model.linear_shapes) if target_modules is None else target_modules
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "r": rank,
        "lora_alpha": rank if lora_alpha is None else lora_alpha,
        "target_modules": list(target_modules),
    }
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2), encoding="utf-8")
    generator = np.random.default_rng(seed)
    tensors = {}
    for _, module, path in updatable_modules(model):
        if module in target_modules:
            num_out, num_in = model.spec.lora_shapes[module]
            fan_in = 1 if module == "embed_tokens" else num_in  # one row is read
            a = generator.normal(scale=fan_in**-0.5, size=(rank, num_in))
            b = generator.normal(scale=scale * rank**-0.5, size=(num_out, rank))
            tensors[weight_name(path, "A")] = a.astype(STORAGE_DTYPES[dtype])
            tensors[weight_name(path, "B")] = b.astype(STORAGE_DTYPES[dtype])
    save_file(tensors, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    return folder
