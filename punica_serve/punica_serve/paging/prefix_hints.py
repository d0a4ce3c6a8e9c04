"""The beginnings of prompts that a worker's reports name, so that the scheduler finds GPUs that know them."""

from collections import OrderedDict

#: The most hints in a report, also in that which tells a new scheduler of what is known.
MAX_HINTS = 256


class PrefixHints:
    """Hints of beginnings that became known or were found. The oldest are dropped where there are too many."""

    def __init__(self) -> None:
        #: Oldest first.
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._untold: OrderedDict[int, None] = OrderedDict()

    def note(self, hint: int) -> None:
        """A beginning has become known, or was found again."""
        for hints in (self._kept, self._untold):
            hints[hint] = None
            hints.move_to_end(hint)
            if len(hints) > MAX_HINTS:
                hints.popitem(last=False)

    def take(self) -> tuple[int, ...]:
        """Those to put into the next report, the newest last, as the scheduler orders them."""
        if not self._untold:
            return ()
        taken = tuple(self._untold)
        self._untold.clear()
        return taken

    def reset(self) -> None:
        """Puts all that are kept into the next report, for a scheduler that may be new."""
        self._untold = self._kept.copy()
