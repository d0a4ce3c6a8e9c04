"""A planned step as int32 words: what the leader sends the other ranks of its group, and the plan that they make of it.

A rank keeps a copy of each running sequence. A step names its sequences by number and brings what has changed since it
last named them: their positions, the tokens that the host has learned and the pages that they got. A sequence is
introduced once, with its request. One that was preempted and admitted again is introduced again, as another one.
"""

from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from punica_serve.base_model.model_spec import ModelSpec
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_planner import PrefillChunk, StepPlan
from punica_serve.errors.invariants import require
from punica_serve.protocol import Request

Int32s = npt.NDArray[np.int32]

#: Words of a step before its rows: how many sequences have ended, how many rows follow, and how many of them prefill.
_NUM_HEADER_WORDS = 3
#: Words of a prefill's chunk, which come before the rows: where it ends, and whether that is the newest token.
_NUM_CHUNK_WORDS = 2
#: Words of a row: the sequence, its cached tokens and those in flight, then how many new tokens and new pages follow.
_NUM_ROW_WORDS = 5


@dataclass(slots=True)
class _Known:
    """What the ranks know of a sequence."""

    number: int
    #: The sequence's own list, which another one replaces when the sequence is admitted again.
    pages: list[int]
    num_tokens: int
    num_pages: int = 0


class StepEncoder:
    """The leader's side."""

    def __init__(self) -> None:
        self._numbers = count()
        self._known: dict[Sequence, _Known] = {}

    def encode(self, plan: StepPlan) -> tuple[list[tuple[int, Request]], Int32s]:
        """The sequences to introduce first, by number, and the words of the step."""
        ended = self._drop_ended()
        introduced = [(self._introduce(seq), seq.request) for seq in plan.sequences if seq not in self._known]
        rows = [word for sequence in plan.sequences for word in self._row(sequence)]
        chunks = [word for chunk in plan.prefills for word in (chunk.end, int(chunk.is_last))]
        header = [len(ended), len(plan.sequences), len(plan.prefills), *ended, *chunks]
        changes = [word for sequence in plan.sequences for word in self._take_changes(sequence)]
        return introduced, np.array([*header, *rows, *changes], dtype=np.int32)

    @property
    def known(self) -> dict[int, list[int]]:
        """The pages, as far as the ranks know them, by number."""
        return {known.number: known.pages[: known.num_pages] for known in self._known.values()}

    def _drop_ended(self) -> list[int]:
        ended = [sequence for sequence, known in self._known.items() if sequence.pages is not known.pages]
        return [self._known.pop(sequence).number for sequence in ended]

    def _introduce(self, sequence: Sequence) -> int:
        number = next(self._numbers) & np.iinfo(np.int32).max
        self._known[sequence] = _Known(number, sequence.pages, sequence.request.num_tokens)
        return number

    def _row(self, sequence: Sequence) -> tuple[int, ...]:
        known = self._known[sequence]
        num_new = (len(sequence.token_ids) - known.num_tokens, len(sequence.pages) - known.num_pages)
        return (known.number, sequence.num_cached, sequence.num_in_flight, *num_new)

    def _take_changes(self, sequence: Sequence) -> list[int]:
        """The new tokens, then the new pages, which the ranks know from now on."""
        known = self._known[sequence]
        changes = sequence.token_ids[known.num_tokens :] + sequence.pages[known.num_pages :]
        known.num_tokens, known.num_pages = len(sequence.token_ids), len(sequence.pages)
        return changes


class StepDecoder:
    """A rank's side: its copies of the sequences."""

    def __init__(self, max_context: int, page_size: int, model: ModelSpec | None = None) -> None:
        self._max_context = max_context
        self._page_size = page_size
        self._model = model
        self._sequences: dict[int, Sequence] = {}
        #: Pages that the newest plan's sequences got, and that no step has filled for them.
        self.empty_pages: list[int] = []

    def introduce(self, number: int, request: Request) -> None:
        """A sequence that the next step runs for the first time."""
        require(number not in self._sequences, f"sequence {number} was introduced twice")
        self._sequences[number] = Sequence.of(request, self._max_context, self._model)

    def decode(self, words: Int32s) -> StepPlan:
        """The plan, of this rank's sequences. Raises KeyError for a sequence that was not introduced."""
        num_ended, num_rows, num_prefills = words[:_NUM_HEADER_WORDS].tolist()
        first_chunk = _NUM_HEADER_WORDS + num_ended
        first_row = first_chunk + num_prefills * _NUM_CHUNK_WORDS
        for number in words[_NUM_HEADER_WORDS:first_chunk].tolist():
            del self._sequences[number]
        changes = first_row + num_rows * _NUM_ROW_WORDS
        rows = words[first_row:changes].reshape(num_rows, _NUM_ROW_WORDS).tolist()
        sequences = []
        self.empty_pages = []
        for row in rows:
            sequences.append(self._update(row, words[changes:]))
            changes += sum(row[3:])
        ends = words[first_chunk:first_row].reshape(num_prefills, _NUM_CHUNK_WORDS).tolist()
        chunks = [
            PrefillChunk(sequence, sequence.num_cached, end, bool(is_last))
            for sequence, (end, is_last) in zip(sequences[:num_prefills], ends, strict=True)
        ]
        return StepPlan(tuple(chunks), tuple(sequences[num_prefills:]))

    @property
    def known(self) -> dict[int, list[int]]:
        """The pages of the sequences, by number."""
        return {number: sequence.pages for number, sequence in self._sequences.items()}

    def _update(self, row: list[int], changes: Int32s) -> Sequence:
        number, num_cached, num_in_flight, num_tokens, num_pages = row
        sequence = self._sequences[number]
        sequence.num_cached, sequence.num_in_flight = num_cached, num_in_flight
        sequence.token_ids += changes[:num_tokens].tolist()
        first_new = len(sequence.pages)
        sequence.pages += changes[num_tokens : num_tokens + num_pages].tolist()
        self.empty_pages += sequence.pages[max(first_new, num_cached // self._page_size) :]
        return sequence
