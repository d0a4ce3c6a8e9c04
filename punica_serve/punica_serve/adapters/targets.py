"""Finds the modules that PEFT would adapt, with their ranks and scalings.

A configuration with a regular expression is matched in a separate process (``pattern_process``).
"""

from collections.abc import Iterator

from punica_serve.adapters.matching import Blocks, Matches, match_targets, module_path
from punica_serve.adapters.pattern_process import match_in_process
from punica_serve.adapters.peft_config import PeftConfig
from punica_serve.base_model.model_config import ModelConfig


def lora_targets(config: PeftConfig, model: ModelConfig) -> Matches:
    """The modules that PEFT would adapt. Blocks for at most ``pattern_process.MAX_WALL_S``.

    Raises AdapterRejected if the configuration selects anything but the linear modules of a layer, gives one a rank
    above MAX_LORA_RANK, or has a regular expression that is invalid or takes too long; StoreUnavailable if this
    machine can't run another process.
    """
    match = match_in_process if config.has_expressions else match_targets
    return match(config, model.num_hidden_layers, blocks_of(model))


def blocks_of(model: ModelConfig) -> Blocks:
    """The linear modules of each layer that an adapter may update."""
    return {projection.name: projection.parent for group in model.spec.groups for projection in group.projections}


def linear_modules(model: ModelConfig) -> Iterator[tuple[int, str, str]]:
    """(layer, module, path) of every linear module that an adapter may update."""
    for layer in range(model.num_hidden_layers):
        for module, block in blocks_of(model).items():
            yield layer, module, module_path(layer, block, module)
