"""Which prefill rows FlashInfer serves, and which our own kernel: `engine.attention`.

``auto`` takes FlashInfer from the number of rows on from which it measured faster (``attention_choice``), if its
kernels are compiled. Otherwise ours serve, the log says why, and the kernels are compiled for the next start.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack

import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.cuda.attention_choice import Choice, Layers, choose
from punica_serve.engine.cuda.flashinfer_compiler import FlashInferCompiler, not_compiled
from punica_serve.engine.cuda.flashinfer_modules import Fa3Module, compile_module, is_compiled, why_not
from punica_serve.errors import ConfigError
from punica_serve.performance.attention_table import AttentionTable, load_table, shipped_table

logger = logging.getLogger(__name__)


def flashinfer_rows(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device, opened: ExitStack
) -> int | None:
    """The fewest prefill rows of a GPU's bucket that FlashInfer serves; None leaves all to our kernel.

    ``opened``: closing it ends what is compiled for the next start. Raises ConfigError if the config insists on
    FlashInfer and it can't serve this model here, or names a table of times that can't be read.
    """
    if config.attention == "triton":
        return None
    modules = fa3_modules(model, dtype)
    reason = next(filter(None, (why_not(module, device) for module in modules)), None)
    if config.attention == "flashinfer":
        if reason := reason or _why_not_compiled(modules):
            raise ConfigError(f"`engine.attention` is flashinfer, but {reason}; take auto", param="engine.attention")
        return 1
    choice = Choice(None, reason) if reason else _measured_choice(config, model, torch.cuda.get_device_name(device))
    if choice.first_rows and (missing := [module for module in modules if not is_compiled(module)]):
        choice = Choice(None, not_compiled(config))
        if config.compile_flashinfer:
            opened.callback(FlashInferCompiler((module.job for module in missing), "attention stays with Triton").close)
    if choice.first_rows is None:
        logger.info("attention: Triton for all rows: %s", choice.reason)
    else:
        logger.info("attention: FlashInfer for prefills of %d rows or more, Triton for the rest", choice.first_rows)
    return choice.first_rows


def _measured_choice(config: EngineConfig, model: ModelConfig, device_name: str) -> Choice:
    """Chooses by the config's table, or by the one that ships for the device. Raises ConfigError."""
    table = _table(config, device_name)
    if table is None:
        measure = "measure them (`punica-serve bench prompts --table FILE`) and set `engine.attention_times`"
        return Choice(None, f"no times were measured on {device_name}; {measure}")
    layers = Layers(model.num_attention_heads, model.num_key_value_heads, model.head_dim)
    return choose(table, layers, config.num_prefills)


def _table(config: EngineConfig, device_name: str) -> AttentionTable | None:
    if config.attention_times is None:
        return shipped_table(device_name)
    table = load_table(config.attention_times)
    if table.device != device_name:
        logger.warning("`engine.attention_times` was measured on %s, and this is %s", table.device, device_name)
    return table


def fa3_modules(model: ModelConfig, dtype: torch.dtype) -> list[Fa3Module]:
    """The kernels that a model's layers need, one for each distinct window."""
    cap = model.spec.attention_soft_cap or 0.0
    return [Fa3Module(dtype, model.head_dim, window, cap) for window in model.spec.windows]


def _why_not_compiled(modules: Sequence[Fa3Module]) -> str | None:
    """Compiles what is not compiled yet. Returns why that can't be done; None if it could."""
    for module in modules:
        if not is_compiled(module):
            logger.info("compiling FlashInfer's kernels for heads of %d, once: a minute or more", module.head_dim)
            try:
                compile_module(module)
            except RuntimeError as error:
                return str(error)
    return None
