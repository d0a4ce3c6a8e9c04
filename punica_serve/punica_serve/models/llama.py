"""The decoder of Llama, and of all models that differ from it in values alone (``base_model/architectures``).

All rows of a batch go through the dense projections and LoRA together; only attention tells requests apart.
"""

from torch import Tensor

from punica_kernels.head_norms import HeadNorms
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.models.activation import ACTIVATIONS
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from punica_serve.models.embedding import Embedding
from punica_serve.models.linear import Linear, LoraBatch, OutputHead, Projected
from punica_serve.models.model import ForwardBatch
from punica_serve.models.model_weights import LayerWeights, ModelWeights
from punica_serve.models.norm import Residual, RmsNorm
from punica_serve.models.rotary import Rotary


class Llama:
    """A decoder on one device, or a rank's share of one: ``forward``, then ``logits``."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, collectives: Collectives = SINGLE_RANK) -> None:
        """``config`` and ``weights``: the rank's share."""
        self.config = config
        spec = config.spec
        self._embedding = Embedding(weights.embedding, config.vocabulary, spec.embedding_scale, collectives)
        dtype, device = weights.embedding.dtype, weights.embedding.device
        rotaries = {
            layer.rotary: Rotary(layer.rotary, config.num_attention_heads, dtype, device) for layer in spec.layers
        }
        self._layers: list[_Layer] = []
        behind_mlp: Tensor | None = None
        for number, (layer, own) in enumerate(zip(spec.layers, weights.layers, strict=True)):
            self._layers.append(_Layer(config, number, own, rotaries[layer.rotary], behind_mlp, collectives))
            behind_mlp = own.norms.get(spec.block_norms.behind_mlp)
        self._norm = RmsNorm(weights.norm, spec.norm_eps, behind_mlp, collectives)
        self._head = OutputHead(weights.lm_head, spec.logit_soft_cap)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """The last hidden states, normed: [rows, hidden]."""
        residual, added = Residual(self._embedding(batch.token_ids, batch.lora)), None
        for layer in self._layers:
            added = layer(residual, added, batch)
        return self._norm(residual, added)

    def logits(self, hidden: Tensor, lora: LoraBatch) -> Tensor:
        """See ``Model.logits``."""
        return self._head(hidden, lora)


class _Layer:
    """Attention and MLP. Each one's output is added to the residual by the norm that follows it."""

    def __init__(
        self,
        config: ModelConfig,
        number: int,
        weights: LayerWeights,
        rotary: Rotary,
        behind_last_mlp: Tensor | None,
        collectives: Collectives,
    ) -> None:
        """``behind_last_mlp``: the norm behind the MLP of the layer before, where the model has one."""
        spec, norms = config.spec, config.spec.block_norms
        before_attention, before_mlp = weights.norms[norms.before_attention], weights.norms[norms.before_mlp]
        behind_attention = weights.norms.get(norms.behind_attention)
        self._attention_norm = RmsNorm(before_attention, spec.norm_eps, behind_last_mlp, collectives)
        self._mlp_norm = RmsNorm(before_mlp, spec.norm_eps, behind_attention, collectives)
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
        attended = self._attend(self._attention_norm(residual, added), batch)
        return self._feed_forward(self._mlp_norm(residual, attended), batch)

    def _attend(self, x: Tensor, batch: ForwardBatch) -> Projected:
        q = self._rotary(self._number, self._qkv(x, batch.lora), batch, self._qkv_bias, self._head_norms)
        return self._o(batch.attention.run(self._number, q), batch.lora)

    def _feed_forward(self, x: Tensor, batch: ForwardBatch) -> Projected:
        return self._down(self._activation(self._gate_up(x, batch.lora)), batch.lora)


def _head_norms(weights: LayerWeights, eps: float) -> HeadNorms | None:
    q, k = (weights.norms.get(f"self_attn.{name}_norm") for name in "qk")
    return None if q is None or k is None else HeadNorms(q, k, eps)
