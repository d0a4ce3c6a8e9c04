"""The lower bound of a decode step's time, operator by operator.

It is the larger of the bytes over the device's copy rate and the arithmetic over the device's product rate.
"""

from dataclasses import dataclass

import torch

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.model_spec import page_elements
from punica_serve.bench.driver import StepTime


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """The highest rates of a device, by measurement."""

    #: Bytes read and written by copies.
    copy_bytes_per_s: float
    #: Floating-point operations of large products in the model's data type.
    product_flop_per_s: float

    def seconds(self, num_bytes: float, num_flop: float) -> float:
        """Seconds of operators that move ``num_bytes`` and compute ``num_flop``, all in one proportion."""
        return max(num_bytes / self.copy_bytes_per_s, num_flop / self.product_flop_per_s)


@dataclass(frozen=True, slots=True)
class StepBytes:
    """The bytes that a decode step reads."""

    #: All linear modules and the output layer, once. Embeddings are gathered, one row per token.
    weights: int
    #: A and B of one adapter, at its true rank.
    adapter: int
    #: Keys and values of one token, all layers.
    context_token: int
    #: Bytes of a value.
    itemsize: int
    #: Query heads that read each key and value.
    queries_per_kv: int

    @classmethod
    def of(cls, model: ModelConfig, dtype: torch.dtype, rank: int) -> "StepBytes":
        """Returns the bytes of a model, or of one rank of a group, with adapters of LoRA rank ``rank``."""
        shapes = list(model.linear_shapes.values())
        linear = model.num_hidden_layers * sum(out * into for out, into in shapes)
        lora = rank * sum(page_elements(model.spec, group) for group in model.spec.groups) // LORA_PAGE_RANKS
        kv = model.num_hidden_layers * 2 * model.num_key_value_heads * model.head_dim
        output_layer = len(model.vocabulary) * model.hidden_size
        size = dtype.itemsize
        queries_per_kv = model.num_attention_heads // model.num_key_value_heads
        return cls((linear + output_layer) * size, lora * size, kv * size, size, queries_per_kv)

    def floor_s(self, step: StepTime, rates: DeviceRates) -> float:
        """The lower bound for this step. All its rows have an adapter if one has."""
        flop_per_byte = 2 / self.itemsize  # a product and a sum for each value and row
        kv = step.num_context_tokens * self.context_token
        lora_flop = step.batch_size * self.adapter * flop_per_byte if step.num_adapters else 0.0
        return (
            rates.seconds(self.weights, step.batch_size * self.weights * flop_per_byte)
            + rates.seconds(step.num_adapters * self.adapter, lora_flop)
            + rates.seconds(kv, self.queries_per_kv * kv * flop_per_byte)
        )
