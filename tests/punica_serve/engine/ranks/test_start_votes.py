"""The votes of ranks on a part of the start."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.start_votes import StartVotes
from punica_serve.errors import ConfigError


def _votes(size: int, timeout_s: float = 10.0) -> list[StartVotes]:
    store = HashStore()
    return [StartVotes(store, Rank(index, size), timeout_s) for index in range(size)]


@pytest.mark.parametrize(
    ("faults", "agreed"),
    [
        ((None, None, None), None),
        ((None, "no memory", None), "rank 1 can't add up: no memory"),
        (("a", None, "c"), "rank 0 can't add up: a"),
    ],
)
def test_all_ranks_take_the_first_fault_by_name(faults: tuple[str | None, ...], agreed: str | None) -> None:
    with ThreadPoolExecutor(len(faults)) as threads:
        said = threads.map(lambda votes, fault: votes.agree("add up", fault), _votes(len(faults)), faults)
        assert list(said) == [agreed] * len(faults)


def test_a_fault_is_seen_by_ranks_that_have_not_ended_the_part() -> None:
    first, second = _votes(2)
    assert first.fault("add up") is None
    second.say("map", None)
    second.say("add up", "no kernel")
    assert first.fault("add up") == "rank 1 can't add up: no kernel"
    assert first.fault("map") is None


@pytest.mark.parametrize(("fault", "reason"), [(None, ""), ("no memory", r" \(rank 1 can't map: no memory\)")])
def test_ranks_that_do_not_answer_are_named(fault: str | None, reason: str) -> None:
    votes = _votes(3, timeout_s=0.01)
    with pytest.raises(ConfigError, match=rf"^rank 0 and rank 2 could not map within 0\.01 s{reason}; set"):
        votes[1].agree("map", fault)
