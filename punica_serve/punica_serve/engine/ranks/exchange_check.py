"""Confirms at the start of a group that its GPUs add up right by each exchange that was chosen for them."""

import logging
import time

import torch

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.exchange_choice import choice_of
from punica_serve.engine.ranks.symmetric_sums import DTYPES, ChosenCollectives
from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.errors import ConfigError
from punica_serve.models.collectives import Collectives

#: A sum takes microseconds. One that has not ended by then waits for a rank that never comes.
_TIMEOUT_S = 30.0
_PAUSE_S = 0.001

log = logging.getLogger(__name__)


def exchanges_of(
    collectives: Collectives, config: EngineConfig, dtype: torch.dtype, device: torch.device
) -> Collectives:
    """The exchanges of a model in this dtype, and of float32. All ranks of a group must ask, and all get the same.

    A way that does not work on one of them leaves all sums to NCCL, and the log says why. Raises ConfigError for a file
    of times that can't be read, and for a sum that does not end.
    """
    if device.type != "cuda" or not isinstance(collectives, TorchCollectives):
        return collectives
    choice = choice_of(config, torch.cuda.get_device_name(device), collectives.rank.size)
    if not choice.max_bytes or dtype not in DTYPES:
        return collectives
    chosen: Collectives = collectives
    try:
        chosen = ChosenCollectives(collectives, choice, device)
        faults = [find_fault(chosen, each, device) for each in dict.fromkeys((dtype, torch.float32))]
        fault = next(filter(None, faults), None)
    except (RuntimeError, AttributeError) as error:  # no such memory, or no such kernels in this torch
        fault = str(error).splitlines()[0]
    num_faults = int(collectives.all_reduce(torch.tensor([float(fault is not None)], device=device)).item())
    if num_faults:
        log.warning("sums over ranks are left to NCCL: %s", fault or "another rank can't make them otherwise")
        return collectives
    log.info("sums over ranks: %s", choice)
    return chosen


def find_fault(chosen: ChosenCollectives, dtype: torch.dtype, device: torch.device) -> str | None:
    """Adds up known values by each way, at the largest size that it was chosen for; twice, and so in used memory.

    Goes on after a fault, which the other ranks may not see: they wait for the sums that are left. Returns the first.
    """
    faults: list[str] = []
    for num_bytes, way in chosen.choice.borders:
        for first in (0, 1) if way != "nccl" else ():
            numbers = torch.arange(num_bytes // dtype.itemsize, device=device)
            shape = numbers.shape
            # Whole numbers below 16, whose sums are exact in each dtype.
            of_rank = [((numbers + first + 3 * index) % 16).to(dtype) for index in range(chosen.rank.size)]
            part = chosen.empty(shape, dtype, device).copy_(of_rank[chosen.rank.index])
            total = chosen.all_reduce(part)
            _await_end(way)
            if not torch.equal(total, torch.stack(of_rank).sum(0)):
                faults.append(f"{way} has added {num_bytes:,} bytes of {dtype} up wrongly")
    return faults[0] if faults else None


def _await_end(way: str) -> None:
    """Waits for the device. Raises ConfigError after a while: what waits there can't be taken back."""
    end = torch.cuda.Event()
    end.record()
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not end.query():
        if time.monotonic() > deadline_s:
            message = f"a sum over ranks by {way} has not ended within {_TIMEOUT_S:g} s; set `engine.exchange` to nccl"
            raise ConfigError(message, param="engine.exchange")
        time.sleep(_PAUSE_S)
