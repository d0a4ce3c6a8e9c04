"""Tells that something stands still which should move: a frozen process, a worker that makes no step."""


class Stillness:
    """Looked at from time to time, it notices when a value has been the same for too many looks in a row.

    It counts looks and never reads a clock: whoever was stopped himself and looks again an hour later has looked once,
    and blames nobody for the hour.
    """

    def __init__(self, value: object, num_looks: int) -> None:
        self._value = value
        self._num_looks = num_looks
        self._num_equal = 0

    def look(self, value: object) -> bool:
        """Whether this is the ``num_looks``-th look in a row at which nothing has changed."""
        self._num_equal = self._num_equal + 1 if value == self._value else 0
        self._value = value
        return self._num_equal >= self._num_looks
