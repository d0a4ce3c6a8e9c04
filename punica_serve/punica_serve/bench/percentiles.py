"""Percentiles of waits, as the report tables show them."""

from collections.abc import Sequence

import numpy as np


def percentiles_ms(waits_s: Sequence[float], *percents: float) -> tuple[float, ...]:
    """The percentiles of some waits in milliseconds; 100 is the longest wait."""
    return tuple(1e3 * float(value) for value in np.percentile(waits_s, percents))
