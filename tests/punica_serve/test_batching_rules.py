"""The rules by which the engine's planner and the simulator both decide."""

from dataclasses import dataclass

import pytest

from punica_serve.batching_rules import (
    default_max_prefills,
    give_pages,
    may_admit,
    pages_for,
    share_budget,
    take_missing,
)
from punica_serve.prefill_chunks import ChunkCosts, PrefillBudget


@pytest.mark.parametrize(("num_tokens", "num_pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_a_partly_filled_page_counts(num_tokens: int, num_pages: int) -> None:
    assert pages_for(num_tokens, 16) == num_pages


@pytest.mark.parametrize(
    ("num_pages", "num_running", "is_admitted"), [(4, 7, True), (5, 7, False), (4, 8, False)], ids=str
)
def test_a_request_is_admitted_if_batch_and_cache_have_room(
    num_pages: int, num_running: int, is_admitted: bool
) -> None:
    assert may_admit(num_pages, num_free_pages=4, num_running=num_running, max_batch_size=8) is is_admitted


@dataclass
class Running:
    name: str
    num_uncached: int
    num_cached: int = 0


def shares(budget_tokens: int, max_prefills: int | None, *running: tuple[str, int]) -> list[tuple[str, int]]:
    requests = (Running(*each) for each in running)
    chosen = share_budget(requests, PrefillBudget(budget_tokens), max_prefills=max_prefills)
    return [(request.name, num_tokens) for request, num_tokens in chosen]


def test_the_first_request_prefills() -> None:
    assert shares(512, 1, ("b", 9), ("c", 9)) == [("b", 9)]
    assert shares(512, 1) == []


def test_prefills_share_the_budget_and_the_last_is_cut() -> None:
    assert shares(512, 1, ("a", 900)) == [("a", 512)]
    assert shares(20, 4, ("a", 8), ("c", 8), ("d", 9), ("e", 9)) == [("a", 8), ("c", 8), ("d", 4)]
    assert shares(20, 2, ("a", 3), ("b", 3), ("c", 3)) == [("a", 3), ("b", 3)]
    assert shares(20, None, *[(f"{number}", 2) for number in range(30)])[-1] == ("9", 2)


def test_prefills_behind_long_contexts_share_what_a_step_may_cost() -> None:
    budget = PrefillBudget(512, ChunkCosts(dense=100.0, attention=((None, 0.05),)))
    running = [Running("long", 30_000, 20_000), Running("short", 400), Running("next", 400)]
    (first, num_tokens), *others = share_budget(running, budget, max_prefills=3)
    assert (first.name, num_tokens) == ("long", 64) and not others
    shares = share_budget(running[1:], budget, max_prefills=3)
    assert [num_tokens for _, num_tokens in shares] == [400, 112]


def test_one_prefill_up_to_the_papers_batch_and_more_beyond() -> None:
    assert [default_max_prefills(size) for size in (1, 32, 63, 64, 128, 256)] == [1, 1, 1, 2, 4, 8]


class Cache:
    """Pages of running requests, oldest first; each holds two."""

    def __init__(self, running: str, num_free: int) -> None:
        self.pages = dict.fromkeys(running, 2)
        self.num_free = num_free

    def give(self, request: str, num_pages: int) -> None:
        self.pages[request] += num_pages
        self.num_free -= num_pages

    def preempt_newest(self) -> str:
        request, num_pages = self.pages.popitem()
        self.num_free += num_pages
        return request


@pytest.mark.parametrize(
    ("num_free", "due", "preempted", "pages"),
    [
        (3, "abc", "", {"a": 3, "b": 3, "c": 3, "d": 2}),
        (1, "ab", "d", {"a": 3, "b": 3, "c": 2}),
        (0, "abcd", "dc", {"a": 3, "b": 3}),
        (0, "d", "d", {"a": 2, "b": 2, "c": 2}),
    ],
    ids=["enough pages", "the newest gives its pages", "two give theirs", "the newest lacks a page itself"],
)
def test_the_oldest_get_pages_first_from_the_newest(
    num_free: int, due: str, preempted: str, pages: dict[str, int]
) -> None:
    cache = Cache("abcd", num_free)
    lacking = [(request, 1) for request in due]
    result = give_pages(lacking, num_free=lambda: cache.num_free, give=cache.give, preempt_newest=cache.preempt_newest)
    assert "".join(result) == preempted
    assert cache.pages == pages


@pytest.mark.parametrize(
    ("num_missing", "gets", "pages"),
    [(2, True, 4), (3, False, 2), (0, True, 2), (-1, True, 2)],
    ids=["as many as are free", "more than are free", "none is missing", "it has one too many"],
)
def test_a_prefill_gets_all_pages_of_its_chunk_or_none(num_missing: int, gets: bool, pages: int) -> None:
    cache = Cache("a", num_free=2)
    assert take_missing("a", num_missing, num_free=cache.num_free, give=cache.give) is gets
    assert cache.pages["a"] == pages
