"""How many examples hypothesis draws: few in the fast tier, all in the slow one (`make test-slow`)."""

from hypothesis import settings

#: Examples of a test that names no number, in hypothesis's own profiles.
_USUAL = 100
#: The fast tier draws no fewer.
_FEWEST = 6


def examples(number: int) -> int:
    """``number`` where the profile draws 100, else a share of it, and at least 6."""
    return max(min(number, _FEWEST), number * settings().max_examples // _USUAL)
