"""Clients that take nothing of what they are sent."""

from collections import Counter

from punica_frontend.metrics.metrics import CutReason

#: How long a client may take nothing of a full buffer.
STALL_TIMEOUT_S = 30.0


def count_if_stalled(num_cut: Counter[CutReason], exc: Exception | None) -> None:
    """Counts a client that the kernel cut first, because it was dead or took nothing."""
    if isinstance(exc, TimeoutError):
        num_cut["stalled"] += 1
