"""Records the calls of backoffs."""

import pytest

from punica_serve.links.backoff import Backoff


def note_lives(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that each thing lived before it failed, as they are told, oldest first."""
    lives: list[float] = []
    after = Backoff.after

    def spy(self: Backoff, lived_s: float) -> float:
        lives.append(lived_s)
        return after(self, lived_s)

    monkeypatch.setattr(Backoff, "after", spy)
    return lives
