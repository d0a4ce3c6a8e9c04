"""The lower bound of a decode step's time: the bytes that it must read, over the device's copy rate."""

from dataclasses import dataclass

import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.driver import StepTime


@dataclass(frozen=True, slots=True)
class StepBytes:
    """The bytes that a decode step reads."""

    #: All linear modules and the output layer, once. Embeddings are gathered, one row per token.
    weights: int
    #: A and B of one adapter, at its true rank.
    adapter: int
    #: Keys and values of one token, all layers.
    context_token: int

    @classmethod
    def of(cls, model: ModelConfig, dtype: torch.dtype, rank: int) -> "StepBytes":
        """Those of a model, or of one rank of a group, with adapters of LoRA rank ``rank``."""
        shapes = list(model.linear_shapes.values())
        linear = model.num_hidden_layers * sum(out * into for out, into in shapes)
        lora = model.num_hidden_layers * rank * sum(out + into for out, into in shapes)
        kv = model.num_hidden_layers * 2 * model.num_key_value_heads * model.head_dim
        output_layer = len(model.vocabulary) * model.hidden_size
        return cls((linear + output_layer) * dtype.itemsize, lora * dtype.itemsize, kv * dtype.itemsize)

    def floor_s(self, step: StepTime, copy_bytes_per_s: float) -> float:
        """The lower bound for this step."""
        kv = step.num_context_tokens * self.context_token
        return (self.weights + step.num_adapters * self.adapter + kv) / copy_bytes_per_s
