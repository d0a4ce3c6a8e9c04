"""The models that benchmarks are run at: shapes alone, for dummy weights (`load_format: dummy`)."""

import json
from pathlib import Path

from punica_serve.errors import ConfigError
from punica_serve.model_config import ModelConfig


def _llama(name: str, *, hidden: int, intermediate: int, layers: int, heads: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=128,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        rope_linear_factor=1.0,
        tie_word_embeddings=False,
        name=name,
        dtype="bfloat16",
    )


#: The paper's 7B and 13B (Llama 2), and a small model for checks that must be quick.
SHAPES: dict[str, ModelConfig] = {
    "llama-2-7b": _llama("llama-2-7b", hidden=4096, intermediate=11008, layers=32, heads=32),
    "llama-2-13b": _llama("llama-2-13b", hidden=5120, intermediate=13824, layers=40, heads=40),
    "1b": _llama("1b", hidden=2048, intermediate=5632, layers=22, heads=16),
}


def shape_of(name: str) -> ModelConfig:
    """Raises ConfigError, with the names that there are, for an unknown one."""
    if name not in SHAPES:
        raise ConfigError(f"model shape {name!r} is unknown; there are {', '.join(SHAPES)}", param="model")
    return SHAPES[name]


def write_shape(model: ModelConfig, folder: Path) -> Path:
    """Writes a model folder that holds a config.json and nothing else, for dummy weights; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_position_embeddings,
        "rms_norm_eps": model.rms_norm_eps,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tie_word_embeddings,
        "dtype": model.dtype,
        "_name_or_path": model.name,
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    return folder
