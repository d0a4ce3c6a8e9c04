"""Which exchange adds up the tensors of ranks, by their size: the one that measured fastest on such GPUs.

Where a layer adds the sum to the residual and norms it, one kernel can do all of it (*fused*), or three in turn.

The times ship with the package (exchange_times.yaml), or come from a file of the same form that
`punica-serve bench collectives --table FILE` has written. A group that nobody measured takes NCCL.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.fields import ConfigModel, Int32
from punica_serve.config.yaml_file import read_yaml, validated

#: nccl: the library. one_shot: each rank reads the tensors of all. two_shot: each adds up its part for all.
Way = Literal["nccl", "one_shot", "two_shot"]
WAYS: tuple[Way, ...] = get_args(Way)

#: Sizes of groups for which torch's one shot adds in the order of ranks on each of them, and so to the same bits.
_ORDERED_SIZES = (2, 4, 8)
#: Bytes up to which `engine.exchange: fused` takes the one kernel whatever was measured; beyond, as far as it measured
#: faster. Each rank reads the rows of all, as in one shot.
FUSED_BYTES = 1 << 20
_SHIPPED = Path(str(files(__package__).joinpath("exchange_times.yaml")))

Microseconds = Annotated[float, Field(strict=True, gt=0)]


class ExchangeTime(ConfigModel):
    """µs of one sum by each way that was measured, and of a layer's exchange with its sums and its norm."""

    #: The size of each rank's tensor.
    bytes: Int32
    nccl: Microseconds
    one_shot: Microseconds | None = None
    two_shot: Microseconds | None = None
    #: All that a layer does for an exchange, in one kernel, and in three of which one sums over ranks by the best way.
    fused: Microseconds | None = None
    unfused: Microseconds | None = None

    @property
    def is_fused(self) -> bool:
        """Whether the one kernel is faster than the three."""
        return self.fused is not None and self.unfused is not None and self.fused < self.unfused

    @property
    def fastest(self) -> Way:
        known = {way: time_us for way in WAYS if (time_us := getattr(self, way)) is not None}
        return min(known, key=known.__getitem__)


class MeasuredGroup(ConfigModel):
    """The times of a group of so many equal GPUs."""

    #: As the driver names it.
    device: str
    ranks: Int32
    times: Annotated[tuple[ExchangeTime, ...], Field(min_length=1)]


class ExchangeTimes(ConfigModel):
    """A file of times."""

    groups: Annotated[tuple[MeasuredGroup, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class ExchangeChoice:
    """The way of each size."""

    #: Sizes in bytes, in rising order, each with the way up to there; NCCL takes what is larger.
    borders: tuple[tuple[int, Way], ...] = ()
    #: The largest tensor that a layer exchanges in one kernel with its sums and its norm; 0 if none is.
    max_fused_bytes: int = 0

    @property
    def max_bytes(self) -> int:
        """The largest tensor that is not NCCL's; 0 if all are."""
        return max((size for size, way in self.borders if way != "nccl"), default=0)

    def way(self, num_bytes: int) -> Way:
        return next((way for size, way in self.borders if num_bytes <= size), "nccl")

    def __str__(self) -> str:
        """In words, which differ where the choice does."""
        sums = ", ".join([*(f"{way} up to {size:,} bytes" for size, way in self.borders), "nccl beyond"])
        return sums + (f"; fused with the norm up to {self.max_fused_bytes:,} bytes" if self.max_fused_bytes else "")


def choose(times: Sequence[ExchangeTime]) -> ExchangeChoice:
    """The fastest way of each size; between two measured sizes, that of the larger. Fused up to where it is slower."""
    borders: list[tuple[int, Way]] = []
    times = sorted(times, key=lambda time: time.bytes)
    for time in times:
        if borders and borders[-1][1] == time.fastest:
            borders.pop()
        borders.append((time.bytes, time.fastest))
    if borders and borders[-1][1] == "nccl":
        borders.pop()
    fused = [time.bytes for time in takewhile(lambda time: time.is_fused, times)]
    return ExchangeChoice(tuple(borders), max(fused, default=0))


def choice_of(config: EngineConfig, device_name: str, num_ranks: int) -> ExchangeChoice:
    """The choice of a group of GPUs. Raises ConfigError for a file of times that can't be read."""
    if config.exchange == "nccl":
        return ExchangeChoice()
    measured = read_times(config.exchange_times or _SHIPPED)
    groups = (group for group in measured.groups if (group.device, group.ranks) == (device_name, num_ranks))
    choice = next((choose(group.times) for group in groups), ExchangeChoice())
    if num_ranks not in _ORDERED_SIZES:
        choice = replace(choice, borders=())
    if config.exchange == "fused":
        return replace(choice, max_fused_bytes=max(choice.max_fused_bytes, FUSED_BYTES))
    return choice


def read_times(file: Path) -> ExchangeTimes:
    """Raises ConfigError."""
    document = read_yaml(file, what="`engine.exchange_times`: file", example_key="groups")
    return validated(ExchangeTimes, document, source=str(file), folder=file.parent)
