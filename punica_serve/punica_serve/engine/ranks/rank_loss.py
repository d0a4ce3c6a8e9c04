"""The end of a group."""

from punica_serve.errors import PunicaError


class RankLost(PunicaError):
    """A rank has died, froze, or is late; its group ends with it. The message names the rank and its device."""


class ExchangeFailed(RankLost):
    """An exchange has ended without its sums: another rank is gone or late, and nobody has told which one yet."""
