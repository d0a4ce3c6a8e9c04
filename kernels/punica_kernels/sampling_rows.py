"""How the rows of a batch are sampled, as tensors."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Filters:
    """The rows with top-k, top-p or min-p, and their values: see `filter_logits`."""

    #: int64 [F], ascending: their indices in the batch. All have a temperature above 0.
    rows: Tensor
    #: int64 [F]
    top_k: Tensor
    #: float32 [F]
    top_p: Tensor
    #: float32 [F]
    min_p: Tensor


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sampling parameters of R rows, on the device of their logits."""

    #: float32 [R]; 0 takes the highest logit.
    temperatures: Tensor
    #: int64 [R]: the bit patterns of unsigned 64-bit seeds.
    seeds: Tensor
    #: int64 [R]
    positions: Tensor
    #: None if no row has any.
    filters: Filters | None = None


def scale_logits(logits: Tensor, temperatures: Tensor) -> Tensor:
    """(logits - highest) / temperature of each row, float32 [R, V]: no temperature makes a finite logit infinite.

    logits: [R, V]; temperatures: float32 [R], above 0.
    """
    scores = logits.float()
    return (scores - scores.amax(-1, keepdim=True)).div_(temperatures[:, None])
