"""Columns give the same times as the model of single steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from punica_serve.performance.batch_columns import BatchColumns, Column, LoraColumns
from punica_serve.performance.lora_load import NO_ADAPTER, AdapterSize, LoraLoad
from punica_serve.performance.profile import load_profile, shipped_profiles
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.performance.step_time import StepTimeModel

Batch = tuple[int, int, LoraLoad]
#: For each profile; they differ only in their numbers.
few_examples = settings(max_examples=examples(20))


def columns_of(batches: list[Batch]) -> BatchColumns:
    def column(numbers: list[int]) -> Column:
        return np.array(numbers, dtype=np.float64)

    loras = [lora for _, _, lora in batches]
    return BatchColumns(
        column([num_rows for num_rows, _, _ in batches]),
        column([num_tokens for _, num_tokens, _ in batches]),
        LoraColumns(*(column([lora[index] for lora in loras]) for index in range(4))),
    )


@st.composite
def batch(draw: st.DrawFn) -> Batch:
    """Rows of 1 to 4,000 tokens, some with an adapter."""
    num_rows = draw(st.integers(1, 200))
    num_loras = draw(st.integers(0, num_rows))
    rank = draw(st.sampled_from((8, 16, 128)))
    lora = LoraLoad(num_loras, rank * num_loras, rank, num_loras * rank // 2) if num_loras else LoraLoad()
    return num_rows, num_rows * draw(st.integers(1, 4_000)), lora


@pytest.mark.parametrize("name", shipped_profiles())
@few_examples
@given(batches=st.lists(batch(), min_size=1, max_size=5))
def test_columns_agree_with_single_steps(name: str, batches: list[Batch]) -> None:
    model = StepTimeModel(load_profile(name))
    decodes = [model.step_s(0, *one) for one in batches]
    assert StepTimeColumns(model).decode_s(columns_of(batches)) == pytest.approx(decodes)


def test_an_empty_batch_takes_no_time() -> None:
    columns = StepTimeColumns(StepTimeModel(load_profile("a100-40g-7b")))
    assert columns.decode_s(columns_of([(0, 0, LoraLoad())])) == [0.0]


def test_a_row_more_counts_with_its_tokens_and_its_adapter() -> None:
    model = StepTimeModel(load_profile("h200-7b"))
    lora = LoraLoad(1, 16, 16, 8)
    more = columns_of([(2, 100, lora)]).with_row(60, AdapterSize(32, 16))
    assert StepTimeColumns(model).decode_s(more) == pytest.approx([model.step_s(0, 3, 160, LoraLoad(2, 48, 32, 24))])
    base = columns_of([(2, 100, lora)]).with_row(60, NO_ADAPTER)
    assert StepTimeColumns(model).decode_s(base) == pytest.approx([model.step_s(0, 3, 160, lora)])


def test_a_prefill_costs_its_tokens_and_its_adapter() -> None:
    model = StepTimeModel(load_profile("h200-7b"))
    columns = StepTimeColumns(model)
    assert columns.prefill_s(100, NO_ADAPTER) == model.step_s(100, 0, 0)
    assert columns.prefill_s(100, AdapterSize(16, 8)) == model.step_s(100, 0, 0, LoraLoad(1, 16, 16, 8))


@pytest.mark.parametrize("name", shipped_profiles())
@few_examples
@given(queues=st.lists(st.integers(0, 3_000), min_size=1, max_size=5))
def test_a_queue_takes_one_prefill_of_all_its_tokens(name: str, queues: list[int]) -> None:
    model = StepTimeModel(load_profile(name))
    expected = [model.step_s(num_tokens, 0, 0) for num_tokens in queues]
    assert StepTimeColumns(model).queue_s(np.array(queues, dtype=np.float64)) == pytest.approx(expected)
