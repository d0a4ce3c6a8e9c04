"""Every step fits a shape, and the smallest that there is."""

import pytest

from punica_serve.engine.planner import PrefillChunk, StepPlan
from punica_serve.engine.sequence import Sequence
from punica_serve.engine.step_shape import StepShape, StepShapes
from punica_serve.protocol import Request, SamplingParams


def _sequence(num_prompt: int = 1) -> Sequence:
    return Sequence.of(Request("r", 0, (1,) * num_prompt, SamplingParams()), 10_000)


def _plan(num_prefill: int, num_decodes: int) -> StepPlan:
    chunk = PrefillChunk(_sequence(num_prefill), 0, num_prefill, True) if num_prefill else None
    return StepPlan(chunk, tuple(_sequence() for _ in range(num_decodes)))


@pytest.mark.parametrize(("max_batch_size", "budget"), [(1, 1), (3, 20), (32, 512), (32, 500), (256, 8192), (1000, 64)])
def test_every_step_fits_a_known_shape(max_batch_size: int, budget: int) -> None:
    shapes = StepShapes(max_batch_size=max_batch_size, prefill_budget_tokens=budget)
    for num_prefill in {0, 1, budget // 2, budget}:
        for num_decodes in {1, max_batch_size // 2, max_batch_size - (num_prefill > 0)} - {0}:
            if num_decodes + (num_prefill > 0) > max_batch_size:
                continue
            shape = shapes.fit(_plan(num_prefill, num_decodes))
            assert shape in shapes.all
            assert shape.num_prefill_rows >= num_prefill
            assert shape.num_decode_rows >= num_decodes


def test_the_smallest_shape_is_taken() -> None:
    shapes = StepShapes(max_batch_size=32, prefill_budget_tokens=512)
    assert shapes.fit(_plan(0, 1)) == StepShape(0, 1)
    assert shapes.fit(_plan(0, 17)) == StepShape(0, 24)
    assert shapes.fit(_plan(0, 32)) == StepShape(0, 32)
    assert shapes.fit(_plan(512, 1)) == StepShape(512, 31)
    assert shapes.fit(_plan(65, 0)) == StepShape(96, 31)
    large = StepShapes(max_batch_size=256, prefill_budget_tokens=512)
    assert [large.fit(_plan(16, decodes)).num_decode_rows for decodes in (0, 32, 200)] == [31, 127, 255]


def test_prefills_have_shapes_that_fill_what_products_have_room_for() -> None:
    shapes = StepShapes(max_batch_size=32, prefill_budget_tokens=512)
    assert [shapes.fit(_plan(tokens, 3)).num_prefill_rows for tokens in (97, 113, 193, 225)] == [112, 128, 224, 256]


def test_a_shape_counts_its_rows() -> None:
    assert (StepShape(0, 8).num_rows, StepShape(0, 8).num_sampled) == (8, 8)
    assert (StepShape(64, 31).num_rows, StepShape(64, 31).num_sampled) == (95, 32)


def test_shapes_come_largest_first_and_once() -> None:
    shapes = StepShapes(max_batch_size=32, prefill_budget_tokens=512).all
    assert len(set(shapes)) == len(shapes)
    assert shapes[0] == StepShape(512, 31)
    assert shapes[-1] == StepShape(0, 1)
