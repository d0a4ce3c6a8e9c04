"""The batching rules that the engine's planner and the simulator share: pages, admission, prefill and preemption.

The two keep their requests in different ways: the engine as objects with tokens and pages, the simulator as columns of
numbers, which makes its steps several times faster. Both leave these decisions to this module. Free of torch.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar


class _Running(Protocol):
    @property
    def is_decoding(self) -> bool: ...


T = TypeVar("T")
RunningT = TypeVar("RunningT", bound=_Running)


def pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that hold so many tokens."""
    return -(-num_tokens // page_size)


def pages_to_start(num_tokens: int, page_size: int) -> int:
    """Pages that a request takes when it is admitted: for its tokens and one more."""
    return pages_for(num_tokens + 1, page_size)


def may_admit(num_pages: int, *, num_free_pages: int, num_running: int, max_batch_size: int) -> bool:
    """Whether there is room for the first waiting request, which takes ``num_pages``.

    Requests are admitted first come, first served: while there is no room for the first, it blocks the others.
    """
    return num_running < max_batch_size and num_pages <= num_free_pages


def next_prefill(ready: Iterable[RunningT]) -> RunningT | None:
    """The request whose prefill is in the next step: the first of the running ones by arrival that does not decode.

    ``ready`` has those whose adapters are on the device.
    """
    return next((request for request in ready if not request.is_decoding), None)


def chunk_length(num_uncached: int, prefill_budget_tokens: int) -> int:
    """Tokens of a prefill that one step takes."""
    return min(num_uncached, prefill_budget_tokens)


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
