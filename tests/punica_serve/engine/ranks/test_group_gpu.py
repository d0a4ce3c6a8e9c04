"""Ranks as threads on one GPU, step by step without CUDA graphs: their kernels' shapes say what one rank says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from device_waits import waits_are_errors
from filter_cases import random_filters, random_logits
from mixed_batch import assert_same, serve, write_adapters
from punica_kernels.sampling_rows import Filters, SamplingRows
from punica_serve.base_model.architectures import ARCHITECTURES
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.rank import Rank
from punica_serve.bench.lone_rank import LoneRank
from punica_serve.engine.ranks.drawing import drawing_of
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from thread_ranks import run_ranks

pytestmark = [
    pytest.mark.gpu,
    # Triton compiles the kernels of one rank, then of each rank of the group, in turns of one interpreter.
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_ranks_on_one_card_say_what_one_rank_says(
    make_model: Callable[..., Path], tmp_path: Path, model_type: str, size: int
) -> None:
    model = make_model(model_type, vocab_size=99)
    adapters = write_adapters(tmp_path, read_model_config(model))
    expected = serve(model, adapters, device="cuda:0", cuda_graphs=False)

    for answers in run_ranks(size, lambda rank: serve(model, adapters, rank, device="cuda:0", cuda_graphs=False)):
        assert_same(answers, expected)


def test_so_do_ranks_that_divide_a(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model("phi3", vocab_size=99)
    adapters = write_adapters(tmp_path, read_model_config(model))
    settings: dict[str, Any] = {"device": "cuda:0", "cuda_graphs": False}
    expected = serve(model, adapters, **settings)

    for answers in run_ranks(2, lambda rank: serve(model, adapters, rank, divide_lora_from=1, **settings)):
        assert_same(answers, expected)


def filtered_rows(rng: torch.Generator, num_rows: int, vocab_size: int) -> SamplingRows:
    filters = random_filters(rng, torch.arange(num_rows), vocab_size)
    limits = (each.cuda() for each in (filters.rows, filters.top_k, filters.top_p, filters.min_p))
    numbers = torch.arange(num_rows, device="cuda")
    return SamplingRows(torch.linspace(0.3, 3, num_rows, device="cuda"), numbers, numbers, Filters(*limits))


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("num_rows", [1, 8, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ranks_sample_filtered_rows_as_one_rank_does(dtype: torch.dtype, num_rows: int, size: int) -> None:
    """Bit by bit, ties and rounded sums included."""
    rng, vocab_size = torch.Generator().manual_seed(num_rows), 128_256
    logits = random_logits(rng, num_rows, vocab_size).to(dtype).cuda()
    rows = filtered_rows(rng, num_rows, vocab_size)
    expected = drawing_of(vocab_size, SINGLE_RANK).sample(logits, rows, masked=True)

    def run(collectives: Collectives) -> Tensor:
        drawing = drawing_of(vocab_size, collectives)
        part = logits[:, drawing.vocabulary.start : drawing.vocabulary.stop].contiguous()
        return drawing.sample(part, rows, masked=True)

    for tokens in run_ranks(size, run):
        assert torch.equal(tokens, expected)


def test_no_rank_waits_for_the_device_to_sample_them() -> None:
    drawing = drawing_of(32_000, LoneRank(Rank(1, 4)))
    logits = torch.randn(9, len(drawing.vocabulary), device="cuda")
    rows = filtered_rows(torch.Generator().manual_seed(0), 9, 32_000)
    drawing.sample(logits, rows)
    with waits_are_errors():
        drawing.sample(logits, rows)
