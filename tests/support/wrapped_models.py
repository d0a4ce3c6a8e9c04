"""Small random models that also see images, by their `model_type`."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PreTrainedModel,
)

WRAPPERS = ("gemma3", "mistral3")

_TEXT: dict[str, Any] = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 16},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 7, "initializer_range": 0.3},
    **{"max_position_embeddings": 256, "eos_token_id": 0},
}
_VISION = {
    **{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"image_size": 28, "patch_size": 14},
}


def save_wrapped_model(folder: Path, model_type: str) -> PreTrainedModel:
    """Writes the model's folder, without a tokenizer."""
    torch.manual_seed(4)
    model = (_gemma3 if model_type == "gemma3" else _mistral3)().eval()
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    return model


def _gemma3() -> PreTrainedModel:
    config = Gemma3Config(text_config=_TEXT, vision_config=_VISION, eos_token_id=0)
    return Gemma3ForConditionalGeneration(config)


def _mistral3() -> PreTrainedModel:
    text = {**_TEXT, "model_type": "mistral"}
    vision = {**_VISION, "model_type": "pixtral", "head_dim": 8}
    config = Mistral3Config(text_config=text, vision_config=vision, eos_token_id=0, tie_word_embeddings=False)
    return Mistral3ForConditionalGeneration(config)
