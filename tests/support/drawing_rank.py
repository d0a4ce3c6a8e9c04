"""A rank that exchanges shares and samples filtered rows, and checks both.

Its arguments: `drawing_rank.py STORE INDEX SIZE DEVICE`.
"""

import os
import sys
from pathlib import Path

import torch

from filter_cases import random_filters, random_logits
from group_rank import joined
from punica_kernels.sampling_rows import Filters, SamplingRows
from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.drawing import drawing_of
from punica_serve.models.collectives import SINGLE_RANK, Collectives

_VOCAB_SIZE = 1003
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _check_shares(collectives: Collectives, dtype: torch.dtype, num_rows: int, device: torch.device) -> None:
    """Rank r sends the number 10 r + s to rank s."""
    index, ranks = collectives.rank.index, torch.arange(collectives.rank.size, device=device)
    sent = (10 * index + ranks)[:, None, None].expand(-1, num_rows, 5).to(dtype).contiguous()
    received = collectives.all_to_all(sent)
    assert torch.equal(received, (10 * ranks + index)[:, None, None].expand(-1, num_rows, 5).to(dtype))


def _check_tokens(collectives: Collectives, dtype: torch.dtype, num_rows: int, device: torch.device) -> None:
    """The tokens are those of one rank. All rows have filters but the first."""
    rng = torch.Generator().manual_seed(num_rows)
    logits = random_logits(rng, num_rows + 1, _VOCAB_SIZE).to(dtype).to(device)
    filters = random_filters(rng, torch.arange(1, num_rows + 1), _VOCAB_SIZE)
    limits = (each.to(device) for each in (filters.rows, filters.top_k, filters.top_p, filters.min_p))
    numbers = torch.arange(num_rows + 1, device=device)
    rows = SamplingRows(torch.ones(num_rows + 1, device=device), numbers, numbers, Filters(*limits))
    expected = drawing_of(_VOCAB_SIZE, SINGLE_RANK).sample(logits, rows, masked=True)
    drawing = drawing_of(_VOCAB_SIZE, collectives)
    part = logits[:, drawing.vocabulary.start : drawing.vocabulary.stop].contiguous()
    assert torch.equal(drawing.sample(part, rows, masked=True)[1:], expected[1:])


def main(store: str, index: str, size: str, device: str) -> None:
    rank = Rank(int(index), int(size))
    own = torch.device("cpu") if device == "cpu" else torch.device(device, rank.index)
    with joined(Path(store), rank, device) as collectives:
        for num_rows in (1, 2, 3, 32):
            for dtype in (*_DTYPES, torch.int64):
                _check_shares(collectives, dtype, num_rows, own)
            for dtype in _DTYPES:
                _check_tokens(collectives, dtype, num_rows, own)
    # gloo's threads may outlive its group, and the interpreter's end would abort them and so this process.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
