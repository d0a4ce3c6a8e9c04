"""Bytes that a decode step must read, in numbers that can be checked by hand."""

import pytest
import torch

from punica_serve.bench.driver import StepTime
from punica_serve.bench.step_floor import DeviceRates, StepBytes
from punica_serve.shapes import shape_of


def test_bytes_of_a_7b_step() -> None:
    model = shape_of("llama-2-7b")
    read = StepBytes.of(model, torch.bfloat16, 16)
    norms_and_embeddings = (2 * 32 + 1) * 4096 + 32000 * 4096
    assert read.weights == 2 * (6_738_415_616 - norms_and_embeddings)
    assert read.adapter == 79_953_920
    assert read.context_token == 2 * 32 * 2 * 4096


def _step(num_adapters: int) -> StepTime:
    return StepTime(1.0, batch_size=4, num_prefill_tokens=0, num_adapters=num_adapters, num_context_tokens=7)


READ = StepBytes(weights=1000, adapter=100, context_token=10, itemsize=2, queries_per_kv=8)


def test_the_floor_counts_weights_adapters_and_context() -> None:
    assert READ.floor_s(_step(3), DeviceRates(100.0, 1e9)) == 13.7


def test_each_operator_takes_its_bytes_or_its_arithmetic_whichever_is_longer() -> None:
    # 4 rows: a value of two bytes takes 8 operations, so 4000 for the weights and 400 for LoRA; 560 for the context.
    assert READ.floor_s(_step(3), DeviceRates(1e9, 100.0)) == pytest.approx(40 + 4 + 5.6)
    # One adapter for all: its bytes take 1, its arithmetic takes 400 / 200.
    assert READ.floor_s(_step(1), DeviceRates(100.0, 200.0)) == pytest.approx(20 + 2 + 2.8)
    assert READ.floor_s(_step(0), DeviceRates(100.0, 1e9)) == pytest.approx(10.7)
