"""Loads the base model onto its device at the start: its weights, and the model of them once ranks have joined."""

import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory.device_memory import reserving
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from punica_serve.models.llama import Llama
from punica_serve.models.model import Model
from punica_serve.models.model_weights import ModelWeights, dummy_weights, load_weights, weights_num_bytes
from punica_serve.process.start_clock import Progress, no_progress


def load_base_weights(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress = no_progress,
) -> ModelWeights:
    """The weights that ``load_format`` asks for, or a rank's share of them: ``model``.

    Raises ModelRejected if the checkpoint is not what config.json describes, ConfigError if it does not fit.
    """
    with reserving(
        f"the base model in {str(dtype).removeprefix('torch.')}",
        weights_num_bytes(model, dtype),
        device,
        fix="take another device, a smaller model, or a narrower `engine.dtype`",
        param="engine.model",
    ):
        if config.load_format == "dummy":
            return dummy_weights(model, dtype, device, progress)
        return load_weights(config.model, model, dtype, device, progress)


def model_of(model: ModelConfig, weights: ModelWeights, collectives: Collectives = SINGLE_RANK) -> Model:
    """The model of these weights, or a rank's share of it."""
    return Llama(model, weights, collectives)
