"""One rank of a tensor-parallel group by itself, to measure what a rank computes where there is no group."""

import re

import torch
from torch import Tensor

from punica_serve.base_model.rank import Rank
from punica_serve.errors import ConfigError
from punica_serve.models.collectives import SINGLE_RANK, Collectives


class LoneRank(Collectives):
    """Stands in for the other ranks: an exchange is a copy of as many bytes. Times mean something, results nothing."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor.expand(self.rank.size, *tensor.shape).contiguous()

    def all_to_all(self, tensor: Tensor) -> Tensor:
        return tensor.clone()


def stand_in(rank: Rank) -> Collectives:
    """The collectives of a rank that is measured by itself."""
    return SINGLE_RANK if rank.size == 1 else LoneRank(rank)


def parse_shard(text: str) -> Rank:
    """INDEX/SIZE, such as 0/8. Raises ConfigError."""
    match = re.fullmatch(r"(\d{1,3})/(\d{1,3})", text)
    index, size = map(int, match.groups()) if match else (0, 0)
    if index >= size:
        message = f"`--shard` is {text!r}; write a rank and the size of its group, such as 0/8 for the first of eight"
        raise ConfigError(message, param="shard")
    return Rank(index, size)
