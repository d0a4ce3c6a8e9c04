"""The beginnings of prompts that a worker's reports name, so that the scheduler finds GPUs that know them."""

from collections import OrderedDict

#: The most hints in a report, and the most that are told again to a new scheduler, which keeps as many of a GPU.
MAX_TOLD, MAX_KEPT = 64, 1024


class PrefixHints:
    """Hints of beginnings that have become known or were found. The oldest are dropped where there are too many."""

    def __init__(self) -> None:
        #: Oldest first.
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._untold: OrderedDict[int, None] = OrderedDict()

    def note(self, hint: int) -> None:
        """A beginning has become known, or was found again."""
        for hints in (self._kept, self._untold):
            hints[hint] = None
            hints.move_to_end(hint)
            if len(hints) > MAX_KEPT:
                hints.popitem(last=False)

    def take(self) -> tuple[int, ...]:
        """The newest that were not told yet, the newest last; older ones go into later reports."""
        if not self._untold:
            return ()
        taken = [self._untold.popitem()[0] for _ in range(min(len(self._untold), MAX_TOLD))]
        return tuple(reversed(taken))

    def reset(self) -> None:
        """Has them told again, because the scheduler may be a new one."""
        self._untold = self._kept.copy()
