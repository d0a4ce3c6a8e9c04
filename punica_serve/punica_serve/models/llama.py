"""The decoder of Llama, and of the models that differ from it in values: Mistral, Qwen 2, 2.5 and 3.

All rows of a batch go through the dense projections and LoRA together; only attention tells requests apart.
"""

from torch import Tensor
from torch.nn.functional import embedding

from punica_kernels.head_norms import HeadNorms
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.models.activation import ACTIVATIONS
from punica_serve.models.linear import Linear, OutputHead, Projected
from punica_serve.models.model import ForwardBatch
from punica_serve.models.model_weights import LayerWeights, ModelWeights
from punica_serve.models.norm import Residual, RmsNorm
from punica_serve.models.rotary import Rotary


class Llama:
    """A decoder on one device: ``forward``, then ``logits``."""

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config = config
        self._embedding = weights.embedding
        rotary = Rotary(config.spec.rotary, config.num_attention_heads, weights.embedding.device)
        self._layers = [_Layer(config, number, layer, rotary) for number, layer in enumerate(weights.layers)]
        self._norm = RmsNorm(weights.norm, config.spec.norm_eps)
        self._head = OutputHead(weights.lm_head)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """The last hidden states, normed: [rows, hidden]."""
        residual, added = Residual(embedding(batch.token_ids, self._embedding)), None
        for layer in self._layers:
            added = layer(residual, added, batch)
        return self._norm(residual, added)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab], in the model's dtype."""
        return self._head(hidden)


class _Layer:
    """Attention and MLP. Each one's output is added to the residual by the norm that follows it."""

    def __init__(self, config: ModelConfig, number: int, weights: LayerWeights, rotary: Rotary) -> None:
        spec = config.spec
        self._input_norm = RmsNorm(weights.norms["input_layernorm"], spec.norm_eps)
        self._post_attention_norm = RmsNorm(weights.norms["post_attention_layernorm"], spec.norm_eps)
        self._qkv, self._o, self._gate_up, self._down = (
            Linear(number, spec.group(name), weights.linears[name]) for name in ("qkv", "o", "gate_up", "down")
        )
        self._number = number
        self._rotary = rotary
        self._qkv_bias = weights.biases.get("qkv")
        self._head_norms = _head_norms(weights, spec.norm_eps)
        self._activation = ACTIVATIONS[spec.activation]

    def __call__(self, residual: Residual, added: Projected | None, batch: ForwardBatch) -> Projected:
        """``added``: the output of the layer before; None in the first one."""
        attended = self._attend(self._input_norm(residual, added), batch)
        return self._feed_forward(self._post_attention_norm(residual, attended), batch)

    def _attend(self, x: Tensor, batch: ForwardBatch) -> Projected:
        q = self._rotary(self._number, self._qkv(x, batch.lora), batch, self._qkv_bias, self._head_norms)
        return self._o(batch.attention.run(self._number, q), batch.lora)

    def _feed_forward(self, x: Tensor, batch: ForwardBatch) -> Projected:
        return self._down(self._activation(self._gate_up(x, batch.lora)), batch.lora)


def _head_norms(weights: LayerWeights, eps: float) -> HeadNorms | None:
    q, k = (weights.norms.get(f"self_attn.{name}_norm") for name in "qk")
    return None if q is None or k is None else HeadNorms(q, k, eps)
