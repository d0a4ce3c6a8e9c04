"""Confirms at the start of a group that its GPUs add up right by each exchange that was chosen for them."""

import time
from collections.abc import Callable

import torch

from punica_kernels.block_end import BlockEnd
from punica_kernels.norm import rms_norm
from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.chosen_collectives import ChosenCollectives
from punica_serve.engine.ranks.layer_exchange import LayerExchange
from punica_serve.engine.ranks.start_votes import StartVotes
from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import first_line

#: A sum takes microseconds. One that has not ended by then waits for a rank that never comes.
_TIMEOUT_S = 30.0
_PAUSE_S = 0.001
#: Rounds of a check of the one kernel: both places of its memory, each used again.
_NUM_ROUNDS = 4
_EPS = 1e-6
#: The parts that ranks do together, as the votes name them.
_ADD = "add up over ranks"
_FUSED = "the fused kernel"


def check_exchanges(
    chosen: ChosenCollectives, width: int, dtype: torch.dtype, device: torch.device, votes: StartVotes
) -> str | None:
    """The first fault of any rank, with its name. Raises ConfigError for an exchange that does not end."""

    def fault_of_others() -> str | None:
        return votes.fault(_ADD)

    try:
        # All of them, whatever is found: the other ranks may have found nothing, and wait.
        dtypes = dict.fromkeys((dtype, torch.float32))
        faults = [find_fault(chosen, each, device, fault_of_others) for each in dtypes]
        if fused := chosen.layer_exchanges.get("fused"):
            most, rank = chosen.choice.max_layer_bytes("fused"), chosen.rank
            faults.append(find_norm_fault(fused, _FUSED, most, rank, width, dtype, device, fault_of_others))
        own = next(filter(None, faults), None)
    except (RuntimeError, AttributeError) as error:
        own = first_line(error)
    return votes.agree(_ADD, own)


def find_fault(
    chosen: ChosenCollectives, dtype: torch.dtype, device: torch.device, fault_of_others: Callable[[], str | None]
) -> str | None:
    """Adds up known values by each way, at the largest size that it was chosen for; twice, and so in used memory.

    Goes on after a wrong sum, which the other ranks may not see: they wait for the sums that are left. Returns the
    first. ``fault_of_others`` tells why a rank can't make its sums. Raises ConfigError for a sum that does not end.
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
            _await_end(way, fault_of_others)
            if not torch.equal(total, torch.stack(of_rank).sum(0)):
                faults.append(f"{way} has added {num_bytes:,} bytes of {dtype} up wrongly")
    return faults[0] if faults else None


def find_norm_fault(
    exchange: LayerExchange,
    name: str,
    max_bytes: int,
    rank: Rank,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
    fault_of_others: Callable[[], str | None],
) -> str | None:
    """The same for one that sums over ranks and norms, at its largest size and, between, with a single row."""
    faults: list[str] = []
    most_rows = max(1, max_bytes // (width * dtype.itemsize))
    for number in range(_NUM_ROUNDS):
        shape = (1 if number == 1 else most_rows, width)
        numbers = torch.arange(shape[0] * width, device=device).view(shape) + number
        # Whole numbers below 4, whose sums are exact in each dtype.
        of_rank = [((numbers + 3 * index) % 4).float() for index in range(rank.size)]
        own = of_rank[rank.index]
        delta, residual = (numbers % 3).to(dtype), (numbers % 2).to(dtype)
        total = sum(of_rank, residual.float()) + rank.size * delta.float()
        weight, out, expected = residual[0] + 1, torch.empty_like(residual), torch.empty_like(residual)
        exchange(BlockEnd(out, torch.stack([own, -own, own]), residual, weight, _EPS, delta), pdl=False)
        _await_end(name, fault_of_others)
        rms_norm(expected, residual, weight, _EPS)
        is_right = torch.equal(residual.float(), total)
        if not is_right or not torch.allclose(out, expected, rtol=4 * torch.finfo(dtype).eps):
            faults.append(f"{name} has added {residual.nbytes:,} bytes of {dtype} up wrongly")
    return faults[0] if faults else None


def _await_end(way: str, fault_of_others: Callable[[], str | None]) -> None:
    """Waits for the device. Raises ConfigError for a sum that does not end: what waits there can't be taken back."""
    end = torch.cuda.Event()
    end.record()
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not end.query():
        if fault := fault_of_others():
            raise _refusal(fault)
        if time.monotonic() > deadline_s:
            raise _refusal(f"a sum over ranks by {way} has not ended within {_TIMEOUT_S:g} s")
        time.sleep(_PAUSE_S)


def _refusal(words: str) -> ConfigError:
    return ConfigError(f"{words}; set `engine.exchange` to nccl", param="engine.exchange")
