"""Ranks as threads on one GPU, step by step without CUDA graphs: their kernels' shapes say what one rank says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mixed_batch import assert_same, serve, write_adapters
from punica_serve.base_model.architectures import ARCHITECTURES
from punica_serve.base_model.config_json import read_model_config
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
