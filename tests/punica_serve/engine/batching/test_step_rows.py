import torch

from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.batching.step_rows import BatchLen, Segments, build_rows, build_segments
from punica_serve.protocol import AdapterRef, Request, SamplingParams

CPU = torch.device("cpu")


def _sequence(num_prompt: int, adapter: str | None = None, generated: int = 0) -> Sequence:
    ref = AdapterRef(adapter, "", 0, {}) if adapter else None
    prompt = tuple(range(10, 10 + num_prompt))
    return Sequence.of(Request("r", 0, prompt, SamplingParams(), ref, tuple(range(50, 50 + generated))), 256)


def _decoding(adapter: str | None = None) -> Sequence:
    sequence = _sequence(3, adapter, generated=1)
    sequence.num_cached = 3
    return sequence


def test_prefill_rows_come_first_and_its_last_row_is_sampled() -> None:
    prefill = _sequence(4)
    batch = build_rows(StepPlan((PrefillChunk(prefill, 0, 4, True),), (_decoding(), _decoding())), CPU)
    assert batch.batch_len == BatchLen(prefill_starts=(0,), num_prefill_rows=4, num_decodes=2)
    assert batch.token_ids.tolist() == [10, 11, 12, 13, 50, 50]
    assert batch.positions.tolist() == [0, 1, 2, 3, 3, 3]
    assert batch.sampled_rows.tolist() == [3, 4, 5]


def test_an_inner_chunk_samples_only_the_decodes() -> None:
    batch = build_rows(StepPlan((PrefillChunk(_sequence(9), 2, 5, False),), (_decoding(),)), CPU)
    assert batch.positions.tolist() == [2, 3, 4, 3]
    assert batch.sampled_rows.tolist() == [3]


def test_decodes_alone() -> None:
    batch = build_rows(StepPlan((), (_decoding(), _decoding())), CPU)
    assert batch.batch_len == BatchLen((), 0, 2)
    assert batch.batch_len.num_rows == 2
    assert batch.sampled_rows.tolist() == [0, 1]


def test_prefill_and_decodes_of_one_adapter_form_one_segment() -> None:
    plan = StepPlan(
        (PrefillChunk(_sequence(4, "x"), 0, 4, True),), (_decoding("x"), _decoding("y"), _decoding("y"), _decoding())
    )
    assert build_segments(plan) == Segments(indptr=(0, 5, 7, 8), digests=("x", "y", None))


def test_padding_is_in_front_so_that_a_prefill_stays_next_to_the_decodes_of_its_adapter() -> None:
    plan = StepPlan((PrefillChunk(_sequence(4, "x"), 0, 4, True),), (_decoding("x"), _decoding("y")))
    assert build_segments(plan, 7) == Segments(indptr=(0, 3, 8, 9), digests=(None, "x", "y"))


def test_base_only_rows_are_one_segment_without_adapter() -> None:
    plan = StepPlan((PrefillChunk(_sequence(2), 0, 2, True),), (_decoding(),))
    assert build_segments(plan) == Segments((0, 3), (None,))
