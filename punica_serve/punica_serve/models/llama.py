"""The Llama architecture over one mixed batch: rows of prefill chunks and decodes of many LoRA models together.

Dense projections and LoRA treat all rows as one batch; only attention tells requests apart. q, k, v and gate, up are
stacked, so a layer has four projections and four places for LoRA.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from punica_kernels.activation import silu_and_mul
from punica_kernels.norm import add_rms_norm, rms_norm
from punica_kernels.rotary import apply_rotary, rotary_tables
from punica_serve.model_config import ModelConfig
from punica_serve.models.llama_weights import LayerWeights, LlamaWeights
from punica_serve.models.rope import inverse_frequencies
from punica_serve.protocol import LoraGroup


class Attention(Protocol):
    """Attention over the KvCache, planned for the batch beforehand."""

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Appends k and v to the KvCache, then attends. q [rows, heads, head_dim] -> [rows, heads * head_dim]."""
        ...


class LoraBatch(Protocol):
    """The LoRA of the batch, planned beforehand."""

    def add(self, layer: int, group: LoraGroup, y: Tensor, x: Tensor) -> None:
        """y [rows, out] += the LoRA of each row applied to x [rows, in], in place."""
        ...


class Llama:
    """A Llama model on one device. ``forward`` then ``logits``; both keep no state."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights) -> None:
        self.config = config
        self._weights = weights
        frequencies = inverse_frequencies(config).to(weights.embedding.device)
        self._cos, self._sin = rotary_tables(frequencies, config.max_position_embeddings)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention, lora: LoraBatch) -> Tensor:
        """token_ids, positions: int64 [rows] -> the last hidden states, normed, [rows, hidden]."""
        config, weights = self.config, self._weights
        residual = embedding(token_ids, weights.embedding)
        hidden = torch.empty_like(residual)
        rms_norm(hidden, residual, weights.layers[0].input_norm, config.rms_norm_eps)
        for number, layer in enumerate(weights.layers):
            attended = self._attend(number, layer, hidden, positions, attention, lora)
            add_rms_norm(hidden, attended, residual, layer.post_attention_norm, config.rms_norm_eps)
            down = self._feed_forward(number, layer, hidden, lora)
            last = number + 1 == len(weights.layers)
            next_norm = weights.norm if last else weights.layers[number + 1].input_norm
            add_rms_norm(hidden, down, residual, next_norm, config.rms_norm_eps)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> float32 [rows, vocab]."""
        return linear(hidden, self._weights.lm_head).float()

    def _attend(
        self, number: int, layer: LayerWeights, x: Tensor, positions: Tensor, attention: Attention, lora: LoraBatch
    ) -> Tensor:
        config = self.config
        qkv = linear(x, layer.qkv)
        lora.add(number, "qkv", qkv, x)
        heads = qkv.view(x.shape[0], -1, config.head_dim)
        q, k, v = heads.split((config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads), 1)
        apply_rotary(q, k, positions, self._cos, self._sin)
        attended = attention.run(number, q, k, v)
        out = linear(attended, layer.o)
        lora.add(number, "o", out, attended)
        return out

    def _feed_forward(self, number: int, layer: LayerWeights, x: Tensor, lora: LoraBatch) -> Tensor:
        gate_up = linear(x, layer.gate_up)
        lora.add(number, "gate_up", gate_up, x)
        activated = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
        silu_and_mul(activated, gate_up)
        down = linear(activated, layer.down)
        lora.add(number, "down", down, activated)
        return down
