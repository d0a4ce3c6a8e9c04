"""A model so small that nothing takes time, by its shape alone."""

from typing import Any

from punica_serve.base_model.model_config import ModelConfig


def tiny_config(**changes: Any) -> ModelConfig:
    """Two layers, grouped-query attention, all linear shapes different where they may be."""
    shape: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "rope_scaling": None,
        "rope_linear_factor": 1.0,
        "tie_word_embeddings": False,
        "name": "tiny",
    }
    return ModelConfig(**{**shape, **changes})
