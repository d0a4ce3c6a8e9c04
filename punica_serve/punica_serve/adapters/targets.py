"""Finds the modules that PEFT would adapt, with their ranks and scalings.

A configuration with a regular expression is matched in a separate process (``pattern_process``).
"""

from collections.abc import Iterator

from punica_serve.adapters.base_modules import ALONE, BaseModules
from punica_serve.adapters.matching import Matches, match_targets
from punica_serve.adapters.pattern_process import match_in_process
from punica_serve.adapters.peft_config import PeftConfig
from punica_serve.base_model.model_config import ModelConfig


def lora_targets(config: PeftConfig, model: ModelConfig, stem: str = ALONE) -> Matches:
    """The modules that PEFT would adapt. Blocks for at most ``pattern_process.MAX_WALL_S``.

    ``stem``: the path of the text model in the model that the adapter was trained on. Raises AdapterRejected if the
    configuration selects anything but linear modules, the embedding and the head, gives one a rank above MAX_LORA_RANK,
    or has a regular expression that is invalid or takes too long; StoreUnavailable if this machine can't run another
    process.
    """
    match = match_in_process if config.has_expressions else match_targets
    return match(config, base_modules(model, stem))


def base_modules(model: ModelConfig, stem: str = ALONE) -> BaseModules:
    """The modules of a base model whose text model has the path ``stem``."""
    blocks = {projection.name: projection.parent for group in model.spec.groups for projection in group.projections}
    norms = tuple(norm.name for norm in model.spec.layer_norms)
    return BaseModules(model.num_hidden_layers, blocks, stem, norms)


def linear_modules(model: ModelConfig, stem: str = ALONE) -> Iterator[tuple[int, str, str]]:
    """(layer, module, path) of every linear module of a layer."""
    return base_modules(model, stem).linear()


def updatable_modules(model: ModelConfig, stem: str = ALONE) -> Iterator[tuple[int, str, str]]:
    """(layer, module, path) of every module that an adapter may update, the embedding and the head too."""
    return base_modules(model, stem).updatable()
