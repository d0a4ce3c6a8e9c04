"""A step's inputs as the device gets them."""

import torch

from punica_kernels.lora_table import LoraTableShape
from punica_serve.engine.planner import PrefillChunk, StepPlan
from punica_serve.engine.sequence import Sequence
from punica_serve.engine.step_inputs import StepInputs
from punica_serve.engine.step_shape import StepShape
from punica_serve.engine.step_words import StepWords
from punica_serve.protocol import Request, SamplingParams


def _sequence(*token_ids: int, num_cached: int = 0) -> Sequence:
    sequence = Sequence.of(Request("r", 0, token_ids, SamplingParams()), 64)
    sequence.num_cached = num_cached
    return sequence


def _inputs(shape: StepShape, table: LoraTableShape) -> tuple[StepInputs, StepWords]:
    words = StepWords(StepInputs.parts(shape, table), torch.device("cpu"))
    return StepInputs(shape, table, words), words


def test_rows_are_the_prefills_then_the_decodes_and_those_in_flight_name_their_source() -> None:
    inputs, words = _inputs(StepShape(4, 3), LoraTableShape(7, 5, 2))
    known, unknown = _sequence(11, 12, num_cached=1), _sequence(13, num_cached=1)
    unknown.num_in_flight = 1
    chunk = PrefillChunk(_sequence(5, 6, 7, 8, 9), 1, 4, is_last=False)
    for _ in range(2):  # whatever the step before has left
        inputs.write(StepPlan(chunk, (known, unknown)), {unknown: 2})
        words.queue()
    assert inputs.token_ids.tolist() == [0, 6, 7, 8, 12, 0, 0]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 1, 1, 0]
    assert inputs.sources.tolist() == [-1, -1, -1, -1, -1, 2, -1]
    inputs.write(StepPlan(None, ()), {})
    words.queue()
    assert not inputs.token_ids.any() and not inputs.positions.any() and (inputs.sources == -1).all()
