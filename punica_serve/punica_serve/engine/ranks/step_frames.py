"""A planned step as int32 words: what the leader sends the other ranks of its group, and the plan that they make of it.

A rank keeps a copy of each running sequence, and expects a step to run the sequences of the step before, each with what
that has cached and sampled. A step says what is otherwise, and brings the tokens that the host has learned since and
the pages that sequences got. So a decode's frame is short, and a rank has most of the work behind it when one comes. A
sequence is introduced once, with its request. One that was preempted and admitted again is introduced again, as another
one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from punica_serve.base_model.model_spec import ModelSpec
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.ranks.ring_frames import PackedStep, read_words, step_frame
from punica_serve.errors.invariants import require
from punica_serve.protocol import Request

#: The first words of a step: how many sequences have ended, how many rows (0: those of the step before), new tokens,
#: unexpected rows, prefills, and sequences with new pages there are, whether the step is early, and whether requests
#: share pages. All of these follow, in that order.
_NUM_HEADER_WORDS = 8
#: Words of a new token: its row, and its id. It is one less in flight.
_NUM_TOKEN_WORDS = 2
#: Words of a row that is not as expected: its number, its cached tokens and those in flight.
_NUM_STATE_WORDS = 3
#: A step of the expected rows, of which the ranks learn nothing.
_NOTHING_NEW = step_frame([0] * _NUM_HEADER_WORDS)

_INT32_MAX = (1 << 31) - 1


@dataclass(slots=True)
class _Known:
    """The part of a sequence that the ranks know."""

    number: int
    #: The sequence's own list, which another one replaces when the sequence is admitted again.
    pages: list[int]
    num_tokens: int
    num_pages: int = 0
    #: As the ranks expect them at the next step.
    num_cached: int = 0
    num_in_flight: int = 0

    def new_tokens(self, sequence: Sequence) -> list[int]:
        """The tokens that the ranks learn now."""
        first, self.num_tokens = self.num_tokens, len(sequence.token_ids)
        self.num_in_flight -= self.num_tokens - first
        return sequence.token_ids[first:]

    def is_unexpected(self, sequence: Sequence) -> bool:
        """Whether the ranks have not expected what is cached of the sequence, and in flight."""
        return (sequence.num_cached, sequence.num_in_flight) != (self.num_cached, self.num_in_flight)

    def expect(self, num_cached: int, num_in_flight: int) -> None:
        """Records what the ranks expect at the next step."""
        self.num_cached, self.num_in_flight = num_cached, num_in_flight

    def new_pages(self, sequence: Sequence) -> list[int]:
        """The pages that the ranks learn now."""
        first, self.num_pages = self.num_pages, len(sequence.pages)
        return sequence.pages[first:]


class StepEncoder:
    """The leader's side."""

    def __init__(self) -> None:
        self._numbers = count()
        self._known: dict[Sequence, _Known] = {}
        #: Sequences that have ended, of which the ranks have not been told.
        self._ended: list[int] = []
        #: The rows of the newest step.
        self._rows: list[int] = []

    def introduce(self, plan: StepPlan) -> list[tuple[int, Request]]:
        """The sequences that the ranks must know before the step's words, by number."""
        self._drop_ended()
        new = [sequence for sequence in plan.sequences if sequence not in self._known]
        return [(self._introduce(sequence).number, sequence.request) for sequence in new]

    def encode(self, plan: StepPlan) -> list[int]:
        """The words of a step whose sequences were introduced."""
        ended, self._ended = self._ended, []
        numbers: list[int] = []
        tokens: list[int] = []
        states: list[int] = []
        pages: list[int] = []
        num_grown = 0
        for row, sequence in enumerate(plan.sequences):
            known = self._known[sequence]
            numbers.append(known.number)
            for token_id in known.new_tokens(sequence):
                tokens += (row, token_id)
            if known.is_unexpected(sequence):
                states += (row, sequence.num_cached, sequence.num_in_flight)
            if new_pages := known.new_pages(sequence):
                pages += (row, len(new_pages), *new_pages)
                num_grown += 1
        rows = numbers if numbers != self._rows else []
        self._rows = numbers
        self._expect(plan)
        chunks = [word for chunk in plan.prefills for word in (chunk.end, int(chunk.is_last))]
        counts = [len(ended), len(rows), len(tokens) // _NUM_TOKEN_WORDS, len(states) // _NUM_STATE_WORDS]
        header = [*counts, len(plan.prefills), num_grown, int(plan.is_early), int(plan.shares_pages)]
        return [*header, *ended, *rows, *tokens, *states, *chunks, *pages]

    @property
    def known(self) -> dict[int, list[int]]:
        """The pages, as far as the ranks know them, by number."""
        return {known.number: known.pages[: known.num_pages] for known in self._known.values()}

    def _expect(self, plan: StepPlan) -> None:
        """The ranks advance their sequences by a step, whatever comes of it."""
        for chunk in plan.prefills:
            sequence = chunk.sequence
            self._known[sequence].expect(chunk.end, sequence.num_in_flight + chunk.is_last)
        for sequence in plan.decodes:
            self._known[sequence].expect(sequence.num_cached + 1, sequence.num_in_flight + 1)

    def _drop_ended(self) -> None:
        ended = [sequence for sequence, known in self._known.items() if sequence.pages is not known.pages]
        self._ended += [self._known.pop(sequence).number for sequence in ended]

    def _introduce(self, sequence: Sequence) -> _Known:
        number = next(self._numbers) & _INT32_MAX
        known = self._known[sequence] = _Known(number, sequence.pages, sequence.request.num_tokens)
        return known


class StepDecoder:
    """A rank's side: its copies of the sequences."""

    def __init__(self, max_context: int, page_size: int, model: ModelSpec | None = None) -> None:
        self._max_context = max_context
        self._page_size = page_size
        self._model = model
        self._sequences: dict[int, Sequence] = {}
        #: The rows of the newest step.
        self._rows: list[Sequence] = []
        #: The newest step, until its sequences have been advanced by it.
        self._newest: StepPlan | None = None
        #: Pages that the newest plan's sequences got, and that no step has filled for them.
        self.empty_pages: list[int] = []

    def introduce(self, number: int, request: Request) -> None:
        """A sequence that the next step runs for the first time."""
        require(number not in self._sequences, f"sequence {number} was introduced twice")
        self._sequences[number] = Sequence.of(request, self._max_context, self._model)

    def decode(self, words: PackedStep) -> StepPlan:
        """The plan, of this rank's sequences. Raises KeyError for a sequence that was not introduced."""
        self.advance()
        plan = self._newest = self._plan(words)
        return plan

    def advance(self) -> None:
        """Advances the sequences by the newest step, as the leader does after its launch, and gets ready for the next.

        To be called when a step has been launched. When the next one has come, the leader launches too, so each µs of
        ``decode`` is one that it waits. A launch leaves little of this code in the processor's caches, so it runs once
        ahead.
        """
        if self._newest is None:
            return
        self._newest.advance()
        self._newest = None
        self._plan(read_words(_NOTHING_NEW))

    @property
    def known(self) -> dict[int, list[int]]:
        """The pages of the sequences, by number."""
        return {number: sequence.pages for number, sequence in self._sequences.items()}

    def _plan(self, words: PackedStep) -> StepPlan:
        left = iter(words)
        header = islice(left, _NUM_HEADER_WORDS)
        num_ended, num_rows, num_tokens, num_states, num_prefills, num_grown, is_early, shares_pages = header
        for number in islice(left, num_ended):
            del self._sequences[number]
        if num_rows:
            self._rows = [self._sequences[number] for number in islice(left, num_rows)]
        rows = self._rows
        token = islice(left, _NUM_TOKEN_WORDS * num_tokens)
        for row, token_id in zip(token, token, strict=True):
            sequence = rows[row]
            sequence.token_ids.append(token_id)
            sequence.num_in_flight -= 1
        state = islice(left, _NUM_STATE_WORDS * num_states)
        for row, num_cached, num_in_flight in zip(state, state, state, strict=True):
            rows[row].num_cached, rows[row].num_in_flight = num_cached, num_in_flight
        chunks = tuple([_read_chunk(sequence, left) for sequence in rows[:num_prefills]])
        self.empty_pages = [page for _ in range(num_grown) for page in self._grow(rows[next(left)], left)]
        decodes = tuple(rows[num_prefills:])
        return StepPlan(chunks, decodes, is_early=bool(is_early), shares_pages=bool(shares_pages))

    def _grow(self, sequence: Sequence, left: Iterator[int]) -> list[int]:
        """Gives a sequence its new pages; returns those that no step has filled for it."""
        first_new = len(sequence.pages)
        sequence.pages += islice(left, next(left))
        return sequence.pages[max(first_new, sequence.num_cached // self._page_size) :]


def _read_chunk(sequence: Sequence, left: Iterator[int]) -> PrefillChunk:
    return PrefillChunk(sequence, sequence.num_cached, next(left), bool(next(left)))
