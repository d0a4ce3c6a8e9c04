import re

import pytest

from punica_serve.base_model.lora_layout import (
    LORA_GROUPS,
    USUAL_LIMITS,
    VOCABULARY_GROUPS,
    LoraKind,
    LoraLimits,
    pages_needed,
    pool_pages,
)

#: All that can be served.
ALL = LoraLimits(256, vocabulary=True)


@pytest.mark.parametrize(
    ("ranks", "pages"),
    [
        ({}, {}),
        ({"q_proj": 1}, {"qkv": 1}),
        ({"q_proj": 8, "v_proj": 9}, {"qkv": 2}),
        ({"o_proj": 16, "down_proj": 17, "up_proj": 64}, {"o": 2, "gate_up": 8, "down": 3}),
        ({"qkv_proj": 9, "o_proj": 8, "gate_up_proj": 17, "down_proj": 1}, {"qkv": 2, "o": 1, "gate_up": 3, "down": 1}),
    ],
)
def test_an_adapter_takes_the_pages_of_its_highest_rank_in_each_group(
    ranks: dict[str, int], pages: dict[str, int]
) -> None:
    assert pages_needed(ranks) == pages


@pytest.mark.parametrize(
    ("num_lora_pages", "limits", "num_vocabulary_pages"),
    [
        (1, ALL, 1),
        (31, ALL, 31),
        (64, ALL, 32),
        (512, ALL, 64),
        (64, LoraLimits(16, vocabulary=True), 8),
    ],
)
def test_the_vocabulary_has_few_pages_but_room_for_the_highest_rank_that_a_layer_has_room_for(
    num_lora_pages: int, limits: LoraLimits, num_vocabulary_pages: int
) -> None:
    pages = pool_pages(num_lora_pages, limits)
    assert {pages[group] for group in VOCABULARY_GROUPS} == {num_vocabulary_pages}
    assert {pages[group] for group in LORA_GROUPS} == {num_lora_pages}


def test_a_pool_without_the_vocabulary_has_no_pages_of_it() -> None:
    assert pool_pages(256, ALL).keys() - pool_pages(256, USUAL_LIMITS).keys() == VOCABULARY_GROUPS.keys()


@pytest.mark.parametrize(
    ("limits", "ranks", "reason"),
    [
        (USUAL_LIMITS, {"q_proj": 128}, None),
        (LoraLimits(256), {"q_proj": 8, "o_proj": 256}, None),
        (LoraLimits(16, vocabulary=True), {"lm_head": 16}, None),
        (
            LoraLimits(16),
            {"q_proj": 16, "o_proj": 17},
            "rank 17 in o_proj, .* is 16; raise `engine.max_lora.* to 17",
        ),
        (LoraLimits(256), {"q_proj": 300}, "256 is the most"),
        (USUAL_LIMITS, {"q_proj": 8, "lm_head": 8}, "updates lm_head, and `engine.lora_vocabulary` is false; set it"),
        (USUAL_LIMITS, {"lm_head": 8, "embed_tokens": 8}, "updates embed_tokens and lm_head"),
    ],
)
def test_limits_name_the_setting_that_lets_an_adapter_in(
    limits: LoraLimits, ranks: dict[str, int], reason: str | None
) -> None:
    told = limits.why_not(ranks)
    assert told is None if reason is None else told is not None and re.search(reason, told)


def test_steps_have_kinds_for_the_adapters_that_are_let_in() -> None:
    assert USUAL_LIMITS.kinds == (LoraKind.NONE, LoraKind.USUAL)
    assert LoraLimits(129).kinds == LoraLimits(8, vocabulary=True).kinds == tuple(LoraKind)
    assert [LoraLimits(200).rank_pages(kind) for kind in LoraKind] == [0, 16, 25]
