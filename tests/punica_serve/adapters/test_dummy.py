from collections import Counter
from itertools import pairwise

import pytest

from punica_serve.adapters.dummy import dummy_adapters, dummy_name, dummy_number
from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.config.dummy_adapters_section import DummyAdaptersConfig
from punica_serve.protocol import AdapterRef
from punica_serve.shapes import shape_of
from tiny_config import tiny_config

MODEL = shape_of("llama-2-7b")


def _refs(count: int, rank: int | tuple[int, ...], modules: str = "all") -> dict[str, AdapterRef]:
    dummies = DummyAdaptersConfig.model_validate({"count": count, "rank": rank, "modules": modules})
    return dict(dummy_adapters(dummies, MODEL))


def test_dummies_are_as_large_as_files_of_their_rank() -> None:
    (ref,) = _refs(1, 16).values()
    assert ref.num_bytes == 79_953_920, "40 million weights of 16 bits"
    assert pages_needed(ref.ranks) == {"qkv": 2, "o": 2, "gate_up": 2, "down": 2}


def test_modules_can_be_those_of_attention_inputs_alone() -> None:
    (ref,) = _refs(1, 16, "qkv").values()
    assert pages_needed(ref.ranks) == {"qkv": 2}
    assert ref.num_bytes == 32 * 16 * 3 * (4096 + 4096) * 2


def test_each_has_a_name_a_number_and_a_digest_of_its_own() -> None:
    refs = _refs(3, 16)
    assert list(refs) == [dummy_name(number) for number in range(3)]
    assert [dummy_number(ref) for ref in refs.values()] == [0, 1, 2]
    kinds = [(8, "all"), (16, "all"), (16, "qkv")]
    digests = {ref.digest for rank, modules in kinds for ref in _refs(3, rank, modules).values()}
    assert len(digests) == 9 and all(len(digest) == 64 for digest in digests)


def test_a_list_of_ranks_is_shared_out_equally() -> None:
    counts = Counter(ref.ranks["q_proj"] for ref in _refs(1000, (8, 16, 64, 64)).values())
    assert counts == {8: 250, 16: 250, 64: 500}


def test_ranks_are_independent_of_numbers_and_the_same_every_time() -> None:
    """The lowest numbers are the most popular adapters: no rank is rare or frequent among them."""
    ranks = [ref.ranks["q_proj"] for ref in _refs(1000, (8, 128)).values()]
    assert ranks == [ref.ranks["q_proj"] for ref in _refs(1000, (8, 128)).values()]
    for start in range(0, 1000, 200):
        assert ranks[start : start + 200].count(8) == pytest.approx(100, abs=30)
    changes = sum(first != second for first, second in pairwise(ranks))
    assert changes == pytest.approx(500, abs=80), "a rank does not tell the next one's"


def test_adapters_of_one_rank_share_what_they_have_in_common() -> None:
    assert len({id(ref.ranks) for ref in _refs(1000, (8, 16, 128)).values()}) == 3


@pytest.mark.parametrize(("modules", "names"), [("qkv", ["qkv_proj"]), ("all", ["qkv_proj", "o_proj", "gate_up_proj"])])
def test_dummies_have_the_modules_of_their_model(modules: str, names: list[str]) -> None:
    dummies = DummyAdaptersConfig.model_validate({"count": 1, "rank": 16, "modules": modules})
    (ref,) = dummy_adapters(dummies, tiny_config(fused_projections=True)).values()
    assert list(ref.ranks)[:3] == names
    assert pages_needed(ref.ranks)["qkv"] == 2
