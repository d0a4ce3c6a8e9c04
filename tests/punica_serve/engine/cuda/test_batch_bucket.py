"""Every step fits a bucket, and gets the smallest one."""

import pytest

from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket, BatchBuckets
from punica_serve.protocol import Request, SamplingParams


def _sequence(num_prompt: int = 1) -> Sequence:
    return Sequence.of(Request("r", 0, (1,) * num_prompt, SamplingParams()), 10_000)


def _plan(num_prefill: int, num_decodes: int) -> StepPlan:
    chunks = (PrefillChunk(_sequence(num_prefill), 0, num_prefill, True),) if num_prefill else ()
    return StepPlan(chunks, tuple(_sequence() for _ in range(num_decodes)))


@pytest.mark.parametrize("max_prefills", [1, 4])
@pytest.mark.parametrize(("max_batch_size", "budget"), [(1, 1), (3, 20), (32, 512), (32, 500), (256, 8192), (1000, 64)])
def test_every_step_fits_a_known_shape(max_batch_size: int, budget: int, max_prefills: int) -> None:
    buckets = BatchBuckets(max_batch_size=max_batch_size, prefill_budget_tokens=budget, max_prefills=max_prefills)
    for num_prefill in {0, 1, budget // 2, budget}:
        for num_decodes in {1, max_batch_size // 2, max_batch_size - (num_prefill > 0)} - {0}:
            if num_decodes + (num_prefill > 0) > max_batch_size:
                continue
            bucket = buckets.fit(_plan(num_prefill, num_decodes))
            assert bucket in buckets.all
            assert bucket.num_prefill_rows >= num_prefill
            assert bucket.num_decode_rows >= num_decodes


def test_the_smallest_shape_is_taken() -> None:
    buckets = BatchBuckets(max_batch_size=32, prefill_budget_tokens=512)
    assert buckets.fit(_plan(0, 1)) == BatchBucket(0, 1)
    assert buckets.fit(_plan(0, 17)) == BatchBucket(0, 24)
    assert buckets.fit(_plan(0, 32)) == BatchBucket(0, 32)
    assert buckets.fit(_plan(512, 1)) == BatchBucket(512, 31)
    assert buckets.fit(_plan(65, 0)) == BatchBucket(96, 31)
    large = BatchBuckets(max_batch_size=256, prefill_budget_tokens=512)
    assert [large.fit(_plan(16, decodes)).num_decode_rows for decodes in (0, 32, 200)] == [127, 127, 255]


def test_large_batches_have_few_shapes_to_capture() -> None:
    few = BatchBuckets(max_batch_size=32, prefill_budget_tokens=512)
    many = BatchBuckets(max_batch_size=256, prefill_budget_tokens=512, max_prefills=8)
    assert (len(few.all), len(many.all)) == (22, 33)
    assert {bucket.num_prefills for bucket in many.all} == {0, 8}


def test_prefills_have_shapes_that_fill_what_products_have_room_for() -> None:
    buckets = BatchBuckets(max_batch_size=32, prefill_budget_tokens=512)
    assert [buckets.fit(_plan(tokens, 3)).num_prefill_rows for tokens in (97, 113, 193, 225)] == [112, 128, 224, 256]


def test_a_shape_counts_its_rows() -> None:
    assert (BatchBucket(0, 8).num_rows, BatchBucket(0, 8).num_sampled) == (8, 8)
    assert (BatchBucket(64, 31).num_rows, BatchBucket(64, 31).num_sampled) == (95, 32)


def test_shapes_come_largest_first_and_once() -> None:
    buckets = BatchBuckets(max_batch_size=32, prefill_budget_tokens=512).all
    assert len(set(buckets)) == len(buckets)
    assert buckets[0] == BatchBucket(512, 31)
    assert buckets[-1] == BatchBucket(0, 1)
