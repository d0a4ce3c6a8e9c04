"""transformers' reading of a config.json: the oracle of its meaning."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


class RefusedByTransformers(Exception):
    """Transformers can't make a model of the file."""


def rotary_embedding(config_file: Path) -> tuple[Tensor, float]:
    """Inverse frequencies and the factor of cosines and sines. Raises RefusedByTransformers."""
    try:
        embedding = LlamaRotaryEmbedding(LlamaConfig.from_dict(json.loads(config_file.read_bytes())))
    except Exception as error:  # each version refuses in its own ways
        raise RefusedByTransformers from error
    frequencies = embedding.inv_freq
    assert isinstance(frequencies, Tensor)
    return frequencies, embedding.attention_scaling


def load_llama(folder: Path) -> Any:
    """The model in a folder, in float32. Raises RefusedByTransformers."""
    import torch

    try:
        return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    except Exception as error:
        raise RefusedByTransformers from error
