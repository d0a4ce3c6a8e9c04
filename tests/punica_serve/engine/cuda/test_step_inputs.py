"""A step's inputs as kernels read them on the device."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from punica_kernels.lora_table import TILE_HEADER_WORDS, LoraTableShape
from punica_serve.base_model.lora_layout import LoraKind, LoraLimits
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.cuda_runner import table_shapes
from punica_serve.engine.cuda.step_input_buffer import FIRST_SECTIONS, StepInputBuffer
from punica_serve.engine.cuda.step_inputs import StepInputs
from punica_serve.protocol import AdapterRef, LoraGroup, Request, SamplingParams

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
    assert first[TILE_HEADER_WORDS:] == list(range(32)), "the highest rank comes first"
    assert not inputs.tables(LoraKind.USUAL)["qkv"].words.any()
    assert inputs.tables(LoraKind.NONE) == {}


class _Steps:
    """Steps of one bucket, whose adapters' pages are told by name."""

    def __init__(self) -> None:
        self.pages: dict[str, dict[LoraGroup, list[int]]] = {}
        self.inputs, self.buffer = _inputs(BatchBucket(16, 3, max_prefills=2))

    def tables(self, plan: StepPlan, kind: LoraKind, *, anew: bool = False) -> list[list[int]]:
        """What kernels read of a step of that kind. ``anew``: where there was no step before it."""
        inputs, buffer = _inputs(self.inputs.bucket) if anew else (self.inputs, self.buffer)
        inputs.write(plan, {})
        inputs.write_lora(plan, self.pages.__getitem__, kind)
        buffer.copy_to_device()
        return [table.words.tolist() for table in inputs.tables(kind).values()]


def _lora_sequence(rank: int, num_tokens: int = 2, invoked_at: int = 0) -> Sequence:
    sequence = Sequence.of(Request("r", 0, (1,) * num_tokens, SamplingParams(), _ref(rank)), 64)
    sequence.num_cached, sequence.invoked_at = num_tokens - 1, invoked_at
    return sequence


def test_a_step_like_the_one_before_leaves_the_tables_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, plan = _Steps(), StepPlan((), (_lora_sequence(8), _lora_sequence(16)))
    steps.pages = {"8": {"qkv": [3]}, "16": {"qkv": [5, 6]}}
    before = steps.tables(plan, LoraKind.USUAL)
    with monkeypatch.context() as patch:
        patch.setattr(LoraTableShape, "fill", lambda *_: pytest.fail("the tables were written again"))
        assert steps.tables(plan, LoraKind.USUAL) == before
    steps.pages["16"] = {"qkv": [5, 7]}
    assert steps.tables(plan, LoraKind.USUAL) != before, "the adapter was loaded to other pages"


#: Rank, tokens, and where the adapter is invoked.
_PREFILL = st.tuples(st.sampled_from([8, 16]), st.integers(1, 8), st.integers(0, 8))
_DECODES = st.lists(st.sampled_from([8, 16, 24]), max_size=3)
_KINDS = st.sampled_from([LoraKind.USUAL, LoraKind.WIDE])
_Step = tuple[list[tuple[int, int, int]], list[int], LoraKind, int]


def _chunk(rank: int, num_tokens: int, invoked_at: int) -> PrefillChunk:
    return PrefillChunk(_lora_sequence(rank, num_tokens, invoked_at), 0, num_tokens, is_last=True)


@given(st.lists(st.tuples(st.lists(_PREFILL, max_size=2), _DECODES, _KINDS, st.integers(0, 2)), max_size=12))
@example([([(8, 6, 2)], [], LoraKind.WIDE, 0), ([(8, 2, 2), (8, 4, 0)], [], LoraKind.WIDE, 0)])
def test_the_tables_of_any_steps_are_those_of_steps_alone(history: list[_Step]) -> None:
    """Adapters come and go, and are loaded to other pages; the head's tables have the rows that are sampled alone."""
    steps = _Steps()
    for prefills, decodes, kind, first_page in history:
        for rank in (8, 16, 24):
            pages = list(range(first_page, first_page + rank // 8))
            steps.pages[str(rank)] = {"qkv": pages, "o": pages, "head": pages}
        plan = StepPlan.by_adapter([_chunk(*each) for each in prefills], map(_lora_sequence, decodes))
        assert steps.tables(plan, kind) == steps.tables(plan, kind, anew=True)
