"""A worker without a model that obeys late and reports late, by the engine's rules."""

from collections import deque
from dataclasses import dataclass, field
from itertools import count, islice

from msgspec.structs import replace

from punica_scheduler.core import events
from punica_scheduler.core.actions import Start, Stop
from punica_serve.paging.page_rule import PageRule
from punica_serve.protocol import (
    AssignmentId,
    AssignmentsFailed,
    EndReason,
    GpuInfo,
    LoraGroup,
    Request,
    RowHeaderEncoder,
    StepReport,
    WireError,
)

PAGE_SIZE = 2
#: Tokens of a prefill's chunk.
BUDGET = 4


def answer(request: Request) -> list[int]:
    """All tokens of a request, wherever it runs: it ends at max_tokens or by itself."""
    seed = request.arrival_ns
    tokens = [(seed * 31 + position * 7) % 1000 for position in range(request.sampling.max_tokens)]
    return tokens[: 1 + seed % 8]


@dataclass
class Sequence:
    request: Request
    generated: list[int]
    #: Those that it holds; behind a window without the first ones.
    pages: list[int] = field(default_factory=list)
    is_prefilled: bool = False
    #: Tokens that chunks of its prefill have computed.
    num_cached: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_ids) + len(self.generated)

    @property
    def known_pages(self) -> list[int]:
        """Full pages of its prompt, which others may share."""
        return self.pages[: len(self.request.prompt_ids) // PAGE_SIZE] if self.is_prefilled else []

    @property
    def request_now(self) -> Request:
        """The request with the tokens generated so far."""
        return replace(self.request, generated_ids=tuple(self.generated))


@dataclass
class Worker:
    """The engine's rules without a model: pages on admission, growth when needed, the newest gives way.

    With prefix caching a request begins with the pages that another of its adapter has: all prompts are of one token.
    Behind a window a request holds what its prompt's chunks take, and then what the row of its next token sees.
    """

    info: GpuInfo
    incarnation: int
    commands: deque[Start | Stop] = field(default_factory=deque)
    reports: deque[events.Event] = field(default_factory=deque)
    sequences: dict[AssignmentId, Sequence] = field(default_factory=dict)
    applied_seq: int = 0
    num_steps: int = 0
    #: Beginnings of prompts that the next report will say it knows, true or not.
    prefix_hints: tuple[int, ...] = ()
    row_headers: RowHeaderEncoder = field(default_factory=RowHeaderEncoder)

    def __post_init__(self) -> None:
        self.page_rule = PageRule.of(PAGE_SIZE, self.info.window)
        self._new_pages = count()

    @property
    def _held(self) -> list[int]:
        """Pages of all requests, those that several hold as often."""
        return [page for sequence in self.sequences.values() for page in sequence.pages]

    @property
    def num_free(self) -> int:
        return self.info.num_kv_pages - len(set(self._held))

    @property
    def has_place(self) -> bool:
        """Whether the batch has one; requests that come before others have ended wait for theirs."""
        return sum(bool(sequence.pages) for sequence in self.sequences.values()) < self.info.max_batch_size

    def step(self, max_commands: int) -> None:
        for _ in range(min(max_commands, len(self.commands))):
            self._apply(self.commands.popleft())
        for assignment in self._by_arrival():
            sequence = self.sequences[assignment]
            if not sequence.pages and self.has_place:
                self._admit(sequence)
        starved = self._grow()
        positions, token_ids, finished, num_prefill_tokens = self._compute()
        hints, self.prefix_hints = self.prefix_hints, ()
        self.num_steps += 1
        report = StepReport(
            gpu_uuid=self.info.uuid,
            epoch=0,
            step=self.num_steps,
            applied_seq=self.applied_seq,
            incarnation=self.incarnation,
            assignments=tuple(positions),
            positions=tuple(positions.values()),
            token_ids=tuple(token_ids),
            finished=tuple(finished.items()),
            free_kv_pages=self.num_free,
            batch_size=len(token_ids),
            num_prefill_tokens=num_prefill_tokens,
            num_adapters=0,
            num_shared_kv_pages=len(self._held) - len(set(self._held)),
            duration_s=0.01,
            starved=tuple(assignment.counter for assignment in starved),
            prefix_hints=hints,
        )
        self.reports.append(events.StepFinished(self.row_headers.encode(report)))

    def fail_load(self, assignment: AssignmentId, *, permanent: bool, code: str = "request_failed") -> None:
        del self.sequences[assignment]
        failure = AssignmentsFailed(
            self.info.uuid, 0, self.applied_seq, (assignment,), permanent, WireError(code, "gone")
        )
        self.reports.append(events.AssignmentsFailed(failure))
        self.step(0)

    @property
    def loading(self) -> list[AssignmentId]:
        """Those whose adapters have not come yet."""
        return [a for a, sequence in self.sequences.items() if sequence.request.adapter and not sequence.is_prefilled]

    def _apply(self, command: Start | Stop) -> None:
        assert command.seq == self.applied_seq + 1
        self.applied_seq = command.seq
        if isinstance(command, Start):
            self.sequences[command.assignment] = Sequence(command.request, list(command.request.generated_ids))
            self._check_batch()
        else:
            self.sequences.pop(command.assignment, None)

    def _check_batch(self) -> None:
        """Checks for requests that the scheduler must never make."""
        assert len(self.sequences) <= 2 * self.info.max_batch_size  # each may await the end of another
        adapters = {s.request.adapter.digest: s.request.adapter for s in self.sequences.values() if s.request.adapter}
        groups: tuple[tuple[LoraGroup, str], ...] = (("qkv", "q_proj"), ("o", "o_proj"))
        for group, module in groups:
            needed = sum(-(-adapter.ranks[module] // 8) for adapter in adapters.values())
            assert needed <= self.info.num_lora_pages[group]

    def _admit(self, sequence: Sequence) -> None:
        """If there are pages for the request. At least one token is left to compute."""
        found = self._find(sequence)[: (sequence.num_tokens - 1) // PAGE_SIZE]
        missing = self.page_rule.to_start(sequence.num_tokens) - len(found)
        if missing <= self.num_free:
            sequence.pages = found + self._take(missing)
            sequence.num_cached = len(found) * PAGE_SIZE

    def _find(self, sequence: Sequence) -> list[int]:
        """The longest beginning of the request's prompt that another request has pages of."""
        if self.info.prefix_caching is None or self.info.window is not None:
            return []
        others = [each for each in self.sequences.values() if each.request.digest == sequence.request.digest]
        longest = max([each.known_pages for each in others], key=len)
        return longest[: len(sequence.request.prompt_ids) // PAGE_SIZE]

    def _take(self, num_pages: int) -> list[int]:
        return list(islice(self._new_pages, num_pages))

    def _by_arrival(self) -> list[AssignmentId]:
        return sorted(self.sequences, key=lambda a: (self.sequences[a].request.arrival_ns, a))

    def _grow(self) -> tuple[AssignmentId, ...]:
        starved: list[AssignmentId] = []
        for assignment in self._by_arrival():
            sequence = self.sequences[assignment]
            self._give_back(sequence)
            while sequence.pages and (missing := self._pages_needed(sequence) - len(sequence.pages)) > 0:
                if missing <= self.num_free:
                    sequence.pages += self._take(missing)
                    continue
                newest = [other for other in self._by_arrival() if self.sequences[other].pages][-1]
                self.sequences[newest].pages = []
                self.sequences[newest].is_prefilled, self.sequences[newest].num_cached = False, 0
                starved.append(newest)
        return tuple(starved)

    def _give_back(self, sequence: Sequence) -> None:
        if self.info.window is not None:
            del sequence.pages[: max(0, len(sequence.pages) - self._pages_needed(sequence))]

    def _pages_needed(self, sequence: Sequence) -> int:
        if not sequence.is_prefilled:
            return self.page_rule.held_by(sequence.num_tokens)
        num_cached = sequence.num_tokens - 1
        return self.page_rule.table_length(sequence.num_tokens, num_cached) - self.page_rule.first_kept(num_cached)

    def _compute(self) -> tuple[dict[int, int], list[int], dict[int, EndReason], int]:
        """A chunk of one prefill at most, and all decodes: positions, tokens, and ends by the assignment's counter, and
        the chunk's tokens.
        """
        positions: dict[int, int] = {}
        token_ids: list[int] = []
        finished: dict[int, EndReason] = {}
        num_prefill_tokens = 0
        for assignment in self._by_arrival():
            sequence = self.sequences[assignment]
            if not sequence.pages or (not sequence.is_prefilled and num_prefill_tokens):
                continue
            if not sequence.is_prefilled:
                num_prefill_tokens = min(BUDGET, sequence.num_tokens - sequence.num_cached)
                sequence.num_cached += num_prefill_tokens
                if sequence.num_cached < sequence.num_tokens:
                    continue
                sequence.is_prefilled = True
            position, whole = len(sequence.generated), answer(sequence.request)
            sequence.generated.append(whole[position])
            positions[assignment.counter] = position
            token_ids.append(whole[position])
            if len(sequence.generated) == len(whole):
                is_full = len(whole) == sequence.request.sampling.max_tokens
                finished[assignment.counter] = "length" if is_full else "stop"
                del self.sequences[assignment]
        return positions, token_ids, finished, num_prefill_tokens
