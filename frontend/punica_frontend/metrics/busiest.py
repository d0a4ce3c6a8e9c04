"""A bounded number of names for an unbounded number of keys."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

#: What all keys without a name of their own go by; a key that is called so too.
OTHER = "other"

#: After so many uses all counts are halved: who was busy yesterday makes room, and so few keys are ever counted.
WINDOW_USES = 4096
#: How much busier than the least busy named key another must be to take its place, so that two don't change for ever.
LEAD = 2


class Busiest(Generic[T]):
    """Something for each of the keys that are used most, and one of the same for all others together.

    What a named key has begins empty when it gets its name and goes when it loses it, and what was counted under
    "other" stays there. So each use is counted once, and no count ever goes down while its name is there.
    """

    def __init__(self, num_named: int, make: Callable[[], T]) -> None:
        self._num_named = num_named
        self._make = make
        self._named: dict[str, T] = {}
        self._others = make()
        self._num_uses: Counter[str] = Counter()
        self._window_left = WINDOW_USES

    def use(self, key: str) -> T:
        """Counts a use of the key, and gives where to add what was used."""
        self._count(key)
        if (own := self._named.get(key)) is not None:
            return own
        if key == OTHER or not self._make_room(key):
            return self._others
        own = self._named[key] = self._make()
        return own

    def names(self) -> list[str]:
        """Of the keys that have one."""
        return sorted(self._named)

    def items(self) -> Iterator[tuple[str, T]]:
        """By name; the last is all others'."""
        yield from sorted(self._named.items(), key=lambda item: item[0])
        yield OTHER, self._others

    def _count(self, key: str) -> None:
        self._num_uses[key] += 1
        self._window_left -= 1
        if not self._window_left:
            self._window_left = WINDOW_USES
            self._num_uses = Counter({key: uses // 2 for key, uses in self._num_uses.items() if uses > 1})

    def _make_room(self, key: str) -> bool:
        """Whether the key gets a name; the least busy may lose its own for it."""
        if len(self._named) < self._num_named:
            return True
        if not self._named:
            return False
        least = min(self._named, key=self._num_uses.__getitem__)
        if self._num_uses[key] <= LEAD * self._num_uses[least]:
            return False
        del self._named[least]
        return True
