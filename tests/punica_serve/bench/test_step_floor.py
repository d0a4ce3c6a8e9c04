"""What a decode step must read, in numbers that can be checked by hand."""

import torch

from punica_serve.bench.driver import StepTime
from punica_serve.bench.step_floor import StepBytes
from punica_serve.shapes import shape_of


def test_bytes_of_a_7b_step() -> None:
    model = shape_of("llama-2-7b")
    read = StepBytes.of(model, torch.bfloat16, 16)
    norms_and_embeddings = (2 * 32 + 1) * 4096 + 32000 * 4096
    assert read.weights == 2 * (6_738_415_616 - norms_and_embeddings)
    assert read.adapter == 79_953_920
    assert read.context_token == 2 * 32 * 2 * 4096


def test_the_floor_counts_weights_adapters_and_context() -> None:
    read = StepBytes(weights=1000, adapter=100, context_token=10)
    step = StepTime(1.0, batch_size=4, num_prefill_tokens=0, num_adapters=3, num_context_tokens=7)
    assert read.floor_s(step, 100.0) == 13.7
