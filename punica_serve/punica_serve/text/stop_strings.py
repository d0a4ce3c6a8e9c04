"""Stop strings: cut a stream of text before the first of some strings, however the text is split into pieces. Pure."""

from collections.abc import Sequence


class StopStrings:
    """Holds back only text that may still become a stop string.

    The first stop string to be complete wins, and the longer one of two that end together, so the result does not
    depend on how the stream was split. Must not be fed after a stop.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops`` may be empty, but must not hold empty strings."""
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Takes the next piece; returns the text that is final, and whether a stop string was found."""
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
        """Ends the stream; returns the text that was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of ``stop`` that ``text`` ends with."""
    length = min(len(text), len(stop) - 1)
    # Only tries lengths at which the last character matches: for long stop strings, trying all would take half a
    # millisecond.
    while length and (length := stop.rfind(text[-1], 0, length) + 1):
        if text.endswith(stop[:length]):
            return length
        length -= 1
    return 0
