"""The Llama architecture over one mixed batch: rows of prefill chunks and decodes of many LoRA models together.

Dense projections and LoRA treat all rows as one batch; only attention tells requests apart. q, k, v and gate, up are
stacked, so a layer has four projections and four places for LoRA.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding

from punica_kernels.activation import silu_and_mul
from punica_kernels.linear import linear
from punica_kernels.norm import add_rms_norm, rms_norm
from punica_kernels.rotary import rotary_append, rotary_tables
from punica_serve.model_config import ModelConfig
from punica_serve.models.llama_weights import LayerWeights, LlamaWeights
from punica_serve.models.rope import inverse_frequencies
from punica_serve.protocol import LoraGroup


class Attention(Protocol):
    """Attention over the KvCache, planned for the batch beforehand."""

    #: Integers [rows]: page * page_size + offset where each row's key and value go; -1 keeps them out.
    slots: Tensor

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        ...

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Attends to what is in the cache: q [rows, heads, head_dim] -> [rows, heads * head_dim]."""
        ...


class LoraBatch(Protocol):
    """The LoRA of the batch, planned beforehand."""

    def project(self, layer: int, group: LoraGroup, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [rows, in] -> (y, delta), each [rows, out], whose sum is x @ weight.T with the LoRA of each row.

        Where it pays, base and LoRA run beside each other, and whoever reads y adds delta; None is no delta. Of o and
        down, which a norm reads next, y may be parts to be added too, [parts, rows, out].
        """
        ...


class Llama:
    """A Llama model on one device. ``forward`` then ``logits``; both keep no state."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights) -> None:
        self.config = config
        self._weights = weights
        frequencies = inverse_frequencies(config).to(weights.embedding.device)
        self._cos, self._sin = rotary_tables(frequencies, config.max_position_embeddings)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention, lora: LoraBatch) -> Tensor:
        """token_ids, positions: integers [rows] -> the last hidden states, normed, [rows, hidden]."""
        config, weights = self.config, self._weights
        residual = embedding(token_ids, weights.embedding)
        hidden = torch.empty_like(residual)
        rms_norm(hidden, residual, weights.layers[0].input_norm, config.rms_norm_eps)
        for number, layer in enumerate(weights.layers):
            attended, delta = self._attend(number, layer, hidden, positions, attention, lora)
            add_rms_norm(
                hidden, attended, residual, layer.post_attention_norm, config.rms_norm_eps, delta, chained=delta is None
            )
            down, delta = self._feed_forward(number, layer, hidden, lora)
            last = number + 1 == len(weights.layers)
            next_norm = weights.norm if last else weights.layers[number + 1].input_norm
            add_rms_norm(hidden, down, residual, next_norm, config.rms_norm_eps, delta, chained=delta is None)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab], in the model's dtype."""
        return linear(hidden, self._weights.lm_head, chained=True)

    def _attend(
        self, number: int, layer: LayerWeights, x: Tensor, positions: Tensor, attention: Attention, lora: LoraBatch
    ) -> tuple[Tensor, Tensor | None]:
        config = self.config
        qkv, delta = lora.project(number, "qkv", x, layer.qkv)
        q = qkv.new_empty(x.shape[0], config.num_attention_heads, config.head_dim)
        keys, values = attention.cache(number)
        # Beside a delta the stream has waited for another one: a kernel can't start before it any more.
        chained = delta is None
        where = (positions, self._cos, self._sin, keys, values, attention.slots)
        rotary_append(q, qkv, *where, delta, chained=chained)
        return lora.project(number, "o", attention.run(number, q), layer.o)

    def _feed_forward(
        self, number: int, layer: LayerWeights, x: Tensor, lora: LoraBatch
    ) -> tuple[Tensor, Tensor | None]:
        gate_up, delta = lora.project(number, "gate_up", x, layer.gate_up)
        activated = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
        silu_and_mul(activated, gate_up, delta, chained=delta is None)
        return lora.project(number, "down", activated, layer.down)
