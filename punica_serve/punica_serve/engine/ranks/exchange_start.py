"""The exchanges of a group as its start makes, confirms and tells them."""

import logging
from contextlib import ExitStack

import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.chosen_collectives import ChosenCollectives
from punica_serve.engine.ranks.exchange_check import check_exchanges
from punica_serve.engine.ranks.exchange_choice import ExchangeChoice, choice_of
from punica_serve.engine.ranks.flashinfer_norm import FlashInferNorm
from punica_serve.engine.ranks.flashinfer_start import open_flashinfer
from punica_serve.engine.ranks.mapped_memory import mapping_fault, num_mappings
from punica_serve.engine.ranks.start_votes import StartVotes
from punica_serve.engine.ranks.symmetric_sums import DTYPES
from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.errors.reasons import first_line
from punica_serve.models.collectives import Collectives

#: The parts that ranks do together, as the votes name them.
_COUNT, _MAP = "come to map memory", "map the memory of all ranks"

log = logging.getLogger(__name__)


def exchanges_of(
    collectives: Collectives,
    config: EngineConfig,
    share: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    opened: ExitStack,
) -> Collectives:
    """The exchanges of a model in this dtype, and of float32. All ranks of a group must ask, and all get the same.

    Where FlashInfer's way does not work, the next best takes its sizes; where another does not, all are left to NCCL.
    The log says why. ``opened``: closing it ends what is compiled for the next start. Raises ConfigError for a file of
    times that can't be read, and, naming a rank, where one of them fails in a way that leaves the others waiting.
    """
    if device.type != "cuda" or not isinstance(collectives, TorchCollectives):
        _warn_if_set(config, f"it has no kernel for {device.type}")
        return collectives
    name, num_ranks, width = torch.cuda.get_device_name(device), collectives.rank.size, share.hidden_size
    choice, flashinfer = choice_of(config, name, num_ranks), None
    if dtype not in DTYPES:
        _warn_if_set(config, f"no memory is mapped for {dtype}")
        return collectives
    if most := choice.max_layer_bytes("flashinfer"):
        flashinfer = open_flashinfer(collectives, config, most, share, dtype, device, opened)
        choice = choice_of(config, name, num_ranks, has_flashinfer=flashinfer is not None)
    if choice.is_nccl:
        return collectives
    votes = StartVotes(collectives.store, collectives.rank)
    chosen, fault = _mapped(collectives, choice, width, dtype, device, votes, flashinfer)
    if chosen is not None:
        fault = check_exchanges(chosen, width, dtype, device, votes)
    if chosen is None or fault:
        log.warning("sums over ranks are left to NCCL: %s", fault)
        return collectives
    log.info("sums over ranks: %s", choice)
    return chosen


def _warn_if_set(config: EngineConfig, reason: str) -> None:
    """A setting that names one kernel is not ignored without a word."""
    if config.exchange in ("fused", "flashinfer"):
        log.warning("`engine.exchange` is %s, but sums over ranks are left to the library: %s", config.exchange, reason)


def _mapped(
    collectives: TorchCollectives,
    choice: ExchangeChoice,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
    votes: StartVotes,
    flashinfer: FlashInferNorm | None,
) -> tuple[ChosenCollectives | None, str | None]:
    """The exchanges as chosen, or why a rank can't have them. Raises ConfigError."""
    counts = [int(count) for count in votes.collect(_COUNT, f"{num_mappings()}")]
    if fault := mapping_fault(counts):
        return None, fault
    chosen, own = None, None
    try:
        chosen = ChosenCollectives(collectives, choice, width, dtype, device, flashinfer)
    except (RuntimeError, AttributeError) as error:  # no such memory in this system, or in this torch
        own = first_line(error)
    fault = votes.agree(_MAP, own)
    return (None, fault) if fault else (chosen, None)
