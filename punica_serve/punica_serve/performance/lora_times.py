"""Models of the time that LoRA adds to a step: this project's kernels', and CaraServe's two (section 5.1, figure 9).

``step_time.lora_seconds`` computes with them.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from punica_serve.config.fields import ConfigModel, NonNegative, NonNegativeInt
from punica_serve.performance.ascending import check_ascending, check_times

#: Up to so many rows, SGMV runs beside the projections; for more, before and after them.
MAX_FUSED_ROWS = 64
#: Rows from which on an adapter's rows no longer make its blocks of ranks slower.
HIGHEST_RANK_ROWS = 4


class DistinctLora(ConfigModel):
    """SGMV: the bytes of the batch's *different* adapters are read once, and rows and their ranks cost some more.

    The terms after ``row_ms`` were found on a GPU, by what a model of pages and rows alone left unexplained.
    """

    kind: Literal["distinct"]
    #: Rank pages of the different adapters, and the milliseconds that they add.
    pages: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    ms: tuple[NonNegative, ...]
    #: Milliseconds of each row with an adapter.
    row_ms: NonNegative = 0.0
    #: Milliseconds of each rank of each row.
    rank_ms: NonNegative = 0.0
    #: Milliseconds of each rank of the highest adapter, whose blocks of ranks are computed one after another, once
    #: it may have ``HIGHEST_RANK_ROWS`` rows; of fewer rows a share.
    highest_rank_ms: NonNegative = 0.0
    #: Milliseconds more in batches of over ``MAX_FUSED_ROWS`` rows.
    large_batch_ms: NonNegative = 0.0

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
