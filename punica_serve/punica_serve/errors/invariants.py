"""Checks of invariants that also run under ``python -O``, which drops ``assert``."""


class InvariantBroken(AssertionError):
    """A bug of ours: an invariant does not hold, so the state can't be trusted any more."""


def require(condition: object, message: object) -> None:
    """Raises InvariantBroken with ``message`` unless ``condition`` is true."""
    if not condition:
        raise InvariantBroken(str(message))
