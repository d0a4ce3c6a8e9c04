"""The batches whose steps tell what LoRA costs: adapters of equal ranks, shared ones, and random mixes."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from punica_serve.performance.lora_fit import LoraSample, SampleKind

#: Ranks of the adapters, as CaraServe's.
RANKS = (8, 16, 32, 64, 128)
_SEED = 1
#: Random batches that are fitted and held out, for each size.
_NUM_MIXED, _NUM_HELD_OUT = 3, 2


@dataclass(frozen=True, slots=True)
class MixAdapter:
    """The ``number``-th adapter of a rank."""

    rank: int
    number: int


@dataclass(frozen=True, slots=True)
class Mix:
    """A batch: an adapter for each row."""

    kind: SampleKind
    adapters: tuple[MixAdapter, ...]


def mixes(sizes: Sequence[int], num_adapters: dict[int, int]) -> list[Mix]:
    """Batches of these sizes, with ``num_adapters`` of each rank at hand. The same for the same arguments."""
    found = [*_equal(sizes, num_adapters), *_shared(sizes, num_adapters)]
    draw = random.Random(_SEED)
    for size in sizes:
        found += [Mix("mixed", _random(draw, size, num_adapters)) for _ in range(_NUM_MIXED)]
        found += [Mix("held_out", _random(draw, size, num_adapters)) for _ in range(_NUM_HELD_OUT)]
    return found


def _equal(sizes: Sequence[int], num_adapters: dict[int, int]) -> Iterator[Mix]:
    """A different adapter for each row, all of one rank."""
    for rank, count in num_adapters.items():
        for size in sizes:
            if size <= count:
                yield Mix("equal", tuple(MixAdapter(rank, number) for number in range(size)))


def _shared(sizes: Sequence[int], num_adapters: dict[int, int]) -> Iterator[Mix]:
    """One adapter for all rows, of the lowest rank and of the highest."""
    for rank in {min(num_adapters): None, max(num_adapters): None}:
        for size in sizes:
            yield Mix("shared", (MixAdapter(rank, 0),) * size)


def _random(draw: random.Random, size: int, num_adapters: dict[int, int]) -> tuple[MixAdapter, ...]:
    """Some adapters of any rank, each for at least a row."""
    known = [MixAdapter(rank, number) for rank, count in num_adapters.items() for number in range(count)]
    adapters = draw.sample(known, min(len(known), draw.randint(1, size)))
    return (*adapters, *draw.choices(adapters, k=size - len(adapters)))


def sample_of(mix: Mix, pages: dict[int, int], base_ms: float, step_ms: float) -> LoraSample:
    """``pages`` are those of an adapter, by rank."""
    different = set(mix.adapters)
    return LoraSample(
        mix.kind,
        len(mix.adapters),
        len(different),
        sum(adapter.rank for adapter in mix.adapters),
        max(adapter.rank for adapter in mix.adapters),
        sum(pages[adapter.rank] for adapter in different),
        base_ms,
        step_ms,
    )
