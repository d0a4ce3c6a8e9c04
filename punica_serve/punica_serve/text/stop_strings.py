"""Stop strings: end a stream of text before the first of some strings, however the text is cut into pieces. Pure."""

from collections.abc import Sequence


class StopStrings:
    """Holds back only what may still become a stop string.

    The stop string that is complete first wins, of two that end together the longer one: so the outcome does not depend
    on how the stream was cut. After a stop nothing may be fed.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops`` are not empty strings; there may be none of them."""
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Takes the next piece; returns the text that is free to go and whether a stop string was found."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        num_held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held], False

    def flush(self) -> str:
        """The stream has ended: what was held back is no stop string after all."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` starts with, short of all of it."""
    length = min(len(text), len(stop) - 1)
    # Only where the last character is the same: of long stop strings, all other lengths would cost half a millisecond.
    while length and (length := stop.rfind(text[-1], 0, length) + 1):
        if text.endswith(stop[:length]):
            return length
        length -= 1
    return 0
