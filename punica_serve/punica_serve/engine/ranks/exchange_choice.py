"""Which exchange adds up the tensors of ranks, by their size: the one that measured fastest on such GPUs.

Where a layer adds the sum to the residual and norms it, one kernel of ours can do all of it (*fused*), or FlashInfer's
behind one that sums the parts, or three in turn (*unfused*), of which one sums over ranks.

The times ship with the package (exchange_times.yaml), or come from a file of the same form that
`punica-serve bench collectives --table FILE` has written. A group that nobody measured takes NCCL.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import Field

from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.fields import ConfigModel, Int32
from punica_serve.config.yaml_file import read_yaml, validated

#: nccl: the library. one_shot: each rank reads the tensors of all. two_shot: each adds up its part for all.
Way = Literal["nccl", "one_shot", "two_shot"]
WAYS: tuple[Way, ...] = get_args(Way)
#: All that a layer does for an exchange. unfused: by the best way to sum over ranks, and a kernel before and behind it.
LayerWay = Literal["unfused", "fused", "flashinfer"]
LAYER_WAYS: tuple[LayerWay, ...] = get_args(LayerWay)
_AnyWay = TypeVar("_AnyWay", Way, LayerWay)

#: Sizes of groups for which torch's one shot adds in the order of ranks on each of them, and so to the same bits.
_ORDERED_SIZES = (2, 4, 8)
#: Bytes up to which `engine.exchange: fused` takes its kernel whatever was measured, and `flashinfer` FlashInfer's;
#: beyond, the measured times decide. Each rank reads the rows of all, as in one shot.
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
    #: All that a layer does for an exchange: in one kernel, in FlashInfer's behind one that sums the parts, and in
    #: three, of which one sums over ranks by the best way.
    fused: Microseconds | None = None
    flashinfer: Microseconds | None = None
    unfused: Microseconds | None = None

    @property
    def fastest(self) -> Way:
        known = {way: time_us for way in WAYS if (time_us := getattr(self, way)) is not None}
        return min(known, key=known.__getitem__)

    def fastest_of_layer(self, ways: Collection[LayerWay]) -> LayerWay:
        """The fastest of these; unfused where that was not measured, or is as fast."""
        known = {way: time_us for way in LAYER_WAYS if way in ways and (time_us := getattr(self, way)) is not None}
        return min(known, key=known.__getitem__) if "unfused" in known else "unfused"


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
    #: The same for all that a layer does for an exchange; what is larger is unfused.
    layer_borders: tuple[tuple[int, LayerWay], ...] = ()

    @property
    def max_bytes(self) -> int:
        """The largest tensor that is not NCCL's; 0 if all are."""
        return max((size for size, way in self.borders if way != "nccl"), default=0)

    @property
    def is_nccl(self) -> bool:
        """Whether all is left to NCCL."""
        return not self.max_bytes and all(way == "unfused" for _, way in self.layer_borders)

    def max_layer_bytes(self, way: LayerWay) -> int:
        """The largest tensor that a layer exchanges in this way; 0 if there is none."""
        return max((size for size, each in self.layer_borders if each == way), default=0)

    def way(self, num_bytes: int) -> Way:
        return next((way for size, way in self.borders if num_bytes <= size), "nccl")

    def layer_way(self, num_bytes: int) -> LayerWay:
        return next((way for size, way in self.layer_borders if num_bytes <= size), "unfused")

    def __str__(self) -> str:
        """In words, which differ where the choice does."""
        sums = _words(self.borders, "nccl")
        return f"{sums}; with the norm: {_words(self.layer_borders, 'unfused')}" if self.layer_borders else sums


def choose(times: Sequence[ExchangeTime], *, has_flashinfer: bool = True) -> ExchangeChoice:
    """The fastest way of each size; between two measured sizes, that of the larger."""
    times = sorted(times, key=lambda time: time.bytes)
    layer_ways = [way for way in LAYER_WAYS if has_flashinfer or way != "flashinfer"]
    return ExchangeChoice(
        _borders(((time.bytes, time.fastest) for time in times), "nccl"),
        _borders(((time.bytes, time.fastest_of_layer(layer_ways)) for time in times), "unfused"),
    )


def choice_of(config: EngineConfig, device_name: str, num_ranks: int, *, has_flashinfer: bool = True) -> ExchangeChoice:
    """The choice of a group of GPUs. Raises ConfigError for a file of times that can't be read."""
    if config.exchange == "nccl":
        return ExchangeChoice()
    measured = read_times(config.exchange_times or _SHIPPED)
    groups = (group for group in measured.groups if (group.device, group.ranks) == (device_name, num_ranks))
    choice = next((choose(group.times, has_flashinfer=has_flashinfer) for group in groups), ExchangeChoice())
    if num_ranks not in _ORDERED_SIZES:
        choice = replace(choice, borders=())
    if config.exchange == "auto" or (config.exchange == "flashinfer" and not has_flashinfer):
        return choice
    beyond = (border for border in choice.layer_borders if border[0] > FUSED_BYTES)
    return replace(choice, layer_borders=_borders([(FUSED_BYTES, config.exchange), *beyond], "unfused"))


def _borders(ways: Iterable[tuple[int, _AnyWay]], beyond: _AnyWay) -> tuple[tuple[int, _AnyWay], ...]:
    """The largest size of each run of one way, of sizes in rising order; none for a last one that goes on beyond."""
    borders: list[tuple[int, _AnyWay]] = []
    for size, way in ways:
        if borders and borders[-1][1] == way:
            borders.pop()
        borders.append((size, way))
    if borders and borders[-1][1] == beyond:
        borders.pop()
    return tuple(borders)


def _words(borders: Iterable[tuple[int, str]], beyond: str) -> str:
    return ", ".join([*(f"{way} up to {size:,} bytes" for size, way in borders), f"{beyond} beyond"])


def read_times(file: Path) -> ExchangeTimes:
    """Raises ConfigError."""
    document = read_yaml(file, what="`engine.exchange_times`: file", example_key="groups")
    return validated(ExchangeTimes, document, source=str(file), folder=file.parent)
