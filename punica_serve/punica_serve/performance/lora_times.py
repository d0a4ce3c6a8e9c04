"""What LoRA adds to a step: a model of this project's kernels, and the two of CaraServe (section 5.1, figure 9).

``step_time.lora_seconds`` computes with them.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from punica_serve.config.fields import ConfigModel, NonNegative, NonNegativeInt
from punica_serve.performance.ascending import check_ascending, check_times


class DistinctLora(ConfigModel):
    """SGMV: the bytes of the batch's *different* adapters are read once, and each row costs some more."""

    kind: Literal["distinct"]
    #: Rank pages of the different adapters, and the milliseconds that they add.
    pages: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    ms: tuple[NonNegative, ...]
    #: Milliseconds of each row with an adapter.
    row_ms: NonNegative = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_ascending("pages", self.pages)
        check_times(self.pages, self.ms, "pages")
        return self


class PaddedLora(ConfigModel):
    """BGMV: each row reads an adapter of its own, padded to the batch's highest rank."""

    kind: Literal["padded"]
    #: Milliseconds of a row and a rank, times rows times the highest rank.
    rank_ms: NonNegative


class UnpaddedLora(ConfigModel):
    """MBGMV: each row reads an adapter of its own, at its rank."""

    kind: Literal["unpadded"]
    #: Milliseconds of a row and a rank, times the sum of the rows' ranks.
    rank_ms: NonNegative


LoraTimes = Annotated[DistinctLora | PaddedLora | UnpaddedLora, Field(discriminator="kind")]
