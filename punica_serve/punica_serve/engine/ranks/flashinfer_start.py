"""Opens FlashInfer's exchange of layers at the start of a group, if all ranks can have it and it adds up right."""

import logging
from contextlib import ExitStack

import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.cuda.flashinfer_compiler import FlashInferCompiler, not_compiled
from punica_serve.engine.ranks.exchange_check import find_norm_fault
from punica_serve.engine.ranks.flashinfer_module import is_compiled, job, why_not
from punica_serve.engine.ranks.flashinfer_norm import MAX_BYTES, FlashInferNorm
from punica_serve.engine.ranks.mapped_memory import mapping_fault, num_mappings
from punica_serve.engine.ranks.start_votes import StartVotes
from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.errors.reasons import first_line

#: FlashInfer takes seconds to import, on each rank.
_TIMEOUT_S = 60.0
#: The parts that ranks do together, as the votes name them.
_HAVE, _COUNT = "take FlashInfer's exchange", "come to map memory for FlashInfer"
_MAP, _ADD = "map FlashInfer's memory", "add up by FlashInfer"
_NAME = "FlashInfer's kernel"

log = logging.getLogger(__name__)


def open_flashinfer(
    library: TorchCollectives,
    config: EngineConfig,
    max_bytes: int,
    share: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    opened: ExitStack,
) -> FlashInferNorm | None:
    """All ranks must, and all get one, or none and the reason in the log. ``max_bytes``: of a rank's rows.

    A module that is not compiled yet is compiled for the next start if the config says so; closing ``opened`` ends
    that. Raises ConfigError, naming a rank, where one of them fails in a way that leaves the others waiting.
    """
    votes = StartVotes(library.store, library.rank, _TIMEOUT_S)
    max_bytes = min(max_bytes, MAX_BYTES)
    norm = None
    fault = votes.agree(_HAVE, _why_not_now(library, config, share, dtype, device, opened))
    if fault is None:
        fault = mapping_fault([int(count) for count in votes.collect(_COUNT, f"{num_mappings()}")])
    if fault is None:
        norm, fault = _mapped(library, max_bytes, share.hidden_size, dtype, device, votes)
    if norm is not None:
        fault = _check(norm, max_bytes, share.hidden_size, library, dtype, device, votes)
    if fault is None:
        return norm
    log.warning("exchanges of layers are not FlashInfer's: %s", fault)
    return None


def _why_not_now(
    library: TorchCollectives,
    config: EngineConfig,
    share: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    opened: ExitStack,
) -> str | None:
    """Why this rank can't have it at this start; None if it can. Begins to compile what is not compiled."""
    if reason := why_not(share, dtype, library.rank.size, device):
        return reason
    try:
        if is_compiled():
            return None
    except Exception as error:  # its import may fail in any way
        return first_line(error)
    if config.compile_flashinfer:
        opened.callback(FlashInferCompiler([job()], "FlashInfer has no exchange for the next start").close)
    return not_compiled(config)


def _mapped(
    library: TorchCollectives,
    max_bytes: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
    votes: StartVotes,
) -> tuple[FlashInferNorm | None, str | None]:
    """The exchange, or why a rank can't have it."""
    norm, own = None, None
    try:
        norm = FlashInferNorm(library, max_bytes, width, dtype, device)
    except Exception as error:  # it, torch and the driver raise errors of many kinds
        own = first_line(error)
    fault = votes.agree(_MAP, own)
    return (None, fault) if fault else (norm, None)


def _check(
    norm: FlashInferNorm,
    max_bytes: int,
    width: int,
    library: TorchCollectives,
    dtype: torch.dtype,
    device: torch.device,
    votes: StartVotes,
) -> str | None:
    """The first fault of any rank, with its name. Raises ConfigError for an exchange that does not end."""
    try:
        own = find_norm_fault(norm, _NAME, max_bytes, library.rank, width, dtype, device, lambda: votes.fault(_ADD))
    except RuntimeError as error:
        own = first_line(error)
    return votes.agree(_ADD, own)
