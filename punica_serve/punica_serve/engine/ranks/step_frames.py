"""A planned step as int32 words: what the leader sends the other ranks of its group, and the plan that they make of it.

A rank keeps a copy of each running sequence. A step names its sequences by number and brings what has changed since it
last named them: their positions, the tokens that the host has learned and the pages that they got. A sequence is
introduced once, with its request. One that was preempted and admitted again is introduced again, as another one.
"""

from dataclasses import dataclass
from itertools import count

import numpy as np

from punica_serve.base_model.model_spec import ModelSpec
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_planner import PrefillChunk, StepPlan
from punica_serve.engine.ranks.ring_frames import Int32s
from punica_serve.errors.invariants import require
from punica_serve.protocol import Request

#: The first words of a step: how many sequences have ended, how many rows there are, how many of them prefill, whether
#: the step is early, and whether requests share pages. The ended sequences follow, then two words of each prefill:
#: where its chunk ends, and whether that is the newest token.
_NUM_HEADER_WORDS, _NUM_END_WORDS = 5, 2
#: Words of a row: the sequence, its cached tokens and those in flight, then how many new tokens and new pages follow.
_NUM_ROW_WORDS = 5


@dataclass(slots=True)
class _Known:
    """The part of a sequence that the ranks know."""

    number: int
    #: The sequence's own list, which another one replaces when the sequence is admitted again.
    pages: list[int]
    num_tokens: int
    num_pages: int = 0

    def take(self, sequence: Sequence, changes: list[int]) -> tuple[int, int]:
        """Adds the new tokens, then the new pages, which the ranks know from now on; returns how many of each."""
        num_tokens, num_pages = len(sequence.token_ids), len(sequence.pages)
        num_new = (num_tokens - self.num_tokens, num_pages - self.num_pages)
        if num_new[0]:
            changes += sequence.token_ids[self.num_tokens :]
        if num_new[1]:
            changes += sequence.pages[self.num_pages :]
        self.num_tokens, self.num_pages = num_tokens, num_pages
        return num_new


class StepEncoder:
    """The leader's side."""

    def __init__(self) -> None:
        self._numbers = count()
        self._known: dict[Sequence, _Known] = {}
        #: Sequences that have ended, of which the ranks have not been told.
        self._ended: list[int] = []

    def introduce(self, plan: StepPlan) -> list[tuple[int, Request]]:
        """The sequences that the ranks must know before the step's words, by number."""
        self._drop_ended()
        new = [sequence for sequence in plan.sequences if sequence not in self._known]
        return [(self._introduce(sequence).number, sequence.request) for sequence in new]

    def encode(self, plan: StepPlan) -> Int32s:
        """The words of a step whose sequences were introduced."""
        ended, self._ended = self._ended, []
        rows: list[int] = []
        changes: list[int] = []
        for sequence in plan.sequences:
            known = self._known[sequence]
            rows += (known.number, sequence.num_cached, sequence.num_in_flight, *known.take(sequence, changes))
        chunks = [word for chunk in plan.prefills for word in (chunk.end, int(chunk.is_last))]
        counts = [len(ended), len(rows) // _NUM_ROW_WORDS, len(plan.prefills)]
        header = [*counts, int(plan.is_early), int(plan.shares_pages)]
        return np.array([*header, *ended, *chunks, *rows, *changes], dtype=np.int32)

    @property
    def known(self) -> dict[int, list[int]]:
        """The pages, as far as the ranks know them, by number."""
        return {known.number: known.pages[: known.num_pages] for known in self._known.values()}

    def _drop_ended(self) -> None:
        ended = [sequence for sequence, known in self._known.items() if sequence.pages is not known.pages]
        self._ended += [self._known.pop(sequence).number for sequence in ended]

    def _introduce(self, sequence: Sequence) -> _Known:
        number = next(self._numbers) & np.iinfo(np.int32).max
        known = self._known[sequence] = _Known(number, sequence.pages, sequence.request.num_tokens)
        return known


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
        flat: list[int] = words.tolist()
        num_ended, num_rows, num_prefills, is_early, shares_pages = flat[:_NUM_HEADER_WORDS]
        first_end = _NUM_HEADER_WORDS + num_ended
        first_row = first_end + _NUM_END_WORDS * num_prefills
        first_change = first_row + _NUM_ROW_WORDS * num_rows
        for number in flat[_NUM_HEADER_WORDS:first_end]:
            del self._sequences[number]
        sequences = self._update(flat[first_row:first_change], flat[first_change:])
        ends = flat[first_end:first_row]
        chunks = [
            PrefillChunk(sequence, sequence.num_cached, end, bool(is_last))
            for sequence, end, is_last in zip(
                sequences[:num_prefills], ends[::_NUM_END_WORDS], ends[1::_NUM_END_WORDS], strict=True
            )
        ]
        decodes = tuple(sequences[num_prefills:])
        return StepPlan(tuple(chunks), decodes, is_early=bool(is_early), shares_pages=bool(shares_pages))

    @property
    def known(self) -> dict[int, list[int]]:
        """The pages of the sequences, by number."""
        return {number: sequence.pages for number, sequence in self._sequences.items()}

    def _update(self, rows: list[int], changes: list[int]) -> list[Sequence]:
        """Brings the sequences of a step up to date. The leader launches meanwhile, so each µs is one that it waits."""
        self.empty_pages = []
        sequences: list[Sequence] = []
        place = 0
        row = iter(rows)
        for number, num_cached, num_in_flight, num_tokens, num_pages in zip(row, row, row, row, row, strict=True):
            sequence = self._sequences[number]
            sequence.num_cached, sequence.num_in_flight = num_cached, num_in_flight
            sequences.append(sequence)
            if num_tokens:
                sequence.token_ids += changes[place : place + num_tokens]
                place += num_tokens
            if num_pages:
                first_new = len(sequence.pages)
                sequence.pages += changes[place : place + num_pages]
                place += num_pages
                self.empty_pages += sequence.pages[max(first_new, num_cached // self._page_size) :]
        return sequences
