"""Shapes of models, without weights: folders that hold a config.json and nothing else.

`shape:NAME` is such a folder in a config file. They serve `load_format: dummy`, simulated GPUs and benchmarks:
the paper's 7B, 13B and 70B (Llama 2), models that are commonly fine-tuned, and a small one for quick checks.
"""

from pathlib import Path

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import ConfigError

_FOLDER = Path(__file__).parent

SHAPE_NAMES = (
    *("llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3.1-8b", "llama-3.1-70b"),
    *("mistral-7b", "qwen-2.5-7b", "qwen-2.5-32b", "qwen-3-8b", "gemma-3-12b"),
    "1b",
)


def shape_folder(name: str) -> Path:
    """Raises ConfigError, with the names that there are, for an unknown one."""
    if name not in SHAPE_NAMES:
        raise ConfigError(f"model shape {name!r} is unknown; there are {', '.join(SHAPE_NAMES)}", param="model")
    return _FOLDER / name


def shape_of(name: str) -> ModelConfig:
    """Raises ConfigError, as ``shape_folder``."""
    return read_model_config(shape_folder(name))
