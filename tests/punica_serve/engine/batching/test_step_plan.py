"""A step's rows and what the device needs for them."""

import pytest

from punica_serve.base_model.lora_layout import LoraKind
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.protocol import AdapterRef, Request, SamplingParams


def _sequence(name: str, adapter: str | None = None, *, num_prompt: int = 4, rank: int = 8) -> Sequence:
    ref = AdapterRef(adapter, "", 1, {"q_proj": rank}) if adapter else None
    return Sequence.of(Request(name, 0, (1,) * num_prompt, SamplingParams(), ref), 64)


def _names(sequences: tuple[Sequence, ...]) -> str:
    return " ".join(sequence.request_id for sequence in sequences)


def test_rows_of_one_adapter_are_adjacent_and_decodes_begin_with_the_last_prefills() -> None:
    prefills = [PrefillChunk.of(_sequence(name, name[0]), 4) for name in ("x0", "y1", "x2")]
    decodes = [_sequence(name, None if name[0] == "b" else name[0]) for name in ("z3", "b4", "y5", "z6", "b7", "y8")]
    plan = StepPlan.by_adapter(prefills, decodes)
    assert _names(plan.sequences) == "x0 x2 y1 y5 y8 z3 z6 b4 b7"
    assert plan.num_adapters == 3 and plan.num_prefill_tokens == 12


def test_only_a_chunk_that_ends_with_the_newest_token_has_one_sampled() -> None:
    chunked, whole, decode = _sequence("chunked", num_prompt=9), _sequence("whole"), _sequence("decode")
    chunked.num_cached = 2
    first, last = PrefillChunk.of(chunked, 6), PrefillChunk.of(whole, 4)
    assert (first.start, first.end, first.is_last, last.is_last) == (2, 8, False, True)
    plan = StepPlan((first, last), (decode,))
    assert _names(plan.sampled) == "whole decode"

    plan.advance()
    assert [each.num_cached for each in plan.sequences] == [8, 4, 1]
    assert [each.num_in_flight for each in plan.sequences] == [0, 1, 1]


@pytest.mark.parametrize(
    ("ranks", "kind"),
    [([], LoraKind.NONE), ([128, 8], LoraKind.USUAL), ([8, 129], LoraKind.WIDE), ([256], LoraKind.WIDE)],
)
def test_a_steps_kind_is_the_highest_of_its_requests(ranks: list[int], kind: LoraKind) -> None:
    decodes = (_sequence("base"), *(_sequence("r", str(rank), rank=rank) for rank in ranks))
    assert StepPlan((), decodes).lora_kind is kind
