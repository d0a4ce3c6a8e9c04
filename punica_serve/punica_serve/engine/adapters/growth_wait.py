"""When to look again at a file that another process writes, and when to give it up. Knows no clock and no file."""

#: A look costs a call of the system. One comes at most so soon, and at least so often.
_SHORTEST_S, _LONGEST_S = 0.002, 0.1
#: The longer nothing has come, the longer until the next look: what comes is noticed late by at most this share.
_SHARE = 0.25


class GrowthWait:
    """The looks at one file."""

    def __init__(self, now_s: float, timeout_s: float) -> None:
        """``timeout_s``: the longest time in which nothing comes."""
        self._timeout_s = timeout_s
        self._grew_s = now_s

    def grew(self, now_s: float) -> None:
        """Something has come."""
        self._grew_s = now_s

    def is_over(self, now_s: float) -> bool:
        """Whether nothing has come for too long."""
        return now_s - self._grew_s > self._timeout_s

    def next_s(self, now_s: float) -> float:
        """Seconds until the next look."""
        return min(max(_SHORTEST_S, _SHARE * (now_s - self._grew_s)), _LONGEST_S)
