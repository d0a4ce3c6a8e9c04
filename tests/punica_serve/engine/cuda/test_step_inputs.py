"""A step's inputs as kernels read them on the device."""

import pytest
import torch

from punica_kernels.lora_table import LoraTableShape
from punica_serve.base_model.lora_layout import LoraKind, LoraLimits
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.cuda_runner import table_shapes
from punica_serve.engine.cuda.step_input_buffer import FIRST_SECTIONS, StepInputBuffer
from punica_serve.engine.cuda.step_inputs import StepInputs
from punica_serve.protocol import AdapterRef, Request, SamplingParams

ALL = LoraLimits(256, vocabulary=True)


def _sequence(*token_ids: int, num_cached: int = 0) -> Sequence:
    sequence = Sequence.of(Request("r", 0, token_ids, SamplingParams()), 64)
    sequence.num_cached = num_cached
    return sequence


def _inputs(bucket: BatchBucket) -> tuple[StepInputs, StepInputBuffer]:
    shapes = table_shapes(bucket, ALL)
    buffer = StepInputBuffer(StepInputs.sections(bucket, shapes), torch.device("cpu"))
    return StepInputs(bucket, shapes, buffer), buffer


def test_rows_are_the_prefills_then_the_decodes_and_those_in_flight_name_their_source() -> None:
    inputs, buffer = _inputs(BatchBucket(4, 3))
    known, unknown = _sequence(11, 12, num_cached=1), _sequence(13, num_cached=1)
    unknown.num_in_flight = 1
    chunk = PrefillChunk(_sequence(5, 6, 7, 8, 9), 1, 4, is_last=False)
    for _ in range(2):  # whatever the step before has left
        inputs.write(StepPlan((chunk,), (known, unknown)), {unknown: 2})
        buffer.copy_to_device()
    assert inputs.token_ids.tolist() == [0, 6, 7, 8, 12, 0, 0]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 1, 1, 0]
    assert inputs.sources.tolist() == [-1, -1, -1, -1, -1, 2, -1]
    inputs.write(StepPlan((), ()), {})
    buffer.copy_to_device()
    assert not inputs.token_ids.any() and not inputs.positions.any() and (inputs.sources == -1).all()


def _ref(rank: int) -> AdapterRef:
    return AdapterRef(f"{rank}", "", 1, {"q_proj": rank})


def test_steps_without_high_ranks_have_the_tables_that_they_had() -> None:
    """Tables of rank 128 fix the launches and their configurations, whatever the pool may hold."""
    bucket = BatchBucket(16, 3)
    shapes = table_shapes(bucket, ALL)
    usual, wide = (shapes[kind]["qkv"] for kind in (LoraKind.USUAL, LoraKind.WIDE))
    assert usual == LoraTableShape(19, 5, 16) and wide == LoraTableShape(19, 5, 32)
    sections = list(StepInputs.sections(bucket, shapes))
    assert sections.index(FIRST_SECTIONS[LoraKind.USUAL]) == 6, "the larger tables are not copied with them"


@pytest.mark.parametrize(
    ("limits", "pages"),
    [
        (LoraLimits(), {LoraKind.USUAL: 16}),
        (LoraLimits(20), {LoraKind.USUAL: 3}),
        (LoraLimits(256), {LoraKind.USUAL: 16, LoraKind.WIDE: 32}),
        (LoraLimits(64, vocabulary=True), {LoraKind.USUAL: 8, LoraKind.WIDE: 8}),
    ],
)
def test_an_engine_has_tables_for_what_its_limits_let_in(limits: LoraLimits, pages: dict[LoraKind, int]) -> None:
    shapes = table_shapes(BatchBucket(16, 3), limits)
    assert {kind: tables["qkv"].max_rank_pages for kind, tables in shapes.items()} == pages
    assert ("head" in shapes.get(LoraKind.WIDE, {})) is limits.vocabulary
    sections = StepInputs.sections(BatchBucket(16, 3), shapes)
    assert ("wide_qkv" in sections, "wide_head" in sections) == (LoraKind.WIDE in pages, limits.vocabulary)


def test_each_kind_writes_its_own_tables() -> None:
    inputs, buffer = _inputs(BatchBucket(0, 2))
    decodes = tuple(Sequence.of(Request("r", 0, (1, 2), SamplingParams(), _ref(rank)), 64) for rank in (8, 256))
    inputs.write_lora(StepPlan((), decodes), lambda digest: {"qkv": list(range(int(digest) // 8))}, LoraKind.WIDE)
    buffer.copy_to_device(FIRST_SECTIONS[LoraKind.WIDE])
    table = inputs.tables(LoraKind.WIDE)["qkv"]
    first = table.words[: table.shape.tile_words].tolist()
    assert first[5:] == list(range(32)), "the highest rank comes first"
    assert not inputs.tables(LoraKind.USUAL)["qkv"].words.any()
    assert inputs.tables(LoraKind.NONE) == {}
