"""What runs in the benchmark's own process lives with the collector of cycles as the scheduler's process does."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from punica_serve.collector import calm_collector


@contextmanager
def calm() -> Iterator[None]:
    """As after the scheduler's start; and as before afterwards."""
    thresholds = gc.get_threshold()
    calm_collector()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
