"""The kernels of LoRA in a planned step, apart: those that the engine launches for it in a layer, on its own tables."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from punica_kernels.bench.timing import Call
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.cuda.cuda_lora import CudaLora
from punica_serve.models.activation import ACTIVATIONS
from punica_serve.models.linear import Projected
from punica_serve.protocol import LoraGroup


class LoraCalls:
    """Calls of each part, one for each layer, whose weights differ; inputs and outputs are the same, as in a model."""

    def __init__(self, lora: CudaLora, model: ModelConfig, like: Tensor, num_rows: int) -> None:
        """``like``: a tensor of the model's dtype and device."""
        self._lora, self._layers = lora, range(model.num_hidden_layers)
        groups = {group.name: group for group in model.spec.groups}
        self._inputs = {name: _random(like, num_rows, group.in_features) for name, group in groups.items()}
        self._v = {name: lora.shrink(0, name, x) for name, x in self._inputs.items()}
        #: The expands write these. The activation expands the other groups.
        self.deltas: Mapping[LoraGroup, Tensor] = {
            name: like.new_empty(num_rows, group.out_features)
            for name, group in groups.items()
            if not lora.activation_expands(name)
        }
        self._gate_up = _random(like, num_rows, groups["gate_up"].out_features)
        self._activate: Callable[[Projected], Tensor] = ACTIVATIONS[model.spec.activation]

    def shrinks(self) -> list[Call]:
        """The shrinks of all groups, one after another."""
        return [partial(self._shrink, layer) for layer in self._layers]

    def expands(self) -> dict[LoraGroup, list[Call]]:
        """The expands of the groups that have one."""
        return {
            group: [partial(self._lora.expand, layer, group, self._v[group], delta) for layer in self._layers]
            for group, delta in self.deltas.items()
        }

    def activations(self) -> list[Callable[[], Tensor]]:
        """The activation as the engine calls it: it adds the delta of gate and up, or expands it."""
        own = [self._lora.apply(layer, "gate_up", self._inputs["gate_up"], self._base) for layer in self._layers]
        # A delta was just written when it is read, so all layers read one.
        return [partial(self._activate, projected._replace(delta=own[0].delta)) for projected in own]

    def bare_activations(self) -> list[Callable[[], Tensor]]:
        """The activation of a step without LoRA."""
        return [partial(self._activate, Projected(self._gate_up, None)) for _ in self._layers]

    def _base(self, _: Tensor) -> Tensor:
        return self._gate_up

    def _shrink(self, layer: int) -> None:
        for group, x in self._inputs.items():
            self._lora.shrink(layer, group, x)


def _random(like: Tensor, num_rows: int, width: int) -> Tensor:
    return torch.randn(num_rows, width, dtype=like.dtype, device=like.device)
