"""Detects that something has stalled: a frozen process, or a worker that makes no step."""


class StallDetector:
    """Observes a value from time to time, and reports a stall when too many observations in a row are equal.

    It counts observations and never reads a clock. If the observing process itself was stopped for an hour, that
    counts as one observation.
    """

    def __init__(self, value: object, num_observations: int) -> None:
        self._value = value
        self._num_observations = num_observations
        self._num_equal = 0

    def observe(self, value: object) -> bool:
        """Whether this is the ``num_observations``-th observation in a row without a change."""
        self._num_equal = self._num_equal + 1 if value == self._value else 0
        self._value = value
        return self._num_equal >= self._num_observations
