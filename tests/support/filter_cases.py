"""Random rows with filters."""

import torch
from torch import Tensor

from punica_kernels.sampling_rows import Filters


def random_logits(rng: torch.Generator, num_rows: int, vocab_size: int) -> Tensor:
    """float32: narrow and wide rows, some with many equal logits, some with impossible tokens."""
    logits = (
        torch.randn(num_rows, vocab_size, generator=rng)
        * torch.tensor([0.01, 1.0, 4.0, 30.0])[torch.randint(4, (num_rows, 1), generator=rng)]
    )
    is_coarse = torch.rand(num_rows, 1, generator=rng) < 0.4
    logits = torch.where(is_coarse, logits.round(), logits)
    impossible = torch.rand(num_rows, vocab_size, generator=rng) < torch.rand(num_rows, 1, generator=rng) - 0.5
    return logits.masked_fill(impossible, -torch.inf)


def random_filters(rng: torch.Generator, numbers: Tensor, vocab_size: int) -> Filters:
    """Each filter off in some of the rows ``numbers``, weak in some, and strict in others."""
    num_rows = len(numbers)
    top_k = torch.randint(0, vocab_size + 9, (num_rows,), generator=rng)
    top_k = torch.where(torch.rand(num_rows, generator=rng) < 0.5, top_k % 4, top_k)
    top_p = torch.tensor([1.0, 1.0, 0.0, 1e-9, 0.1, 0.5, 0.9, 0.99, 0.9999])
    min_p = torch.tensor([0.0, 0.0, 1e-4, 0.05, 0.5, 1.0])
    chosen = (values[torch.randint(len(values), (num_rows,), generator=rng)] for values in (top_p, min_p))
    return Filters(numbers, top_k, *chosen)
