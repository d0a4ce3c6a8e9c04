"""The range of each sampling parameter, for the API's schema and for the engine's own check."""

import math
from typing import Any, NamedTuple

from punica_serve.numbers import MAX_COUNT, limit


class Range(NamedTuple):
    """Finite numbers from ``low`` to ``high``, both included unless ``above_low``."""

    low: float
    high: float = math.inf
    above_low: bool = False

    def holds(self, value: object) -> bool:
        if not isinstance(value, int | float):
            return False
        return math.isfinite(value) and self.low <= value <= self.high and not (self.above_low and value == self.low)

    def as_constraints(self) -> dict[str, Any]:
        """The range as keywords of a pydantic field."""
        low = {"gt" if self.above_low else "ge": self.low}
        return low if self.high == math.inf else {**low, "le": self.high}

    def __str__(self) -> str:
        low = f"{'above' if self.above_low else 'at least'} {limit(self.low)}"
        return low if self.high == math.inf else f"{low} and at most {limit(self.high)}"


RANGES = {
    "temperature": Range(0.0),
    "top_p": Range(0.0, 1.0, above_low=True),
    "top_k": Range(0, MAX_COUNT),
    "min_p": Range(0.0, 1.0),
    # Logits are divided by it, and would become infinite below about this value.
    "repetition_penalty": Range(0.01, 10.0),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "seed": Range(0, (1 << 64) - 1),
    "min_tokens": Range(0, MAX_COUNT),
    "max_tokens": Range(1, MAX_COUNT),
    "logprobs": Range(0, MAX_COUNT),
}
