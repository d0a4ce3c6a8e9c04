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


def test_all_ranks_hear_the_words_of_all() -> None:
    with ThreadPoolExecutor(3) as threads:
        words = threads.map(lambda votes, word: votes.collect("count", word), _votes(3), "abc")
        assert list(words) == [["a", "b", "c"]] * 3


def test_those_that_say_no_word_in_time_are_named() -> None:
    first, _ = _votes(2, timeout_s=0.01)
    with pytest.raises(ConfigError, match=r"^rank 1 could not count within 0\.01 s; set `engine\.exchange` to nccl"):
        first.collect("count", "1")


def test_a_meeting_ends_with_the_last_rank_or_by_its_deadline_or_by_a_check() -> None:
    first, second, _ = _votes(3)
    assert second.meet("join", 0.01, lambda: None) == ["rank 0", "rank 2"]
    assert first.meet("join", 0.01, lambda: None) == ["rank 2"]

    def check() -> None:
        raise ConfigError("lost")

    with pytest.raises(ConfigError, match="lost"):
        first.meet("join", 300.0, check)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda votes: votes.meet("map", 10.0, lambda: None), _votes(3))) == [[], [], []]
