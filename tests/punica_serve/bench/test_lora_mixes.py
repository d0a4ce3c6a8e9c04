"""The batches that a profile measures."""

from punica_serve.bench.lora_mixes import RANKS, mixes

_SIZES = (1, 4, 16)
_NUM_ADAPTERS = {8: 16, 16: 16, 32: 8, 64: 4, 128: 2}


def test_each_size_has_batches_of_each_kind() -> None:
    found = mixes(_SIZES, _NUM_ADAPTERS)
    for size in _SIZES:
        kinds = [mix.kind for mix in found if len(mix.adapters) == size]
        assert {"equal", "shared", "mixed", "held_out"} == set(kinds)
    assert found == mixes(_SIZES, _NUM_ADAPTERS), "a profile can be measured again"


def test_equal_batches_have_a_different_adapter_of_one_rank_for_each_row() -> None:
    equal = [mix.adapters for mix in mixes(_SIZES, _NUM_ADAPTERS) if mix.kind == "equal"]
    assert all(len(set(adapters)) == len(adapters) for adapters in equal)
    assert {adapters[0].rank for adapters in equal} == set(RANKS)
    assert max(len(adapters) for adapters in equal if adapters[0].rank == 128) == 1, "there are only two adapters"


def test_no_batch_asks_for_an_adapter_that_there_is_not() -> None:
    for mix in mixes(_SIZES, _NUM_ADAPTERS):
        assert all(adapter.number < _NUM_ADAPTERS[adapter.rank] for adapter in mix.adapters)
