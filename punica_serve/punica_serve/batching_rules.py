"""The batching rules that the engine's planner and the simulator share: pages, admission, prefill and preemption.

The two keep their requests in different ways: the engine as objects with tokens and pages, the simulator as columns of
numbers, which makes its steps several times faster. Both leave these decisions to this module. Free of torch.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from punica_serve.prefill_chunks import PrefillBudget


class _Running(Protocol):
    @property
    def num_uncached(self) -> int: ...

    @property
    def num_cached(self) -> int: ...


T = TypeVar("T")
RunningT = TypeVar("RunningT", bound=_Running)


def pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that hold so many tokens."""
    return -(-num_tokens // page_size)


def may_admit(num_pages: int, *, num_free_pages: int, num_running: int, max_batch_size: int) -> bool:
    """Whether there is room for the first waiting request, which takes ``num_pages``.

    Requests are admitted first come, first served: while there is no room for the first, it blocks the others.
    """
    return num_running < max_batch_size and num_pages <= num_free_pages


def default_max_prefills(max_batch_size: int) -> int:
    """Prefills in one step where the config says nothing: one for each 32 requests, so that a full batch stays full
    with answers of 32 tokens or more. Up to 32 that is Punica's one (section 5).
    """
    return max(1, max_batch_size // 32)


def _never(request: object, other: object) -> bool:
    return False


def share_budget(
    prefilling: Iterable[RunningT],
    budget: PrefillBudget,
    *,
    max_prefills: int | None,
    awaits: Callable[[RunningT, RunningT], bool] = _never,
) -> list[tuple[RunningT, int]]:
    """The prefills of the next step, and how many tokens of each: in the order of ``prefilling``, up to the budget.

    ``prefilling`` has the running requests that do not decode and whose adapters are there, as `PrefillTurns` orders
    them. The last one is cut where the budget ends; none behind it is looked at. ``max_prefills`` of None sets no
    limit. A request that ``awaits`` one that is chosen, since it will share what that one computes, stays out of this
    step alone: so nothing is waited for that does not run.
    """
    chosen: list[tuple[RunningT, int]] = []
    num_left, allowance = budget.tokens, budget.allowance
    for request in prefilling:
        if any(awaits(request, other) for other, _ in chosen):
            continue
        num_tokens = budget.longest(request.num_cached, min(request.num_uncached, num_left), allowance)
        chosen.append((request, num_tokens))
        if num_tokens == num_left or num_tokens < request.num_uncached or len(chosen) == max_prefills:
            break
        num_left -= num_tokens
        allowance -= budget.cost(request.num_cached, num_tokens)
    return chosen


def take_missing(request: T, num_missing: int, *, num_free: int, give: Callable[[T, int], None]) -> bool:
    """Gives a prefill the pages that its next chunk lacks: what it found may have moved its window past those it had.

    False if too few are free: it stays out of this step, and the next plan preempts another request.
    """
    if num_missing > num_free:
        return False
    if num_missing > 0:
        give(request, num_missing)
    return True


def give_pages(
    due: Iterable[tuple[T, int]],
    *,
    num_free: Callable[[], int],
    give: Callable[[T, int], None],
    preempt_newest: Callable[[], T],
) -> list[T]:
    """Gives decoding requests the pages for their next tokens. Returns those that were preempted for it.

    ``due`` has the requests that lack pages, oldest first, and how many. While pages are missing, the newest running
    request is preempted, which preserves first come, first served (Punica, section 5.3, calls it evict). It may be the
    very request that lacks them.
    """
    preempted: list[T] = []
    for request, num_missing in due:
        while num_missing > num_free() and request not in preempted:
            preempted.append(preempt_newest())
        if request not in preempted:
            give(request, num_missing)
    return preempted
