"""A bounded number of metric labels for an unbounded number of keys."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

#: The label of all other keys; a key with this very name shares it.
OTHER = "other"

#: After this many uses all counts are halved, so that keys busy in the past make room, and few keys are counted.
WINDOW_USES = 4096
#: How many times busier than the least busy labelled key another must be to replace it, so that two don't alternate.
LEAD = 2


class BoundedLabels(Generic[T]):
    """Keeps a value for each of the most used keys, and one for all others together.

    A labelled key's value starts empty when the key gets its label and is dropped with it; what was counted under
    "other" stays there. So each use is counted once, and no counter decreases while its label exists.
    """

    def __init__(self, num_named: int, make: Callable[[], T]) -> None:
        self._num_named = num_named
        self._make = make
        self._named: dict[str, T] = {}
        self._others = make()
        self._num_uses: Counter[str] = Counter()
        self._window_left = WINDOW_USES

    def use(self, key: str) -> T:
        """Counts a use of the key, and returns the value to update."""
        self._count(key)
        if (own := self._named.get(key)) is not None:
            return own
        if key == OTHER or not self._make_room(key):
            return self._others
        own = self._named[key] = self._make()
        return own

    def names(self) -> list[str]:
        """Returns the labelled keys."""
        return sorted(self._named)

    def items(self) -> Iterator[tuple[str, T]]:
        """Yields labels and values; the last is that of all other keys."""
        yield from sorted(self._named.items(), key=lambda item: item[0])
        yield OTHER, self._others

    def _count(self, key: str) -> None:
        self._num_uses[key] += 1
        self._window_left -= 1
        if not self._window_left:
            self._window_left = WINDOW_USES
            self._num_uses = Counter({key: uses // 2 for key, uses in self._num_uses.items() if uses > 1})

    def _make_room(self, key: str) -> bool:
        """Returns whether the key gets a label; the least busy key may lose its own."""
        if len(self._named) < self._num_named:
            return True
        if not self._named:
            return False
        least = min(self._named, key=self._num_uses.__getitem__)
        if self._num_uses[key] <= LEAD * self._num_uses[least]:
            return False
        del self._named[least]
        return True
