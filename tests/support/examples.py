"""How many examples hypothesis draws: few in the fast tier, all in the slow one (`make test-slow`)."""

from hypothesis import settings

#: Examples of a test that names no number, in hypothesis's own profiles.
_USUAL = 100
#: The fast tier draws no fewer.
_FEWEST = 6


def examples(number: int) -> int:
    """So many where the profile draws the usual number, and a share of them where it draws fewer."""
    return max(min(number, _FEWEST), number * settings().max_examples // _USUAL)
