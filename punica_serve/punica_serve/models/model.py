"""The seam between engine and model: what an engine asks of a model, and what it gives the model for each step."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.models.linear import LoraBatch


class Attention(Protocol):
    """Attention over the KvCache, planned for the step beforehand."""

    #: Integers [rows]: page * page_size + offset of each row's key and value in the cache; -1 stores neither.
    slot_mapping: Tensor

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        ...

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Attends to the tokens in the cache: q [rows, heads, head_dim] -> [rows, heads * head_dim]."""
        ...


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The input of one forward pass: rows of prefill chunks and decodes of many LoRA models together."""

    #: Integers [rows].
    token_ids: Tensor
    #: Integers [rows]: the index of each token in its request, from its ``ModelSpec.rotary_start`` on.
    positions: Tensor
    attention: Attention
    lora: LoraBatch


class Model(Protocol):
    """A decoder on one device, or a rank's share of one. It keeps no state between calls and knows no requests."""

    #: The rank's share.
    config: ModelConfig

    def forward(self, batch: ForwardBatch) -> Tensor:
        """The last hidden states, normed: [rows, hidden]."""
        ...

    def logits(self, hidden: Tensor, lora: LoraBatch) -> Tensor:
        """[rows, hidden], a step's last -> [rows, tokens of the rank's vocabulary], in the model's dtype."""
        ...
