"""The modules of a base model by the paths that PEFT matches: "model.layers.0.mlp.up_proj".

A text model may stand alone or be part of a model that also sees images. Then its modules, and the tensors of adapters
that were trained on it, have longer paths, which versions of transformers have written in two ways.
"""

from collections.abc import Iterator
from dataclasses import dataclass

#: PEFT writes this before every path.
PEFT_PREFIX = "base_model.model."

#: The path of a text model that stands alone, and of one in a model that also sees images.
ALONE = "model"
WRAPPED = ("model.language_model", "language_model.model")


@dataclass(frozen=True, slots=True)
class BaseModules:
    """The modules that an adapter may update, and those around them."""

    num_layers: int
    #: The block of a layer that holds each of its linear modules, in the order in which the model runs them.
    blocks: dict[str, str]
    #: The path of the text model.
    stem: str = ALONE
    #: The paths of a layer's norms within it.
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")

    def linear(self) -> Iterator[tuple[int, str, str]]:
        """(layer, module, path) of every linear module of a layer, in the order in which the model runs them."""
        for layer in range(self.num_layers):
            for module, block in self.blocks.items():
                yield layer, module, f"{self.stem}.layers.{layer}.{block}.{module}"

    def vocabulary(self) -> Iterator[tuple[str, str]]:
        """(module, path) of the embedding and the head."""
        outer, _, inner = self.stem.rpartition(".")
        yield "embed_tokens", f"{self.stem}.embed_tokens"
        yield "lm_head", f"{outer}.lm_head" if outer and inner == ALONE else "lm_head"

    def updatable(self) -> Iterator[tuple[int, str, str]]:
        """(layer, module, path) of every module that an adapter may update; those beside the layers are of layer 0."""
        yield from self.linear()
        yield from ((0, module, path) for module, path in self.vocabulary())

    def others(self) -> Iterator[tuple[int | None, str]]:
        """(layer or None, path) of the modules that an adapter may not update."""
        outer = self.stem.rpartition(".")[0]
        yield from ((None, path) for path in (*filter(None, (outer,)), self.stem))
        for name in ("layers", "norm", "rotary_emb"):
            yield None, f"{self.stem}.{name}"
        for layer in range(self.num_layers):
            path = f"{self.stem}.layers.{layer}"
            yield None, path
            for name in (*dict.fromkeys(self.blocks.values()), "mlp.act_fn", *self.norms):
                yield layer, f"{path}.{name}"
