"""One model invocation, as the planner gives it to the runner: which tokens of which sequences, in which order."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeVar

from punica_serve.base_model.lora_layout import LoraKind
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.cpu_assist.assist_job import AssistJob


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens [start, end) of a sequence."""

    sequence: Sequence
    start: int
    end: int
    #: The chunk ends with the newest token, so the next one is sampled.
    is_last: bool

    @classmethod
    def of(cls, sequence: Sequence, num_tokens: int) -> Self:
        """The next ``num_tokens`` of a sequence."""
        end = sequence.num_cached + num_tokens
        return cls(sequence, sequence.num_cached, end, end == sequence.num_tokens)

    @property
    def digest(self) -> str | None:
        """The sequence's adapter; None is the base model."""
        return self.sequence.digest

    @property
    def num_tokens(self) -> int:
        """Rows that the chunk has in the step."""
        return self.end - self.start


_Row = TypeVar("_Row", PrefillChunk, Sequence)


@dataclass(frozen=True)
class StepPlan:
    """One model invocation. Prefills of one adapter are adjacent, and so are decodes, beginning with those of the last
    prefill's adapter.
    """

    prefills: tuple[PrefillChunk, ...]
    decodes: tuple[Sequence, ...]
    #: CPU processes compute the only prefill's LoRA in layers whose weights are not on the device.
    assist: AssistJob | None = None
    #: The only prefill's adapter may not be on the device of each rank yet.
    is_early: bool = False
    #: Some requests hold pages together; False: no two of its sequences do.
    shares_pages: bool = False

    @classmethod
    def by_adapter(
        cls, prefills: Iterable[PrefillChunk], decodes: Iterable[Sequence], *, shares_pages: bool = False
    ) -> Self:
        """The step with these rows, in the order that it must have."""
        chunks = _adjacent(prefills)
        last_adapter = [chunk.digest for chunk in chunks[-1:]]
        return cls(chunks, _adjacent(decodes, last_adapter), shares_pages=shares_pages)

    @cached_property
    def sampled(self) -> tuple[Sequence, ...]:
        """The sequences that get a token, in row order."""
        return (*(chunk.sequence for chunk in self.prefills if chunk.is_last), *self.decodes)

    @cached_property
    def num_prefill_tokens(self) -> int:
        """Tokens of all prefills together."""
        return sum([chunk.num_tokens for chunk in self.prefills])

    @property
    def num_adapters(self) -> int:
        """Different adapters in the step."""
        return len({sequence.digest for sequence in self.sequences if sequence.digest})

    @cached_property
    def lora_kind(self) -> LoraKind:
        """The LoRA that the step needs."""
        return max([sequence.lora_kind for sequence in self.sequences], default=LoraKind.NONE)

    @cached_property
    def sequences(self) -> tuple[Sequence, ...]:
        """All sequences of the step, in row order."""
        return (*(chunk.sequence for chunk in self.prefills), *self.decodes)

    def advance(self) -> None:
        """Has its sequences count the tokens that it caches and samples, once it is launched, though it still runs."""
        for sequence in self.decodes:
            sequence.num_cached += 1
            sequence.num_in_flight += 1
        for chunk in self.prefills:
            chunk.sequence.num_cached = chunk.end
            chunk.sequence.num_in_flight += chunk.is_last


def _adjacent(rows: Iterable[_Row], first: Iterable[str | None] = ()) -> tuple[_Row, ...]:
    """The rows with those of one adapter side by side: adapters in ``first`` begin, others follow as they come."""
    by_adapter: dict[str | None, list[_Row]] = {digest: [] for digest in first}
    for row in rows:
        by_adapter.setdefault(row.digest, []).append(row)
    return tuple(row for group in by_adapter.values() for row in group)
