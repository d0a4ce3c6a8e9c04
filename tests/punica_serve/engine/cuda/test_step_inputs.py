"""A step's inputs as kernels read them on the device."""

import torch

from punica_kernels.lora_table import LoraTableShape
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_planner import PrefillChunk, StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.step_input_buffer import StepInputBuffer
from punica_serve.engine.cuda.step_inputs import StepInputs
from punica_serve.protocol import Request, SamplingParams


def _sequence(*token_ids: int, num_cached: int = 0) -> Sequence:
    sequence = Sequence.of(Request("r", 0, token_ids, SamplingParams()), 64)
    sequence.num_cached = num_cached
    return sequence


def _inputs(bucket: BatchBucket, table: LoraTableShape) -> tuple[StepInputs, StepInputBuffer]:
    buffer = StepInputBuffer(StepInputs.sections(bucket, table), torch.device("cpu"))
    return StepInputs(bucket, table, buffer), buffer


def test_rows_are_the_prefills_then_the_decodes_and_those_in_flight_name_their_source() -> None:
    inputs, buffer = _inputs(BatchBucket(4, 3), LoraTableShape(7, 5, 2))
    known, unknown = _sequence(11, 12, num_cached=1), _sequence(13, num_cached=1)
    unknown.num_in_flight = 1
    chunk = PrefillChunk(_sequence(5, 6, 7, 8, 9), 1, 4, is_last=False)
    for _ in range(2):  # whatever the step before has left
        inputs.write(StepPlan(chunk, (known, unknown)), {unknown: 2})
        buffer.copy_to_device()
    assert inputs.token_ids.tolist() == [0, 6, 7, 8, 12, 0, 0]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 1, 1, 0]
    assert inputs.sources.tolist() == [-1, -1, -1, -1, -1, 2, -1]
    inputs.write(StepPlan(None, ()), {})
    buffer.copy_to_device()
    assert not inputs.token_ids.any() and not inputs.positions.any() and (inputs.sources == -1).all()
