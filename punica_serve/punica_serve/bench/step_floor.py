"""The least time of a decode step: the bytes that it must read, over the rate at which the device copies."""

import statistics
from dataclasses import dataclass

import torch

from punica_serve.bench.driver import StepTime
from punica_serve.model_config import ModelConfig

#: Larger than any cache by far, and yet a small part of any GPU's memory.
_COPIED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What a decode step reads."""

    #: All linear modules and the output layer, once. Embeddings are gathered: a row for each token.
    weights: int
    #: A and B of one adapter, at its true rank.
    adapter: int
    #: Keys and values of one token, all layers.
    context_token: int

    @classmethod
    def of(cls, model: ModelConfig, dtype: torch.dtype, rank: int) -> "StepBytes":
        shapes = list(model.linear_shapes.values())
        linear = model.num_hidden_layers * sum(out * into for out, into in shapes)
        lora = model.num_hidden_layers * rank * sum(out + into for out, into in shapes)
        kv = model.num_hidden_layers * 2 * model.num_key_value_heads * model.head_dim
        output_layer = model.vocab_size * model.hidden_size
        return cls((linear + output_layer) * dtype.itemsize, lora * dtype.itemsize, kv * dtype.itemsize)

    def floor_s(self, step: StepTime, copy_bytes_per_s: float) -> float:
        """The least time of this step."""
        kv = step.num_context_tokens * self.context_token
        return (self.weights + step.num_adapters * self.adapter + kv) / copy_bytes_per_s


def measure_copy_rate(device: torch.device) -> float | None:
    """Bytes read and written per second by copies on a GPU; None elsewhere, where caches decide."""
    if device.type != "cuda":
        return None
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    milliseconds: list[float] = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        milliseconds.append(start.elapsed_time(end))
    del source, target
    torch.cuda.empty_cache()
    return 2 * _COPIED_BYTES / (statistics.median(milliseconds) / 1e3)
