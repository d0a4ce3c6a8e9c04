"""Goals and peers' results, read from ``goals.yaml`` and ``peers.yaml`` beside this file."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from punica_serve.learned_types import learned
from punica_serve.workload import Population

_FOLDER = Path(__file__).parent


class Peer(NamedTuple):
    """The fastest other system at one operator."""

    name: str
    microseconds: float


class System(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    version: str


#: By batch and population: a system's key, and its µs.
_Quickest = dict[int, dict[Population, tuple[str, float]]]


class PairPeers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """µs of y += x A B. ``quickest`` is keyed by rank."""

    date: str
    source: str
    hidden_size: int
    dtype: str
    quickest: dict[int, _Quickest]
    mixed_step: tuple[str, float]


class LayerPeers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """µs added to a layer."""

    date: str
    source: str
    quickest: _Quickest


class TextgenPeers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Output tokens/s, by the benchmark's row."""

    date: str
    source: str
    tokens_per_s: dict[str, float]


class BatchingPeers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Milliseconds of a decode step at one context, by adapters and batch size."""

    date: str
    source: str
    num_context_tokens: int
    step_ms: dict[str, dict[int, float]]


class Overheads(NamedTuple):
    """% over the row whose adapters are all on the device, of means."""

    first_token: float
    per_token: float
    latency: float


class ColdstartPeers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Overheads by series, then system; how much less latency than OnDemand's in %, by model, then GPUs of a group."""

    date: str
    source: str
    overheads: dict[str, dict[str, Overheads]]
    groups: dict[str, dict[int, float]]


class IdlePeers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ms to the first token on an idle engine, by where the adapter was."""

    date: str
    source: str
    rank: int
    num_prompt_tokens: int
    first_token_ms: dict[str, float]


class Peers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Results of other systems, each with its date and source."""

    systems: dict[str, System]
    pair: PairPeers
    layer: LayerPeers
    textgen: TextgenPeers
    batching: BatchingPeers
    coldstart_series: ColdstartPeers
    coldstart_idle: IdlePeers

    def pair_peer(self, rank: int, batch_size: int, population: Population) -> Peer | None:
        return self._peer(self.pair.quickest.get(rank, {}).get(batch_size, {}).get(population))

    def layer_peer(self, batch_size: int, population: Population) -> Peer | None:
        return self._peer(self.layer.quickest.get(batch_size, {}).get(population))

    @property
    def mixed_step(self) -> Peer:
        key, microseconds = self.pair.mixed_step
        return Peer(self.systems[key].name, microseconds)

    def _peer(self, found: tuple[str, float] | None) -> Peer | None:
        return None if found is None else Peer(self.systems[found[0]].name, found[1])


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A goal, which has exactly one of the two bounds."""

    figure: str
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"the goal {self.figure!r} needs either at_least or at_most")


class Goals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The goals of all benchmarks."""

    pair_us: dict[int, dict[int, dict[Population, float]]]
    mixed_step_us: float
    mixed_ranks_ratio: float
    layer_us: dict[int, dict[Population, float]]
    textgen: dict[str, Bound]
    textgen_shapes: dict[str, Bound]
    textgen_batches: dict[str, Bound]
    coldstart: dict[str, Bound]
    coldstart_loads: dict[str, Bound]
    coldstart_series: dict[str, Bound]
    prefix_caching: dict[str, Bound]
    serving: dict[str, Bound]
    control_plane: dict[str, Bound]

    def pair_goal(self, rank: int, batch_size: int, population: Population) -> float | None:
        return self.pair_us.get(rank, {}).get(batch_size, {}).get(population)

    def layer_goal(self, batch_size: int, population: Population) -> float | None:
        return self.layer_us.get(batch_size, {}).get(population)


@cache
def peers() -> Peers:
    return msgspec.convert(_read("peers.yaml"), learned(Peers))


@cache
def goals() -> Goals:
    return msgspec.convert(_read("goals.yaml"), learned(Goals))


def _read(name: str) -> Any:
    document = yaml.safe_load((_FOLDER / name).read_text(encoding="utf-8"))
    return msgspec.to_builtins(document, str_keys=False)
